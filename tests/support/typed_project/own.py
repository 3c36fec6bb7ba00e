# pyright: strict
"""The network, images, task, module and callback of a user's project, with types."""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_type

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from lockstep import Batch, Task, sum_over_global
from lockstep.data import Images, Splits, Statistics
from lockstep.distributed import ExactBatchNorm, replace_dropout, sum_over_ranks
from lockstep.models import Classifier, Origin
from lockstep.tasks import Accuracy, Classification, SupervisedTask


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
    pixels = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    parts = [Images(part, torch.zeros(10, dtype=torch.int64), list("0123456789")) for part in torch.split(pixels, 10)]
    splits = Splits(*parts, class_names=("a", "b"), statistics=Statistics((0.5,), (0.2,)))
    assert_type(splits.parts, dict[str, Images])
    assert_type(splits.class_counts("train"), list[int] | None)
    assert_type(splits.train.targets, Tensor)
    return splits


class Balanced(Task):
    scored = ("accuracy",)

    def __init__(self, *, power: float) -> None:
        super().__init__()
        self.power = power

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        counts = sum_over_global(F.one_hot(batch.targets, outputs.shape[1]), batch)
        assert_type(counts, Tensor)
        assert_type(batch.shard.size, int)
        weights = counts[batch.targets].float() ** -self.power
        return weights * F.cross_entropy(outputs, batch.targets, reduction="none"), weights

    @override
    def scores(self, outputs: Tensor, batch: Batch) -> Sequence[Tensor]:
        return [(outputs.argmax(1) == batch.targets).float()]

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(1)

    @override
    def fit_to(self, class_names: Sequence[str]) -> None:
        if len(class_names) < 2:
            raise ValueError("one class only")


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets) ** 2


TASKS: Sequence[Task] = (
    Balanced(power=0.5),
    SupervisedTask(loss=squared),
    Classification(loss=None, label_smoothing=0.1, class_weights=[1.0, 2.0]),
)
METRIC = Accuracy(num_classes=2)


class Centred(L.LightningModule):
    def __init__(self, net: nn.Module, optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net, self.make_optimizer = net, optimizer

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        outputs: Tensor = self.net(batch.inputs.to(self.dtype) / 255)
        mean = sum_over_global(outputs, batch) / batch.shard.size
        return sum_over_global(F.cross_entropy(outputs, batch.targets, reduction="none"), batch) + (mean**2).sum()

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())


class Told(L.Callback):
    """Prints the newest metrics."""

    @override
    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if isinstance(pl_module, Classifier) and trainer.is_global_zero:
            assert_type(pl_module.metrics, dict[str, float])
            assert_type(pl_module.net, nn.Module)
            print(pl_module.metrics["val/loss"])
            ExactBatchNorm().apply(pl_module.net)
            print(len(replace_dropout(pl_module.net, seed=0)))
        assert_type(sum_over_ranks(torch.ones(1)), Tensor)
