"""Write status.json and metrics.csv, which tools outside the training read."""

import math
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from typing_extensions import override

from lockstep.callbacks.custom_module import (
    hash_of,
    metrics_of,
    micro_batches,
    skipped_steps,
    steps_done,
)
from lockstep.callbacks.pace import Pace, Phase
from lockstep.distributed.collectives import gather_objects
from lockstep.models.classifier import Checkpoint, Classifier
from lockstep.models.step import MAX_PENDING_STEPS
from lockstep.runs.files import JsonObject, append_row, truncate_rows
from lockstep.runs.folder import RunFolder
from lockstep.system.output import print_error

EVERY_S = 1.0


class Record(Callback):
    """Writes status.json at most once a second, and a row of metrics.csv per epoch, on rank 0.

    `note` is the reason in the status while there is no other. The console reads `pace` and
    `phase`.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        facts: JsonObject,
        monitor: str | None,
        note: str = "",
    ) -> None:
        self._folder = folder
        self.facts = {
            **facts,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": time.time(),
        }
        self._started = time.monotonic()  # Other clocks may be set back.
        self._monitor = monitor
        self._note = note
        self._state = "starting"
        self._next_write = 0.0
        self._epoch = 0  # current epoch, counted from 1
        self._epoch_started = time.monotonic()
        self._epoch_images = 0
        self.pace = Pace(num_warm_up=1)
        self.phase = Phase("starting", time.monotonic())
        self._best_score: Any = None
        self._best: float | None = None
        self.images_per_s: float | None = None
        self.epoch_times_s: list[float] = []
        self.training_s = 0.0  # seconds of training over all sessions, set at the end

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, pl_module, "starting", is_urgent=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop rows of epochs that are trained again, and start the epoch.

        A resume inside an epoch does not start it.
        """
        if trainer.is_global_zero:
            note = truncate_rows(self._folder.metrics, trainer.current_epoch)
            if note:
                print_error(note)
        if pl_module.device.type == "cuda":  # The host is some steps ahead of the device.
            self.pace = Pace(num_warm_up=1 + MAX_PENDING_STEPS * micro_batches(pl_module))
        self.on_train_epoch_start(trainer, pl_module)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = trainer.current_epoch + 1
        self._epoch_started, self._epoch_images = time.monotonic(), 0
        self.pace.start(int(trainer.num_training_batches))
        self._enter("training" if self.pace.has_begun else "first step")
        self._write(trainer, pl_module, "training", is_urgent=True)

    @override
    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the images of all ranks, and measure the speed.

        The validation after the last batch is not included.
        """
        self._epoch_images += batch.shard.size
        if trainer.is_last_batch and pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)  # The host is some steps ahead.
        now = time.monotonic()
        if not self.pace.has_begun:
            self._enter("training")
        self.pace.count_batch(now, batch.shard.micro_step + 1, batch.shard.size)
        if trainer.is_last_batch:
            self.images_per_s = self._epoch_images / (now - self._epoch_started)
        else:
            self.images_per_s = self.pace.images_per_s
        self._write(trainer, pl_module, "training")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        state, sizes = "validating", trainer.num_val_batches
        if trainer.testing:
            state, sizes = "testing", trainer.num_test_batches
        self._enter(state, sizes)
        self._write(trainer, pl_module, state, is_urgent=True)

    on_test_start = on_validation_start

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.monotonic()
        self.pace.end_epoch(now)
        epoch_s = now - self._epoch_started
        self.epoch_times_s.append(epoch_s)
        speed = {"machine/memory_gib": max(gather_objects(_memory_gib(pl_module.device)))}
        if self.images_per_s is not None:
            speed["machine/images_per_s"] = self.images_per_s
        step = steps_done(trainer, pl_module)
        for logger in trainer.loggers:
            logger.log_metrics(speed, step)
        row = {
            "epoch": trainer.current_epoch + 1,
            "step": step,
            "seconds": f"{epoch_s:.3f}",
            "images_per_s": f"{self.images_per_s:.1f}" if self.images_per_s else "",
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            **skipped_steps(pl_module),
            **metrics_of(trainer, pl_module),
        }
        if trainer.is_global_zero:
            append_row(self._folder.metrics, row)
        self._write(trainer, pl_module, "training", is_urgent=True)

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Checkpoint
    ) -> None:
        """Flush all metrics before a checkpoint.

        A resume from it does not log them again.
        """
        if isinstance(pl_module, Classifier):
            pl_module.wait()  # The module logs some steps late.
        for logger in trainer.loggers:
            logger.save()

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.phase.num_done = batch_idx + 1
        self._write(trainer, pl_module, self._state)

    on_test_batch_end = on_validation_batch_end

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # At this time, averages are in their place, and the test has not loaded the best weights.
        if trainer.is_global_zero:
            self.facts["weights_sha256"] = hash_of(pl_module)

    def begin_stop(self, trainer: Trainer, pl_module: LightningModule, reason: str) -> None:
        """Write the state while all ranks save and stop."""
        self._write(trainer, pl_module, "stopping", is_urgent=True, reason=reason)

    def end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        state: str,
        reason: str,
        **facts: Any,
    ) -> None:
        """Write the last status with more facts, such as the `signal` that stopped the run."""
        self.facts |= facts
        self._write(trainer, pl_module, state, is_urgent=True, reason=reason)

    def _enter(self, phase_name: str, num_batches: Sequence[float] = ()) -> None:
        self.phase = Phase(phase_name, time.monotonic(), int(sum(num_batches)))

    def left_s(self, trainer: Trainer) -> float | None:
        """Return the seconds until the end of the training, or None while the speed is unknown."""
        num_later = (trainer.max_epochs or 0) - trainer.current_epoch - 1
        return self.pace.left_s(time.monotonic(), num_later) if num_later >= 0 else 0.0

    def _write(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        state: str,
        *,
        is_urgent: bool = False,
        reason: str = "",
    ) -> None:
        now = time.monotonic()
        if not trainer.is_global_zero or (now < self._next_write and not is_urgent):
            return
        self._next_write = now + EVERY_S
        self._state = state
        max_epochs = trainer.max_epochs or 0
        batches = trainer.num_training_batches
        is_known = state != "starting" and batches not in (0, float("inf"))
        total_steps = max_epochs * -(-int(batches) // micro_batches(pl_module)) if is_known else 0
        step = steps_done(trainer, pl_module)
        self._folder.write_status(
            state=state,
            reason=reason or self._note,
            **self.facts,
            # current_epoch alone is not enough. Lightning counts up after the hooks at the end of
            # an epoch, where a run may stop.
            epoch=min(max(self._epoch, trainer.current_epoch), max_epochs),
            max_epochs=max_epochs,
            step=step,
            total_steps=total_steps or None,
            **skipped_steps(pl_module),
            percent=round(100 * step / total_steps, 1) if total_steps else None,
            learning_rate=trainer.optimizers[0].param_groups[0]["lr"]
            if trainer.optimizers
            else None,
            epoch_s=_round_digits(self.epoch_times_s[-1] if self.epoch_times_s else None, 3),
            elapsed_s=_round_digits(now - self._started),
            epoch_remaining_s=_round_digits(self.pace.epoch_left_s(now))
            if state == "training"
            else None,
            remaining_s=_round_digits(self.left_s(trainer)),
            images_per_s=_round_digits(self.images_per_s),
            best=self._best_of(trainer) if self._monitor is not None else None,
            monitor=self._monitor,
            mode=getattr(trainer.checkpoint_callback, "mode", None),
            metrics=dict(metrics_of(trainer, pl_module)),
        )

    def _best_of(self, trainer: Trainer) -> float | None:
        """Return the best finite value.

        It is read only if it has changed, because reading waits for the GPU.
        """
        score = getattr(trainer.checkpoint_callback, "best_model_score", None)
        if score is not self._best_score:
            self._best_score = score
            value = score.item() if isinstance(score, torch.Tensor) else math.nan
            self._best = value if math.isfinite(value) else None
        return self._best


def _round_digits(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


def _memory_gib(device: torch.device) -> float:
    """Return the peak memory of this worker in GiB.

    This is the memory on the GPU in this epoch, or the memory of its process without a GPU.
    """
    if device.type == "cuda":
        num_bytes = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return num_bytes / 2**30
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**30
