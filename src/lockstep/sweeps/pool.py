"""The processes of trials: one each, on devices of its own, in good order to its end."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from lockstep.launch import forking
from lockstep.launch.forking import HAS_FORK
from lockstep.runs import vitals
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, LIVE_STATES
from lockstep.sweeps.devices import Devices, Need, Share
from lockstep.sweeps.fork_server import Forked, ForkServer
from lockstep.sweeps.ledger import Trial

LEAVE_S = 30.0  # for trials to save, when the sweep itself has failed
LOG = "output.log"  # what a trial says, in its run folder
SLOW = "Each trial on GPUs imports torch anew: what is imported has started CUDA, which then works in no fork."


@dataclass
class Running:
    """A trial that runs."""

    trial: Trial
    share: Share
    process: subprocess.Popen[bytes] | Forked


class Pool:
    """Trials side by side. A trial that ends, however it ends, gives its devices back.

    `say` shows a line to a person.
    """

    def __init__(self, devices: Devices, *, say: Callable[[str], None]) -> None:
        self._devices = devices
        self._say = say
        self._is_slow_told = False
        self._fork_server = ForkServer()
        self.running: list[Running] = []

    def start(self, trial: Trial, wanted: Need, task: str) -> bool:
        """Start a task of `lockstep.launch.runner` on a trial. False while too few devices are free, or too early."""
        if HAS_FORK and not self._fork_server.is_ready():
            return False
        is_forked = HAS_FORK and (not wanted.gpus or self._fork_server.serves_gpus)
        if HAS_FORK and not is_forked and not self._is_slow_told:
            self._is_slow_told = True
            self._say(SLOW)
        share = self._devices.take(wanted)
        if share is None:
            return False
        trial.device = share.label
        environ, log = environ_of(share, os.environ), trial.folder.path / LOG
        try:
            if is_forked:
                process = self._fork_server.start(trial.folder.path, task, share.cores, environ, log)
            else:
                process = _fresh(trial.folder.path, task, environ, log)
        except BaseException:
            self._devices.give_back(share)
            raise
        self.running.append(Running(trial, share, process))
        return True

    def ended(self) -> list[tuple[Trial, int]]:
        """The trials that have ended since the last call, with their exit codes; their devices are free."""
        ended = [(active, code) for active in self.running if (code := active.process.poll()) is not None]
        for active, code in ended:
            self.running.remove(active)
            self._devices.give_back(active.share)
            with contextlib.suppress(OSError, ValueError):  # the folder of the trial is gone, or not ours to write
                _account_for(active.trial, code)
        return [(active.trial, code) for active, code in ended]

    def await_end(self, most_s: float) -> None:
        """Sleep for `most_s`, or until a trial that was forked has ended."""
        processes = [active.process for active in self.running]
        connection.wait([process.sentinel for process in processes if isinstance(process, Forked)], most_s)

    def stop(self) -> None:
        """Ask all trials to stop in good order."""
        for active in self.running:
            active.process.send_signal(signal.SIGTERM)

    def leave(self) -> None:
        """Stop all trials in good order, and wait for their ends; not for ever."""
        self.stop()
        deadline = time.monotonic() + LEAVE_S
        while time.monotonic() < deadline and any(active.process.poll() is None for active in self.running):
            time.sleep(0.1)

    def kill(self) -> None:
        """End all trials at once; their workers die with them."""
        for active in self.running:
            active.process.kill()
        for active in self.running:
            active.process.wait()


def _fresh(folder: Path, task: str, environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    words = ["lockstep.launch.runner", str(folder), "--task", task, "--parent", str(os.getpid())]
    return forking.start(words, environ, log=log)


def environ_of(share: Share, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a trial: the GPUs it may see, and threads for its cores."""
    variables = dict(environ)
    if share.gpus and not share.is_named:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(share.gpus)
    elif not share.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    variables.setdefault("OMP_NUM_THREADS", str(share.num_threads))
    return variables


def _account_for(trial: Trial, code: int) -> None:
    """Write down the end of a trial that could not do so itself."""
    if code in (0, EXIT_STOPPED):
        return
    folder = trial.folder
    text = f"the process of the trial left with code {code or EXIT_FAILED}\n"
    if code < 0:
        text = vitals.end_of(folder, 0, "the process of the trial", code)
        vitals.forget(folder, 0)
    folder.record_failure(text)
    status = folder.read_status()
    if not status or status.get("state") in (*LIVE_STATES, "no signal"):
        folder.update_status(state="failed", reason=text.splitlines()[0])
