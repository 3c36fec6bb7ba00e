"""The lines of a run on a terminal, in a notebook or in a log: one per epoch, and its progress in the meantime."""

import threading
import time
from collections.abc import Sequence

import lightning as L
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from lockstep.callbacks.own_module import metrics_of
from lockstep.callbacks.record import Record
from lockstep.system.terminal import duration, measure, plain, terminal

REFRESH_S = 0.25  # the live line of a terminal
CELL_S = 1.0  # that of the cell of a notebook
# a log: a line after the first seconds of a long epoch, then one a minute
FIRST_S = 10.0
EVERY_S = 60.0
EPOCH_WIDTH = 9
BAR = (4, 24)  # least and most letters
# facts of an epoch behind its metrics: name, head, width
FACTS = (("images/s", "images/s", 10), ("time", "time", 9), ("left", "left", 9))
LEAST_WIDTH = 10  # of a metric's column


def columns_for(width: int, metrics: Sequence[str], first: str) -> tuple[tuple[str, str, int], ...]:
    """Columns next to the epoch that fit into `width` letters: name, head, width; that of `first` in any case.

    `metrics` are names such as val/loss. A narrow terminal does without the last ones.
    """
    heads = [(name, name.replace("/", " ").replace("accuracy", "acc").replace("_", " ")) for name in metrics]
    shown = [*((name, head, max(LEAST_WIDTH, len(head) + 2)) for name, head in heads), *FACTS]
    while len(shown) > 1 and EPOCH_WIDTH + sum(wide for *_, wide in shown) > width:
        shown.pop(-2 if shown[-1][0] == first else -1)
    return tuple(shown)


def live_line(width: int, epoch: str, part: float | None, words: Sequence[str]) -> Constrain:
    """Epoch, a bar of the `part` that is done, and as many words as fit into `width`, the most important ones first."""
    least, most = BAR
    kept = list(words)
    while len(kept) > 1 and EPOCH_WIDTH + 2 + least + 2 + len("  ".join(kept)) > width:
        kept.pop()
    bars = [ProgressBar(total=1, completed=part)] if part is not None else []
    line = Table.grid(Column(width=EPOCH_WIDTH, justify="right"), padding=(0, 2, 0, 0))
    for _ in bars:
        line.add_column(min_width=least, max_width=most)
    line.add_column(no_wrap=True, overflow="crop")
    line.add_row(epoch, *bars, "  ".join(kept))
    return Constrain(line, width)


