"""Train the same in a raw PyTorch loop, in Lightning as templates use it, and in Lockstep."""

import contextlib
import csv
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.transforms import v2

from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.saved import config_file
from lockstep.launch import worker
from lockstep.runs.folder import RunFolder

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Task(NamedTuple):
    """What is trained: random grayscale images of one size.

    It is trained with SGD, in bfloat16 autocast or float32.
    """

    network: dict[str, Any]  # the section `model` of a configuration
    image_size: int
    batch_size: int
    num_steps: int  # of an epoch
    num_epochs: int  # the last one counts: a process takes some dozens of steps to find its memory
    precision: str  # float32, or bfloat16 for autocast
    log_every_n_steps: int
    is_compiled: bool = False

    @property
    def num_images(self) -> int:
        """The number of images of an epoch."""
        return self.batch_size * self.num_steps


class _Batches:
    """Batches of pixels (B, 1, H, W) and labels (B,), gathered from one tensor in memory."""

    def __init__(self, task: Task) -> None:
        self._pixels, self._labels = _data(task)
        self._batch_size = task.batch_size

    def __len__(self) -> int:
        return len(self._pixels) // self._batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self._pixels)).split(self._batch_size):
            yield self._pixels[rows], self._labels[rows]


def _to_floats(pixels: Tensor) -> Tensor:
    return ((pixels.float() - 127.5) / 63.75).contiguous(memory_format=torch.channels_last)


def _optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True
    )


def _schedule(optimizer: torch.optim.Optimizer, task: Task) -> torch.optim.lr_scheduler.LambdaLR:
    num_steps = task.num_epochs * task.num_steps
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / num_steps)


def _data(task: Task) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(0)
    shape = (task.num_images, 1, task.image_size, task.image_size)
    return (
        torch.randint(0, 256, shape, dtype=torch.uint8, generator=source),
        torch.randint(10, (task.num_images,), generator=source),
    )


def _network(task: Task) -> nn.Module:
    section = validation.check_tree(lockstep_tree(task)).model
    return build.build(section, in_channels=1, num_classes=10)


def _channels_last_network(task: Task) -> nn.Module:
    return _network(task).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def raw(task: Task) -> float:
    """Seconds a step by hand: all that is fast is used, nothing that Lockstep adds is there.

    The images lie in memory as one tensor, batches are gathers of it, the format is channels last,
    the optimizer is fused; loss and hits are added up on the device and read when they would be
    logged.
    """
    batches = _Batches(task)
    torch.manual_seed(0)
    net = _channels_last_network(task)
    forward = torch.compile(net) if task.is_compiled else net
    optimizer = _optimizer(net)
    scheduler = _schedule(optimizer, task)
    loss_sum, hits = torch.zeros(()), torch.zeros(())
    started = 0.0
    for _ in range(task.num_epochs):
        started = time.perf_counter()
        for step, (pixels, labels) in enumerate(batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=task.precision == "bfloat16"):
                logits = forward(_to_floats(pixels))
            logits = logits.float()
            loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            loss_sum += loss.detach()
            hits += (logits.argmax(1) == labels).sum()
            if step % task.log_every_n_steps == 0:
                loss_sum.item()
        hits.item()
    return (time.perf_counter() - started) / task.num_steps


class _Timed(L.LightningModule):
    """Measures the seconds of a step of the last epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds = 0.0
        self._started = 0.0

    def on_train_epoch_start(self) -> None:
        self._started = time.perf_counter()

    def on_train_epoch_end(self) -> None:
        seconds = time.perf_counter() - self._started
        self.step_seconds = seconds / self.trainer.num_training_batches


class _Bare(_Timed):
    """The step of the raw loop in Lightning's manual optimization, without its sums."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = _channels_last_network(task)
        self._optimizer = _optimizer(self.net)
        self._schedule = _schedule(self._optimizer, task)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        loss = F.cross_entropy(self.net(_to_floats(batch[0])), batch[1], label_smoothing=0.1)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._schedule.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer


def bare(task: Task) -> float:
    """Seconds a step of Lightning's Trainer with nothing that is not needed."""
    module = _Bare(task)
    trainer = L.Trainer(
        max_epochs=task.num_epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, _Batches(task))
    return module.step_seconds


def lockstep_tree(task: Task) -> dict[str, Any]:
    """Return the configuration of a run of Lockstep that does `task`."""
    overrides = [
        "data=synthetic",
        f"data.image_size={task.image_size}",
        f"data.train_size={task.num_images}",
        "data.val_size=10",
        "data.test_size=10",
        f"global_batch_size={task.batch_size}",
        "eval_batch_size=10",
        f"trainer.max_epochs={task.num_epochs}",
        f"trainer.precision={task.precision}",
        f"compile={task.is_compiled}",
        f"trainer.log_every_n_steps={task.log_every_n_steps}",
        "strategy=cpu",
        "trainer.devices=1",
    ]
    tree = config_file.to_tree(validation.check_config(compose.compose_config(overrides)))
    return {**tree, "model": task.network}


def lockstep(task: Task) -> float:
    """Seconds a step of a run with everything Lockstep does by default."""
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root))
        config_file.save(validation.check_tree(lockstep_tree(task)), folder.config)
        with contextlib.redirect_stdout(io.StringIO()):
            code = worker.run_here(
                worker.Job(worker.train, folder, {"command": "", "has_test": True}), None
            )
        assert code == 0
        rows = list(csv.DictReader((folder.path / "metrics.csv").open()))
    return task.batch_size / float(rows[-1]["images_per_s"])


class _Images(Dataset[tuple[Tensor, int]]):
    """Return samples as torchvision's MNIST does.

    An array becomes a PIL image, which the transforms make a tensor.
    """

    def __init__(self, task: Task) -> None:
        self._pixels, self._labels = _data(task)
        self._transform = v2.Compose(
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.25])]
        )

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self._pixels[index, 0].numpy())
        return self._transform(image), int(self._labels[index])


class _Template(_Timed):
    """Do in a step what widespread Lightning templates do.

    They log two values, call a metric's forward, and have a progress bar.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.net = _network(task)
        self.accuracy = MulticlassAccuracy(10)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        logits = self.net(images)
        loss = F.cross_entropy(logits, labels, label_smoothing=0.1)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log(
            "train/acc",
            self.accuracy(logits.argmax(1), labels),
            on_step=True,
            on_epoch=True,
            prog_bar=True,
        )
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )


def template(task: Task) -> float:
    """Seconds a step of a plain Lightning loop with torchvision's transforms and a DataLoader."""
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = _Template(task)
        trainer = L.Trainer(
            max_epochs=task.num_epochs,
            accelerator="cpu",
            devices=1,
            logger=CSVLogger(root),
            log_every_n_steps=task.log_every_n_steps,
            enable_model_summary=False,
            default_root_dir=root,
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            trainer.fit(module, DataLoader(_Images(task), task.batch_size, shuffle=True))
    return module.step_seconds
