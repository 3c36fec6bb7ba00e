"""Stop all ranks at the same step, with a checkpoint from which a resume continues exactly."""

import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from lockstep.callbacks.custom_module import micro_batches
from lockstep.distributed.collectives import FlagChannel
from lockstep.system import internals
from lockstep.system.signals import SignalFlag

# The largest request of all ranks is the reason, and these are above every signal number.
REQUESTED = 1000
TIME_LIMIT = 1001
LOOK_EVERY_S = 0.2


class Stopped(Exception):
    """The run was stopped and saved before its last epoch, for `reason`.

    It was stopped by a `signal`, by a request, or by trainer.max_time_s.
    """

    def __init__(self, reason: str, signal: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.signal = signal


class StopTogether(Checkpoint):
    """Turns a request on any rank into one decision of all ranks.

    Requests are a signal on any rank, a request on rank 0, and the time limit. `requested` returns
    the text of a request, which is empty without one. Before the `checkpoint` is written,
    `stopping` is called with trainer, module and reason.

    Ranks stop after an optimizer step that is not the last of its epoch, or after the validation
    and checkpoints of the epoch. A checkpoint in between would skip that validation on resume. This
    is a subclass of Checkpoint, because Lightning calls these last.
    """

    def __init__(
        self,
        flag: SignalFlag,
        *,
        requested: Callable[[], str],
        stopping: Callable[[Trainer, LightningModule, str], None],
        checkpoint: Path,
        max_time_s: float | None,
        timeout: timedelta,
    ) -> None:
        self._flag = flag
        self._requested = requested
        self._stopping = stopping
        self._checkpoint = checkpoint
        self._max_time_s = max_time_s
        self._timeout = timeout
        self._started = time.monotonic()
        self._next_look = 0.0
        self._seen = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep our signal handlers, also during the test.

        Lightning replaces them after this hook.
        """
        internals.keep_signals(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the handlers of stop signals again, because other code may have replaced them."""
        self._started = time.monotonic()
        self._channel = FlagChannel(self._timeout)
        self._flag.install()
        internals.silence_broadcast(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Decide between two optimizer steps.

        The request of this step takes effect after the next one.
        """
        if trainer.is_last_batch or (batch_idx + 1) % micro_batches(pl_module):
            return
        request = self._channel.receive()
        if request:
            self._stop(trainer, request)
        self._channel.send(self.request(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Decide after validation. A run that is finished anyway is not stopped."""
        request = self._channel.agree(self.request(trainer))
        is_finished = trainer.should_stop or trainer.current_epoch + 1 >= (trainer.max_epochs or 0)
        if request and not is_finished:
            self._stop(trainer, request)

    def request(self, trainer: Trainer) -> int:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            if trainer.is_global_zero and self._requested():
                self._seen = REQUESTED
            elif self._max_time_s is not None and now - self._started >= self._max_time_s:
                self._seen = TIME_LIMIT
        return self._seen or self._flag.received

    def _stop(self, trainer: Trainer, request: int) -> None:
        # The reason is read before another rank can finish and remove the request.
        stopped = self.stopped(request)
        self._stopping(trainer, trainer.lightning_module, stopped.reason)
        trainer.save_checkpoint(self._checkpoint)
        raise stopped

    def stopped(self, request: int) -> Stopped:
        if request == REQUESTED:
            # The request may have been removed in the meantime.
            return Stopped(self._requested() or "requested")
        if request == TIME_LIMIT:
            # The time limit may be that of another rank.
            limit = "" if self._max_time_s is None else f", trainer.max_time_s={self._max_time_s:g}"
            return Stopped(f"time limit{limit}")
        name = signal.Signals(request).name
        return Stopped(f"signal {name}", name)
