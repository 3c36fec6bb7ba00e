# pyright: strict
"""The network, images and tasks of a user's project, with types."""

from collections.abc import Sequence
from typing import assert_type

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lockstep import Batch, Task, sum_over_global
from lockstep.data import Images, Splits, Statistics
from lockstep.models import Origin
from lockstep.tasks import Classification, SupervisedTask


class Net(nn.Module):
    def __init__(self, in_channels: int, num_classes: int, *, width: int) -> None:
        super().__init__()
        self.origin = Origin(image_size=8, mean=(0.5,), std=(0.2,))
        self.conv = nn.Conv2d(in_channels, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.classes = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.norm(self.conv(x)).relu().mean((2, 3)))


def images(*, seed: int) -> Splits:
    pixels = torch.randint(
        0, 256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    parts = [
        Images(part, torch.zeros(10, dtype=torch.int64), list("0123456789"))
        for part in torch.split(pixels, 10)
    ]
    splits = Splits(*parts, class_names=("a", "b"), statistics=Statistics((0.5,), (0.2,)))
    assert_type(splits.by_name, dict[str, Images])
    return splits


class Balanced(Task):
    def __init__(self, *, power: float) -> None:
        super().__init__()
        self.power = power

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        counts = sum_over_global(F.one_hot(batch.targets, outputs.shape[1]), batch)
        weights = counts[batch.targets].float() ** -self.power
        return weights * F.cross_entropy(outputs, batch.targets, reduction="none"), weights

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(1)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets) ** 2


TASKS: Sequence[Task] = (
    Balanced(power=0.5),
    SupervisedTask(loss=squared),
    Classification(loss=None, label_smoothing=0.1, class_weights=[1.0, 2.0]),
)
