"""The course of a sweep: starts trials as devices become free, watches them, and stops them."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, PRUNED
from lockstep.sweeps.job_pool import JobPool
from lockstep.sweeps.pool import Pool
from lockstep.sweeps.views import View
from lockstep.system.signals import LEAVE, SignalList
from lockstep.trials.ledger import Ledger, Trial

LOOK_EVERY_S = 0.5


class Grid:
    """Trials that are known from the start, each proposed once.

    A search draws trials as the sweep runs.
    """

    note = ""  # printed after the last trial

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = list(trials)

    def propose(self, num_free: int) -> Sequence[Trial]:
        """Return the next trials.

        The first call returns all of them, while a search returns at most `num_free`.
        """
        trials, self._left = self._left, []
        return trials

    def should_prune(self, trial: Trial) -> bool:
        return False

    def record_result(self, trial: Trial, state: str) -> None:
        """Do nothing, because a grid does not depend on results."""


@dataclass
class SweepLoop:
    """One pass over the trials of a ledger. It updates sweep.json as it proceeds."""

    ledger: Ledger
    source: Grid
    pool: Pool | JobPool
    view: View
    num_parallel: int
    task: str

    def run(self) -> int:
        """Run all trials, and return the exit code.

        It is 0 if all are done, 1 if trials failed, 75 if stopped, and 130 if interrupted.
        """
        flag = SignalList()
        with flag.handle_signals():
            try:
                return self._run(flag.numbers)
            except BaseException:
                self.pool.leave()
                raise
            finally:
                self.pool.kill()  # Trials run here only after a second Ctrl-C or an error.

    def _run(self, signal_numbers: Sequence[int]) -> int:
        queue, states, stop_reason = [], [], ""
        while True:
            states += [self._end(trial, code) for trial, code in self.pool.collect_ended()]
            if signal_numbers and self.pool.outlives_command:
                return EXIT_STOPPED
            if signal_numbers.count(signal.SIGINT) > 1 or LEAVE in signal_numbers:
                return EXIT_INTERRUPTED
            if not stop_reason:
                stop_reason = self.ledger.folder.stop_request()
                if signal_numbers:
                    stop_reason = f"signal {signal.Signals(signal_numbers[0]).name}"
                if stop_reason:
                    self.pool.stop()
                    self.view.report_stop(stop_reason)
                else:
                    num_free = self.num_parallel - len(self.pool.trials)
                    queue += self.source.propose(num_free - len(queue))
                    self._start(queue)
            running = self.pool.trials
            if not running and (stop_reason or not queue):
                break
            for trial in running:
                if not stop_reason and self.source.should_prune(trial):
                    trial.folder.request_stop(PRUNED)
            self.pool.await_end(LOOK_EVERY_S)
        self.ledger.folder.clear_stop()
        if "failed" in states:
            return EXIT_FAILED
        return EXIT_STOPPED if stop_reason or "stopped" in states else 0

    def _start(self, queue: list[Trial]) -> None:
        """Start the trials for which enough devices are free, in order."""
        for trial in list(queue):
            if len(self.pool.trials) >= self.num_parallel:
                return
            if self.pool.start(trial, self.task):
                queue.remove(trial)
                self.ledger.write()
                self.view.report_start(trial)

    def _end(self, trial: Trial, code: int) -> str:
        recorded_state = trial.state
        state = {0: "finished", EXIT_STOPPED: "stopped"}.get(code, "failed")
        # The trial was pruned, or killed after its summary.
        is_pruned = recorded_state == "pruned" and state == "stopped"
        if is_pruned or (recorded_state == "finished" and self.task != "test"):
            state = recorded_state
        trial.folder.clear_stop()  # The trial may have finished before it read the request.
        self.ledger.write()
        self.source.record_result(trial, state)
        self.view.report_end(trial, state)
        return state
