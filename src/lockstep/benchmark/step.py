"""Trains with workers on several machines, as a step of srun.

The step runs in the SLURM allocation of this process.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lockstep.cluster.job import HOLD
from lockstep.runs.folder import RunFolder

# Other SLURM variables are not passed on, because srun would read them as options of a step. It
# finds their values by the number of the job.
KEPT = ("SLURM_CONF", "SLURM_JOB_ID")


def command(num_nodes: int, num_local: int) -> list[str]:
    """Return the srun command of a step with `num_local` tasks on each of `num_nodes` machines.

    The step shares all cores, GPUs and memory of the job with this process. Once the first task has
    ended, for any reason, srun kills the others after 60 s. If it killed them immediately
    (--kill-on-bad-exit=1), rank 0 might still be writing.
    """
    return [
        "srun",
        "--overlap",
        "--overcommit",
        "--cpu-bind=none",
        "--mem=0",
        "--kill-on-bad-exit=0",
        "--wait=60",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes * num_local}",
        f"--ntasks-per-node={num_local}",
    ]


def enter(words: Sequence[str]) -> NoReturn:
    """Execute `lockstep WORDS` on the first machine of the allocation.

    It replaces this process on a login node.
    """
    pty = ["--pty"] if sys.stdin.isatty() else []
    os.execvp("srun", [*command(1, 1), *pty, sys.executable, "-m", "lockstep", *words])


class Step:
    """Trains the run in a folder in the tasks of a step.

    `parent.Workers` does this on one machine.
    """

    def __init__(self, folder: RunFolder, num_nodes: int, num_local: int, *, log: Path) -> None:
        self._words = [
            *command(num_nodes, num_local),
            sys.executable,
            "-I",
            "-S",
            "-c",
            HOLD,
            sys.executable,
            "-m",
            "lockstep.launch.prepared_run",
            str(folder.path),
            "train",
        ]
        self._log = log

    def start(self, environ: Mapping[str, str]) -> None:
        variables = {
            name: environ[name]
            for name in environ
            if name in KEPT or not name.startswith(("SLURM_", "SRUN_"))
        }
        with open(self._log, "ab") as log:
            # The command srun has its own session, because the benchmark handles a Ctrl-C of the
            # terminal.
            self._process = subprocess.Popen(
                self._words,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def poll(self, timeout_s: float) -> int | None:
        """Return the exit code of the step, or None if it has not ended after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill srun, after which SLURM ends the tasks."""
        self._process.kill()
        self._process.wait()