class Console(L.Callback):
    """Only rank 0 prints. Reads no tensor between epochs, so that it never makes a GPU wait.

    A thread that looks at the record reports the progress between two epochs: also of a step that compiles, or waits
    for its data, and the steps themselves do nothing for it.
    """

    def __init__(self, record: Record, metrics: Sequence[str], first: str, *, is_cell: bool = False) -> None:
        """`metrics` are the names of the columns, none where the first epoch shows them; `first` always has a column.

        `is_cell` is true where a notebook shows the output.
        """
        self._record = record
        self._out = terminal()
        self._metrics = metrics
        self._first = first
        self._columns: tuple[tuple[str, str, int], ...] = ()
        self._live: Live | None = None
        self._is_cell = is_cell
        self._num_letters = 0  # of the line that is rewritten in a cell
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()
        self._printed = time.monotonic()  # when the last line of a log was
        self._pause_s = FIRST_S

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the heads of the columns, and start to show the progress."""
        if not trainer.is_global_zero:
            return
        if self._metrics:
            self._begin_table(self._metrics)
        self._begin(trainer)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Print the line of the epoch, which stays."""
        if not trainer.is_global_zero:
            return
        if self._live is not None:
            self._live.update("", refresh=True)
        self._rewrite("")
        metrics = metrics_of(trainer, pl_module)
        if not self._columns:
            self._begin_table([*metrics])
        left, rate = self._record.left_s(trainer), self._record.images_per_s
        cells = {name: _narrow(value) for name, value in metrics.items()}
        cells |= {"images/s": f"{rate:,.0f}" if rate else "-", "left": duration(left) if left is not None else "-"}
        cells |= {"time": duration(self._record.epoch_times_s[-1])}
        line = "".join(f"{cells.get(name, '-'):>{wide}}" for name, _, wide in self._columns)
        self._out.print(f"{_epoch(trainer):>{EPOCH_WIDTH}}{line}", soft_wrap=True)
        self._printed = time.monotonic()

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end()

    @override
    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            self._begin(trainer)

    @override
    def on_test_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end()

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self._end()

    def _begin_table(self, metrics: Sequence[str]) -> None:
        self._columns = columns_for(self._out.width, metrics, self._first)
        heads = "".join(f"{head:>{wide}}" for _, head, wide in self._columns)
        self._out.print(Text(f"{'epoch':>{EPOCH_WIDTH}}{heads}", style="bold"))

    def _begin(self, trainer: L.Trainer) -> None:
        self._printed = time.monotonic()
        if self._out.is_terminal:
            self._live = Live(console=self._out, auto_refresh=False, transient=True)
            self._live.start()
        every_s = REFRESH_S if self._live else CELL_S if self._is_cell else min(FIRST_S, EVERY_S) / 10
        self._is_over.clear()
        self._thread = threading.Thread(target=self._watch, args=(trainer, every_s), daemon=True, name="console")
        self._thread.start()

    def _watch(self, trainer: L.Trainer, every_s: float) -> None:
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
        self._rewrite("")

    def _rewrite(self, text: str) -> None:
        """Replace the last text by this one, in a cell."""
        if self._is_cell and (text or self._num_letters):
            end = "" if text else "\r"
            print(f"\r{text:<{self._num_letters}}", end=end, file=self._out.file, flush=True)
            self._num_letters = len(text)

    def _show(self, trainer: L.Trainer) -> None:
        """Refresh the live line; in a log, print a line where it is time."""
        now = time.monotonic()
        part, words = self._progress(trainer, now)
        if self._live is not None:
            width = self._out.width - 2  # the terminal prints ^C behind it
            self._live.update(live_line(width, _epoch(trainer), part, words), refresh=True)
        elif self._is_cell:
            self._rewrite(plain(live_line(self._out.width, _epoch(trainer), part, words)).plain)
        elif now - self._printed >= self._pause_s:
            self._out.print(f"{_epoch(trainer):>{EPOCH_WIDTH}}  {', '.join(words)}", soft_wrap=True)
            self._printed, self._pause_s = now, EVERY_S

    def _progress(self, trainer: L.Trainer, now: float) -> tuple[float | None, list[str]]:
        """The part of the epoch, or of its evaluation, that is done, and words, the most important first."""
        phase, pace = self._record.phase, self._record.pace
        if phase.name != "training":
            so_far = f"{duration(now - phase.since)} so far"
            if not phase.num_batches:
                return None, [f"{phase.name}, {so_far}"]
            return phase.num_done / phase.num_batches, [f"{phase.name} {phase.num_done}/{phase.num_batches}", so_far]
        words = [f"step {pace.num_done}/{pace.num_batches}"]
        epoch_left, left = pace.epoch_left_s(now), self._record.left_s(trainer)
        words += [f"{duration(epoch_left)} left"] if epoch_left is not None else []
        words += [f"{pace.images_per_s:,.0f} images/s"] if pace.images_per_s else []
        is_last_epoch = trainer.current_epoch + 1 >= (trainer.max_epochs or 0)
        words += [f"in all {duration(left)} left"] if left is not None and not is_last_epoch else []
        return pace.num_done / max(1, pace.num_batches), words


def _narrow(value: float) -> str:
    """A metric that leaves a gap in its column."""
    text = measure(value)
    return text if len(text) < LEAST_WIDTH else f"{value:.4g}"


def _epoch(trainer: L.Trainer) -> str:
    max_epochs = trainer.max_epochs or 0
    return f"{min(trainer.current_epoch + 1, max_epochs)}/{max_epochs}"
