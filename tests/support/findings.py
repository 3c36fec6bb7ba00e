"""Made-up outputs of a network, and what an evaluation finds in them."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lockstep.models.predictions import Findings, FindingsCollector
from lockstep.tasks import Task


def made_up(count: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Logits (N, C) that are too sure of themselves, and classes (N,)."""
    made = torch.Generator().manual_seed(5)
    labels = torch.randint(num_classes, (count,), generator=made)
    logits = 3 * torch.randn(count, num_classes, generator=made, dtype=torch.float64)
    logits[torch.arange(count), labels] += 3
    return logits, labels


def findings_of(
    task: Task, calibration: nn.Module, logits: Tensor, targets: Tensor, parts: Iterable[Tensor]
) -> Findings:
    """Collect the images of one position after another; a part may be empty."""
    collector = FindingsCollector(task, calibration, logits.shape[1])
    for positions in parts:
        if len(positions):
            collector.update(logits[positions], targets[positions], positions)
    findings = collector.findings()
    assert findings is not None
    return findings
