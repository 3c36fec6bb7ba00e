"""What a person sees of a run: a header, one line per epoch, a live line on a terminal, and a summary."""

import time
from typing import Any

import lightning as L
from rich.live import Live
from rich.text import Text

from lockstep.callbacks.record import Record
from lockstep.models.classifier import Classifier
from lockstep.terminal import duration, terminal

REFRESH_S = 0.25
EPOCH_WIDTH = 9
# what a line of an epoch shows: metric or fact, head, width
COLUMNS = (
    ("train/loss", "train loss", 12),
    ("train/accuracy", "train acc", 11),
    ("val/loss", "val loss", 10),
    ("val/accuracy", "val acc", 10),
    ("images/s", "images/s", 10),
    ("time", "time", 9),
    ("left", "left", 9),
)
# what a narrow terminal does without, the first one first
DROPPED = ("left", "images/s", "train/accuracy", "time", "train/loss", "val/loss")


def columns_for(width: int) -> tuple[tuple[str, str, int], ...]:
    """The columns beside the epoch that fit into so many letters; the validation accuracy in any case."""
    shown = COLUMNS
    for name in DROPPED:
        if EPOCH_WIDTH + sum(wide for *_, wide in shown) <= width:
            break
        shown = tuple(column for column in shown if column[0] != name)
    return shown


class Console(L.Callback):
    """Rank 0 alone speaks. Reads no tensor between epochs, so that it never makes a GPU wait."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._out = terminal()
        self._columns = COLUMNS
        self._live: Live | None = None
        self._next_refresh = 0.0
        self._started = self._epoch_started = time.monotonic()
        self._num_images = 0
        self._first_epoch = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the heads of the columns; start the live line on a terminal."""
        if not (trainer.is_global_zero and self._out.is_terminal):
            # Lightning passes over what cannot be called: 8 us a step (CPU, 2026-11-21)
            setattr(self, "on_train_batch_end", None)  # noqa: B010
        if not trainer.is_global_zero:
            return
        self._started = self._epoch_started = time.monotonic()
        self._first_epoch = trainer.current_epoch
        self._columns = columns_for(self._out.width)
        heads = "".join(f"{head:>{wide}}" for _, head, wide in self._columns)
        self._out.print(Text(f"{'epoch':>{EPOCH_WIDTH}}{heads}", style="bold"))
        if self._out.is_terminal:
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock of the epoch."""
        self._epoch_started, self._num_images = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Refresh the live line a few times a second."""
        self._num_images += batch.share.size
        total = int(trainer.num_training_batches)
        self._show_live(trainer, (batch_idx + 1) / total, f"step {batch_idx + 1}/{total}")

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say that the wait is validation."""
        self._next_refresh = 0.0
        self._show_live(trainer, 1.0, "validating")

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the line of the epoch, which stays."""
        if not trainer.is_global_zero:
            return
        if self._live is not None:
            self._live.update("", refresh=True)
        assert isinstance(pl_module, Classifier)
        epoch, max_epochs = trainer.current_epoch + 1, trainer.max_epochs or 0
        now = time.monotonic()
        left = (now - self._started) / (epoch - self._first_epoch) * (max_epochs - epoch)
        rate = self._record.images_per_s
        cells = {name: f"{value:.4f}" for name, value in pl_module.metrics.items()}
        cells |= {"images/s": f"{rate:,.0f}" if rate else "-"}
        cells |= {"time": duration(now - self._epoch_started), "left": duration(left)}
        line = "".join(f"{cells.get(name, '-'):>{wide}}" for name, _, wide in self._columns)
        self._out.print(f"{f'{epoch}/{max_epochs}':>{EPOCH_WIDTH}}{line}", soft_wrap=True)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """End the live line."""
        self._stop_live()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the live line."""
        self._stop_live()

    def _show_live(self, trainer: L.Trainer, part: float, what: str) -> None:
        now = time.monotonic()
        if self._live is None or now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_S
        rate = self._num_images / max(now - self._epoch_started, 1e-9)
        width = max(4, min(24, self._out.width - 56))
        bar = "━" * round(width * part)
        line = Text(f"{f'{trainer.current_epoch + 1}/{trainer.max_epochs}':>9}  ")
        line.append(bar, style="cyan").append("─" * (width - len(bar)), style="dim")
        line.append(f"  {what}  {rate:,.0f} images/s")
        line.truncate(self._out.width)
        self._live.update(line, refresh=True)

    def _stop_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
