"""The processes of trials: one for each, on its devices."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from lockstep.launch import child, prepared_run
from lockstep.runs import heartbeat
from lockstep.runs.folder import EXIT_STOPPED, LIVE_STATES, RunFolder
from lockstep.sweeps.devices import Devices, DeviceSlot, Need
from lockstep.trials.ledger import Trial

LEAVE_S = 30.0  # time for trials to save if the sweep itself fails
LOG = "output.log"  # the output of a trial, in its run folder


class Running(NamedTuple):
    """A running trial."""

    trial: Trial
    slot: DeviceSlot
    process: BaseProcess


@dataclass
class Pool:
    """Runs trials in parallel. The devices of a trial are free when it ends, for any reason."""

    devices: Devices
    need_of: Callable[[Trial], Need]
    running: list[Running] = field(default_factory=list)
    outlives_command = False

    @property
    def trials(self) -> list[Trial]:
        return [active.trial for active in self.running]

    def start(self, trial: Trial, task: str) -> bool:
        """Start a task of `lockstep.launch.prepared_run` on a trial.

        Returns False while too few devices are free.
        """
        slot = self.devices.take(self.need_of(trial))
        if slot is None:
            return False
        trial.device = slot.label
        process = child.start(
            partial(prepared_run.run_prepared, trial.folder.path, task, is_worker=True),
            environ_of(slot, os.environ),
            log=trial.folder.path / LOG,
            cores=slot.cores,
        )
        self.running.append(Running(trial, slot, process))
        return True

    def collect_ended(self) -> list[tuple[Trial, int]]:
        """Return the trials that have ended since the last call, with their exit codes.

        Their devices become free.
        """
        ended = []
        for active in list(self.running):
            code = active.process.exitcode
            if code is not None:
                self.running.remove(active)
                self.devices.used_slots.remove(active.slot)
                # The folder of the trial may be gone or read-only.
                with contextlib.suppress(OSError, ValueError):
                    _record_end(active.trial.folder, code)
                ended.append((active.trial, code))
        return ended

    def await_end(self, timeout_s: float) -> None:
        """Sleep for `timeout_s`, or until a trial has ended."""
        connection.wait([active.process.sentinel for active in self.running], timeout_s)

    def stop(self) -> None:
        for active in self.running:
            active.process.terminate()

    def leave(self) -> None:
        """Stop all trials with a checkpoint, and wait at most LEAVE_S for their ends."""
        self.stop()
        deadline = time.monotonic() + LEAVE_S
        for active in self.running:
            active.process.join(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End all trials immediately. Their workers die with them."""
        for active in self.running:
            active.process.kill()
        for active in self.running:
            active.process.join()


def environ_of(slot: DeviceSlot, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial: the GPUs that are visible, and threads for its cores."""
    variables = dict(environ)
    if not slot.is_named:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
    variables.setdefault("OMP_NUM_THREADS", str(slot.num_threads))
    return variables


def _record_end(folder: RunFolder, code: int) -> None:
    """Record the failure of a trial that could not do so itself."""
    if code in (0, EXIT_STOPPED):
        return
    report = f"the process of the trial exited with code {code}\n"
    if code < 0:
        report = heartbeat.end_of(folder, 0, "the process of the trial", code)
        heartbeat.forget(folder, 0)
    folder.record_failure(report)
    status = folder.read_status()
    if not status or status.get("state") in (*LIVE_STATES, "no signal"):
        folder.update_status(state="failed", reason=report.splitlines()[0])
