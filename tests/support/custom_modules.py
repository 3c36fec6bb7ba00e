"""Custom LightningModules."""

import functools
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import lockstep
from lockstep import Batch


class Plain(L.LightningModule):
    """Automatic optimization, with a dropout and a loss of global sums."""

    def __init__(self, net: nn.Module, optimizer: functools.partial[Optimizer]) -> None:
        super().__init__()
        self.net = nn.Sequential(net, nn.Dropout(0.3))
        self._optimizer = optimizer
        self.measured = nn.ModuleDict(
            {"val": torchmetrics.MeanMetric(), "test": torchmetrics.MeanMetric()}
        )

    def forward(self, batch: Batch) -> Tensor:
        dtype = next(self.parameters()).dtype
        return F.cross_entropy(
            self.net(batch.inputs.to(dtype) / 255), batch.targets, reduction="none"
        )

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = lockstep.sum_over_global(self(batch), batch) / batch.shard.size
        self.log(
            "train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=batch.shard.size
        )
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure("test", batch)

    def _measure(self, split: str, batch: Batch) -> None:
        metric: Any = self.measured[split]
        metric.update(self(batch))
        self.log(f"{split}/loss", metric)

    def configure_optimizers(self) -> Optimizer:
        return self._optimizer(self.parameters())


class PartlyUsed(Plain):
    """Has a layer that is never used, and one that is used in every other batch."""

    def __init__(self, net: nn.Module, optimizer: functools.partial[Optimizer]) -> None:
        super().__init__(net, optimizer)
        self.never, self.sometimes = nn.Linear(2, 2), nn.Linear(10, 10)

    def forward(self, batch: Batch) -> Tensor:
        outputs = self.net(batch.inputs.to(self.never.weight.dtype) / 255)
        if batch.shard.step % 2 == 0:
            outputs = self.sometimes(outputs)
        return F.cross_entropy(outputs, batch.targets, reduction="none")


class LogsItsShard(Plain):
    """Logs the loss of its shard."""

    def _measure(self, split: str, batch: Batch) -> None:
        self.log(f"{split}/loss", self(batch).mean() if len(batch.indices) else torch.zeros(()))


class Gan(L.LightningModule):
    """Two networks, two optimizers, manual optimization.

    The noise is drawn once for all samples.
    """

    def __init__(self, image_shape: tuple[int, int, int], num_noise: int, lr: float) -> None:
        super().__init__()
        self.automatic_optimization = False
        size = image_shape[0] * image_shape[1] * image_shape[2]
        self.generator = nn.Sequential(
            nn.Linear(num_noise, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, size)
        )
        self.critic = nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, 1))
        self.register_buffer("noise", torch.randn(4096, num_noise))
        self._lr = lr
        self.realness = torchmetrics.MeanMetric()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        of_generator, of_critic = self.optimizers()  # pyright: ignore[reportGeneralTypeIssues]
        assert isinstance(self.noise, Tensor)
        real = batch.inputs.flatten(1).to(self.noise.dtype) / 255
        noise = self.noise[batch.indices % len(self.noise)]
        self._step(of_generator, lambda: -F.logsigmoid(self.critic(self.generator(noise))), batch)
        fake = self.generator(noise).detach()
        self._step(
            of_critic,
            lambda: -F.logsigmoid(self.critic(real)) - F.logsigmoid(-self.critic(fake)),
            batch,
        )

    def _step(self, optimizer: Any, losses: Callable[[], Tensor], batch: Batch) -> None:
        self.toggle_optimizer(optimizer)
        loss = lockstep.sum_over_global(losses()[:, 0], batch) / batch.shard.size
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.log(
            "train/loss", loss.detach(), on_step=False, on_epoch=True, batch_size=batch.shard.size
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.realness.update(
            torch.sigmoid(self.critic(batch.inputs.flatten(1).to(self.dtype) / 255))
        )  # pyright: ignore[reportArgumentType]
        self.log("val/loss", self.realness)

    def configure_optimizers(self) -> list[Optimizer]:
        return [
            torch.optim.Adam(part.parameters(), self._lr) for part in (self.generator, self.critic)
        ]
