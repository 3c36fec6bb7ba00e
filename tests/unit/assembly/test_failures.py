"""What a person reads when the loss of a run is not finite."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lockstep.assembly import failures
from lockstep.distributed.partition import Shard
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World


def test_a_bad_loss_is_told_with_advice_and_samples(tmp_path: Path) -> None:
    parts = RunFolder(tmp_path), World("", rank=0, local_rank=0, node_rank=0, world_size=1)
    samples: Any = SimpleNamespace(indices=torch.tensor([7]), shard=Shard(0, 2, 2, 1, 0, 1, 1))
    text = failures.explain(NonFiniteLoss(2, 0, [samples]), *parts)
    what = "The loss is not finite in optimizer step 2 (epoch 1, micro-batch 3) on rank 0."
    assert text == "\n".join([what, failures.ADVICE, "", "Training samples of the shard: [7]"])
    assert failures.explain(NonFiniteGradient("too narrow"), *parts) == "too narrow"
