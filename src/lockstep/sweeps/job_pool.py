"""The jobs of the trials of a search.

They outlive the command, and the same command adopts them.
"""

import contextlib
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.cluster import jobs, submission
from lockstep.cluster.record import JobRecord
from lockstep.cluster.waiting import LOOK_EVERY_S
from lockstep.config.schema.configuration import Config
from lockstep.runs.folder import ENDED_STATES, EXIT_FAILED, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import quote_path, training_command
from lockstep.system.redaction import redact
from lockstep.system.text import plural
from lockstep.trials.ledger import Ledger, Trial


@dataclass
class JobPool:
    """Runs a job for each trial, with the interface of `Pool`.

    A requeued job counts as running. `configs` and `live_jobs` are by number.
    """

    ledger: Ledger
    configs: Mapping[int, Config]
    live_jobs: Mapping[int, jobs.Job]
    trials: list[Trial] = field(default_factory=list)
    outlives_command = True
    _code: Path | None = None  # one copy for all jobs of this command
    _next_look = 0.0
    _last_error = ""
    _is_stopping = False

    def start(self, trial: Trial, task: str) -> bool:
        """Submit a trial, unless its job is live.

        Raises ConfigError if SLURM rejects it, while live jobs continue.
        """
        job = self.live_jobs.get(trial.number)
        trial.device = f"job {(job.record if job is not None else self._submit(trial, task)).id}"
        self.trials.append(trial)
        return True

    def _submit(self, trial: Trial, task: str) -> JobRecord:
        config = self.configs[trial.number]
        (record,) = submission.submit_all(
            [(trial.folder, config)],
            submission.Work(config.run_name, task),
            base=self.ledger.folder,
            old_code=self._code,
        )
        self._code = Path(record.code)
        return record

    def collect_ended(self) -> list[tuple[Trial, int]]:
        """Return the trials whose jobs have ended, with exit codes.

        The list is empty if the last look was less than `LOOK_EVERY_S` ago.
        """
        if not self.trials or time.monotonic() < self._next_look:
            return []
        try:
            jobs_by_folder = {
                job.folder: job for job in jobs.jobs_of(trial.folder for trial in self.trials)
            }
            live_jobs = {folder: job for folder, job in jobs_by_folder.items() if job.is_live}
            if self._is_stopping:
                jobs.stop(list(live_jobs.values()), "the search was stopped")
            self._is_stopping = False
        except ValueError as error:
            if str(error) != self._last_error:  # The same error is printed once in a row.
                print(
                    f"{error} The search waits until SLURM responds; its jobs continue.",
                    file=sys.stderr,
                    flush=True,
                )
            self._last_error = str(error)
            return []
        finally:
            self._next_look = time.monotonic() + LOOK_EVERY_S
        ended_trials = [trial for trial in self.trials if trial.folder not in live_jobs]
        self.trials = [trial for trial in self.trials if trial.folder in live_jobs]
        return [
            (trial, _end(trial.folder, jobs_by_folder.get(trial.folder))) for trial in ended_trials
        ]

    def await_end(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def stop(self) -> None:
        """Make the next look cancel pending jobs, and stop the others with a checkpoint."""
        self._is_stopping, self._next_look = True, 0.0

    def leave(self) -> None:
        """Let the jobs continue."""

    def kill(self) -> None:
        """Let the jobs continue."""


def remaining_text(ledger: Ledger, num_live: int, arguments: Sequence[str]) -> str:
    """Describe the jobs that continue without the command, with the commands for them."""
    return "\n  ".join(
        [
            f"{plural(num_live, 'job')} of the search continue. Resume the command, "
            "or stop all trials:",
            f"{training_command()} {shlex.join(redact(arguments))}",
            f"lockstep stop {quote_path(ledger.path)}",
        ]
    )


def _end(folder: RunFolder, job: jobs.Job | None) -> int:
    """Return the exit code of a job that has ended.

    Also record an end that its run could not record itself.
    """
    if job is None:  # Its folder was removed.
        return EXIT_FAILED
    code = EXIT_STOPPED if job.state == "cancelled" else job.end_code
    if job.facts["state"] not in ENDED_STATES:
        reason = f"job {job.id} ended without a report of its run: {job.state}"
        with contextlib.suppress(OSError):  # The folder may be gone or read-only.
            if code != EXIT_STOPPED:
                folder.record_failure(f"{reason}\n")
            folder.update_status(
                state="stopped" if code == EXIT_STOPPED else "failed", reason=reason
            )
    return code
