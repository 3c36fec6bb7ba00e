"""`lockstep.sweep` and `lockstep.submit`: sweeps and jobs from Python."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.cluster import jobs, request, waiting
from lockstep.config.errors import config_error
from lockstep.config.schema.configuration import Config
from lockstep.python import configuration
from lockstep.python.run import Run
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from lockstep.system.processes import restricted_umask
from lockstep.system.redaction import redact
from lockstep.trials import ledger
from lockstep.trials.ledger import Ledger
from lockstep.trials.table import present_table, table_facts


class Sweep(NamedTuple):
    """The trials of a sweep, the best setting first.

    `rows` has a dictionary for each trial, with settings, state and results. Seeds or folds of one
    setting are adjacent.
    """

    path: Path
    rows: list[dict[str, Any]]
    trials: list[Run]


@dataclass(frozen=True)
class Job:
    """A job by the folder of its run, or of its sweep."""

    path: Path

    def _look(self) -> jobs.Job:
        for job in jobs.jobs_of([RunFolder(self.path)]):
            return job
        raise FileNotFoundError(f"{self.path} has no job: it was deleted, or never submitted.")

    @property
    def id(self) -> str:
        """Its id in `lockstep jobs`, such as 17, 17_3 or local-3fa9c1."""
        return self._look().id

    @property
    def state(self) -> str:
        """Its state: pending, running, completed, failed, cancelled, ..., as in `lockstep jobs`."""
        return self._look().state

    def wait(self) -> str:
        """Wait for the end, and return the state."""
        looks = (
            polled_jobs[0] if polled_jobs else self._look()
            for polled_jobs in waiting.poll_jobs([self._look()])
        )
        return next(job.state for job in looks if not job.is_live)

    def result(self) -> dict[str, Any]:
        """Wait for the end, and return the result.

        The result is summary.json of a run, or table.json of a sweep. Raises RuntimeError without
        one.
        """
        state = self.wait()
        if (summary := self._look().result) is None:
            raise RuntimeError(
                f"job {self.id} has no result, it is {state}: see lockstep jobs show {self.id}"
            )
        return summary

    def cancel(self) -> None:
        """Cancel the job. A running one saves a checkpoint first."""
        if (job := self._look()).is_live:
            jobs.cancel([job])


def sweep(overrides: Sequence[str]) -> Sweep:
    """Run a sweep or a search, and return its trials.

    `overrides` are those of `python train.py -m`, for example `["seed=0,1"]`. It prints as the
    command does, and the same call resumes it. The table has failed and stopped trials, too. An
    interrupt stops all trials with a checkpoint and raises KeyboardInterrupt. Raises ConfigError
    for wrong settings.
    """
    overrides = configuration.readable(overrides)
    config = configuration.check_sweep(overrides)
    if config.cluster.name != "none" and (config.search is None or config.cluster.name == "local"):
        raise config_error(
            "conflict",
            f"cluster={config.cluster.name}",
            "submits the trials",
            "use lockstep.submit",
        )
    ledger = _start_sweep(overrides, config)
    rows = table_facts(ledger, present_table(ledger))["trials"]
    return Sweep(ledger.path, rows, [Run(row["folder"]) for row in rows])


@restricted_umask()
def submit(overrides: Sequence[str]) -> list[Job]:
    """Submit a run, or all trials of a sweep for several values, and return the jobs.

    The jobs use cluster=slurm or local. A sweep with cluster=local is one job. Raises ConfigError
    for wrong settings, or if SLURM rejects the jobs.
    """
    overrides = configuration.readable(overrides)
    if not configuration.is_sweep(overrides):
        return [
            Job(
                request.start(
                    configuration.check_request(overrides, is_trusted=False, is_submitted=True)
                )[0].path
            )
        ]
    config = configuration.check_sweep(overrides)
    if config.cluster.name == "none" or (
        config.search is not None and config.cluster.name == "slurm"
    ):
        raise config_error(
            "conflict",
            f"cluster={config.cluster.name}",
            "needs the command of a sweep",
            "use lockstep.sweep",
        )
    ledger = _start_sweep(overrides, config)
    trials = [trial.folder.path for trial in ledger.trials]
    folders = [ledger.path] if config.cluster.name == "local" else trials
    return [Job(folder) for folder in folders if RunFolder(folder).job_file.exists()]


def _start_sweep(overrides: Sequence[str], config: Config) -> Ledger:
    """Run the command of a sweep, and return its trials.

    Raises ConfigError if the command rejects its settings.
    """
    # The command has its own session, because otherwise Ctrl-C would reach it twice, which aborts
    # it.
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", "train", "-m", *overrides],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    path = ledger.find(
        Path("outputs"), config.sweep.name, redact(ledger.sweep_overrides(overrides))
    )
    if code == EXIT_CONFIG or path is None:
        raise config_error("failed", "", "the sweep did not start", "its errors are printed above")
    return Ledger.open(path.resolve())
