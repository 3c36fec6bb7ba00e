"""The course of a sweep: trials are started as devices come free, watched, and brought to one end."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED
from lockstep.sweeps.devices import Need
from lockstep.sweeps.ledger import Ledger, Trial
from lockstep.sweeps.pool import Pool
from lockstep.sweeps.views import View
from lockstep.system.signals import LEAVE, SignalList
from lockstep.system.wording import plural

LOOK_EVERY_S = 0.5
PRUNED = "other trials were better by now"


class Grid:
    """Trials that are known from the start, each proposed once. A search draws them as the sweep runs."""

    note = ""  # printed when they are through

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._left = list(trials)

    def proposed(self, num_free: int) -> Sequence[Trial]:
        """Trials to run: at most `num_free` where they are drawn; of a grid all, in the first call."""
        trials, self._left = self._left, []
        return trials

    def is_poor(self, trial: Trial) -> bool:
        """Whether a running trial should be pruned: none of a grid."""
        return False

    def ended(self, trial: Trial, state: str) -> None:
        """Take in the state in which a trial ended: a grid has nothing to learn from it."""


@dataclass
class Course:
    """One pass over the trials of a ledger. Changes sweep.json as it goes."""

    ledger: Ledger
    source: Grid
    pool: Pool
    view: View
    need_of: Callable[[Trial], Need]
    at_once: int
    max_failed: int | None
    task: str

    def run(self) -> int:
        """Run all trials there are. Returns the exit code of the sweep: 0, 1 failed trials, 75 stopped, 130 left."""
        flag = SignalList()
        with flag.installed():
            try:
                with self.view.live:
                    return self._run(flag.numbers)
            finally:
                self.pool.leave()  # where something has failed; else none runs any more
                self.pool.kill()

    def _run(self, received: Sequence[int]) -> int:
        queue: list[Trial] = []
        states: dict[int, str] = {}
        pruned: set[int] = set()
        stopped = ""
        while True:
            for trial, code in self.pool.ended():
                states[trial.number] = self._end(trial, code, is_pruned=trial.number in pruned)
            if received.count(signal.SIGINT) > 1 or LEAVE in received:
                self.pool.kill()
                return EXIT_INTERRUPTED
            if not stopped:
                stopped = self._why_to_stop(received, list(states.values()))
                if stopped:
                    self.pool.stop()
                    self.view.stopping(stopped)
                else:
                    queue += self.source.proposed(self.at_once - len(self.pool.running) - len(queue))
                    self._start(queue)
            if not self.pool.running and (stopped or not queue):
                break
            running = [active.trial for active in self.pool.running]
            for trial in running:
                if not stopped and trial.number not in pruned and self.source.is_poor(trial):
                    pruned.add(trial.number)
                    trial.folder.request_stop(PRUNED)
            self.view.refresh(running)
            self.pool.await_end(LOOK_EVERY_S)
        self.ledger.stop_flag.clear_stop()
        if "failed" in states.values():
            return EXIT_FAILED
        return EXIT_STOPPED if stopped or "stopped" in states.values() else 0

    def _start(self, queue: list[Trial]) -> None:
        """Start what there are devices for, the first ones first."""
        for trial in list(queue):
            if len(self.pool.running) >= self.at_once:
                return
            if self.pool.start(trial, self.need_of(trial), self.task):
                queue.remove(trial)
                self.ledger.write()
                self.view.started(trial)

    def _end(self, trial: Trial, code: int, *, is_pruned: bool) -> str:
        state = {0: "finished", EXIT_STOPPED: "pruned" if is_pruned else "stopped"}.get(code, "failed")
        if self.task != "test" and trial.state == "finished":  # killed after its summary
            state = "finished"
        if is_pruned:
            trial.folder.clear_stop()  # also where the trial was through before it saw the request
        if state == "pruned":
            trial.folder.update_status(state=state, reason=PRUNED)
        self.ledger.write()
        self.source.ended(trial, state)
        self.view.ended(trial, state)
        return state

    def _why_to_stop(self, received: Sequence[int], states: Sequence[str]) -> str:
        if received:
            return f"signal {signal.Signals(received[0]).name}"
        if self.ledger.stop_flag.stop_flag.exists():
            return f"stop flag: {self.ledger.stop_flag.stop_reason() or 'no reason given'}"
        num_failed = states.count("failed")
        if self.max_failed is not None and num_failed > self.max_failed:
            return f"{plural(num_failed, 'trial')} failed, more than sweep.max_failed={self.max_failed}"
        return ""
