"""Print a line per epoch on a terminal or in a log, and the progress in between."""

import math
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial

from lightning import Callback, LightningModule, Trainer
from rich.console import RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from lockstep.callbacks.custom_module import metrics_of
from lockstep.callbacks.record import Record
from lockstep.system.terminal import debug, duration, measure, terminal

REFRESH_S = 0.25  # seconds between two refreshes of a terminal
# A log gets a line after the first seconds of a long epoch, and then one per minute.
FIRST_S = 10.0
EVERY_S = 60.0
EPOCH_WIDTH = 9
MIN_COLUMN_WIDTH = 10  # characters of the column of a metric
# These are the names and widths of the columns after the metrics.
FACTS = (("images/s", 10), ("time", 9), ("left", 9))


def columns_for(width: int, metrics: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return the columns after the epoch as (name, head, width).

    They are those of the metrics and facts, as many as fit into `width`.
    """
    header = [
        (name, name.replace("/", " ").replace("accuracy", "acc").replace("_", " "))
        for name in metrics
    ]
    columns = [(name, head, max(MIN_COLUMN_WIDTH, len(head) + 2)) for name, head in header]
    columns += [(name, name, wide) for name, wide in FACTS]
    while EPOCH_WIDTH + sum(wide for *_, wide in columns) > width and len(columns) > 1:
        columns.pop()
    return columns


def live_line(width: int, epoch: str, fraction: float | None, facts: Sequence[str]) -> Table:
    """Format the epoch, a bar for the `fraction` that is done, and the facts, in `width` columns.

    Text that does not fit is truncated.
    """
    line = Table.grid(Column(width=EPOCH_WIDTH, justify="right"), padding=(0, 2, 0, 0))
    facts_text = "  ".join(facts)
    cells: list[RenderableType] = [epoch]
    free_width = width - EPOCH_WIDTH - 2
    if fraction is not None:
        bar = max(4, min(24, free_width - 2 - len(facts_text)))
        line.add_column(width=bar)
        cells.append(ProgressBar(total=1, completed=fraction, width=bar))
        free_width -= bar + 2
    line.add_column(width=free_width)
    line.add_row(*cells, facts_text[:free_width])
    return line


class Console(Callback):
    """Prints the metrics of each epoch on rank 0, and the progress in between.

    A thread reads the progress from the record, also during a step that compiles or waits for data.
    It does not read tensors, so that no GPU waits.
    """

    def __init__(self, record: Record, metrics: Sequence[str]) -> None:
        """Use `metrics` as names of columns, or those of the first epoch if they are empty."""
        self._record = record
        self._out = terminal()
        self._metrics = metrics
        self._columns: list[tuple[str, str, int]] = []
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._printed = time.monotonic()  # time of the last line in a log
        self._pause_s = FIRST_S
        self._has_warned = False

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if self._metrics:
            self._begin_table(self._metrics)
        self._begin(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if self._live is not None:
            self._live.update("", refresh=True)
        metrics = metrics_of(trainer, pl_module)
        if not self._columns:
            self._begin_table([*metrics])
        left_s, rate = self._record.left_s(trainer), self._record.images_per_s
        cells = {name: _narrow(value) for name, value in metrics.items()}
        cells["time"] = duration(self._record.epoch_times_s[-1])
        if rate:
            cells["images/s"] = f"{rate:,.0f}"
        if left_s is not None:
            cells["left"] = duration(left_s)
        line = "".join(f"{cells.get(name, '-'):>{wide}}" for name, _, wide in self._columns)
        self._out.print(f"{_epoch(trainer):>{EPOCH_WIDTH}}{line}", soft_wrap=True)
        self._printed = time.monotonic()
        monitor = getattr(trainer.checkpoint_callback, "monitor", None) or ""
        value = metrics.get(monitor, 0.0)
        if not self._has_warned and not math.isfinite(value):
            warning = f"{monitor} is {value}: such an epoch is never the best one"
            self._out.print(warning, soft_wrap=True)
            self._has_warned = True

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end()

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._begin(trainer)

    on_test_end = on_train_end

    @override
    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._end()

    def _begin_table(self, metrics: Sequence[str]) -> None:
        self._columns = columns_for(self._out.width, metrics)
        header = "".join(f"{head:>{wide}}" for _, head, wide in self._columns)
        self._out.print(Text(f"{'epoch':>{EPOCH_WIDTH}}{header}", style="bold"))

    def _begin(self, trainer: Trainer) -> None:
        self._printed = time.monotonic()
        if self._out.is_terminal:
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        if sys.breakpointhook is debug:
            sys.breakpointhook = partial(debug, self._end)
        every_s = REFRESH_S if self._live else FIRST_S / 10
        self._is_over.clear()
        self._thread = threading.Thread(
            target=self._watch, args=(trainer, every_s), daemon=True, name="console"
        )
        self._thread.start()

    def _watch(self, trainer: Trainer, every_s: float) -> None:
        while not self._is_over.wait(every_s):
            self._show(trainer)

    def _end(self) -> None:
        if self._thread is not None:
            self._is_over.set()
            self._thread.join()
            self._thread = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self, trainer: Trainer) -> None:
        """Refresh the live line, or in a log print a line if it is due."""
        now = time.monotonic()
        fraction, facts = self._progress(trainer, now)
        if self._live is not None:
            width = self._out.width - 2  # The terminal prints ^C after the line.
            self._live.update(live_line(width, _epoch(trainer), fraction, facts), refresh=True)
        elif now - self._printed >= self._pause_s:
            self._out.print(f"{_epoch(trainer):>{EPOCH_WIDTH}}  {', '.join(facts)}", soft_wrap=True)
            self._printed, self._pause_s = now, EVERY_S

    def _progress(self, trainer: Trainer, now: float) -> tuple[float | None, list[str]]:
        """Return the fraction of the epoch or evaluation that is done, and facts about it.

        The most important facts come first.
        """
        phase, pace = self._record.phase, self._record.pace
        if phase.name != "training":
            so_far = f"{duration(now - phase.since)} so far"
            if not phase.num_batches:
                return None, [f"{phase.name}, {so_far}"]
            progress = f"{phase.name} {phase.num_done}/{phase.num_batches}"
            return phase.num_done / phase.num_batches, [progress, so_far]
        facts = [f"step {pace.num_done}/{pace.num_batches}"]
        epoch_left_s, left_s = pace.epoch_left_s(now), self._record.left_s(trainer)
        if epoch_left_s:  # It is 0 if the batch is late.
            facts.append(f"{duration(epoch_left_s)} left")
        if pace.images_per_s:
            facts.append(f"{pace.images_per_s:,.0f} images/s")
        if left_s is not None and trainer.current_epoch + 1 < (trainer.max_epochs or 0):
            facts.append(f"{duration(left_s)} until the end")
        return pace.num_done / max(1, pace.num_batches), facts


def _narrow(value: float) -> str:
    """Format a metric so that it leaves a gap in its column."""
    number = measure(value)
    return number if len(number) < MIN_COLUMN_WIDTH else f"{value:.4g}"


def _epoch(trainer: Trainer) -> str:
    max_epochs = trainer.max_epochs or 0
    return f"{min(trainer.current_epoch + 1, max_epochs)}/{max_epochs}"
