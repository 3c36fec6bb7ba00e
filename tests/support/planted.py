"""Custom parts with a mistake each that one worker never shows."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchmetrics import Metric

from lockstep.distributed.batch import Batch
from lockstep.tasks import Classification
from tests.support.networks import Plain


class ViewsByLength(nn.Module):
    """Flattens by the number of samples: -1 is ambiguous for an empty shard."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, hidden, 8)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).view(len(x), -1))


class FailsInTheSecondEpoch(Plain):
    """Raises where no trial before the start reaches: in the fourth step of a training."""

    num_steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_steps += self.training
        return super().forward(x) if self.num_steps < 5 else {}["lost"]


class NormalizesShards(nn.Module):
    """Normalizes by mean and deviation of the shard."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean()) / (x.std() + 1) if len(x) > 1 else x


class WithShardNorm(Plain):
    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.norm = NormalizesShards()  # pyright: ignore[reportAttributeAccessIssue]


class Untracked(Plain):
    """Has a batch norm without running statistics."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.norm = nn.BatchNorm2d(hidden, track_running_stats=False)


class AddsItsRank(Plain):
    """Computes with the number of its process."""

    def __init__(self, in_channels: int, num_classes: int, hidden: int) -> None:
        super().__init__(in_channels, num_classes, hidden)
        self.norm = RankNorm()  # pyright: ignore[reportAttributeAccessIssue]


class RankNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * (dist.get_rank() if dist.is_initialized() else 0)


class MeanLoss(Classification):
    """Divides the losses by the number of samples of its shard: their sum is its mean."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        values = F.cross_entropy(outputs, batch.targets, reduction="none")
        return values / max(1, len(values))


class AveragesBatches(Metric):
    """The mean of the accuracies of batches, which is another one for other batches."""

    higher_is_better = True

    def __init__(self, how: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.total: Tensor
        self.num_batches: Tensor
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx=how)
        self.add_state("num_batches", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.total += predictions.amax(1).mean()
        self.num_batches += 1

    def compute(self) -> Tensor:
        return self.total / self.num_batches


class DrawsByItself(Dataset[Any]):
    """Gray images with noise from one generator for all samples, in the order of reading."""

    classes = ("dark", "gray", "light")

    def __init__(self, count: int) -> None:
        self.count = count
        self.random = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.random.random((1, 8, 8))).float() + row % 3, row % 3
