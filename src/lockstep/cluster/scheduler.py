"""The states of SLURM jobs, from its command-line tools.

They are read from text, and not from `--json`, whose fields differ between versions. In SLURM 22.05
it also lists the jobs of all users.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# Variables with these prefixes add options to the tools, such as a filter or a question.
OPTION_VARIABLE_PREFIXES = ("SQUEUE_", "SACCT_", "SCANCEL_")
TIMEOUT_S = 30.0  # SLURM's tools retry for some seconds.
# With a separator and without a width, nothing is truncated.
QUEUE = "JobArrayID:|,State:|,Reason:|,NodeList:|,TimeUsed:|,exit_code:|,restartcnt:|"
ACCOUNTS = "JobID,State,NodeList,Elapsed,ExitCode"
LIVE = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "SIGNALING",
    "STAGE_OUT",
    "RESIZING",
    "SPECIAL_EXIT",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "REVOKED",
)


class Scheduled(NamedTuple):
    """A job in SLURM.

    `state` is SLURM's name in lower case, and `exit_code` is 0 before the end.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    elapsed_s: float | None = None  # None if it is unknown
    exit_code: int = 0
    restarts: int = 0

    @property
    def is_live(self) -> bool:
        return self.state.upper() in LIVE


def states(ids: Iterable[str]) -> dict[str, Scheduled]:
    """Return the jobs that SLURM remembers, for ids such as 17 or 17_3.

    squeue has jobs that wait, run, or ended some minutes ago. sacct has the others, if the site has
    a database. Raises ValueError if SLURM does not answer.
    """
    requested_ids, jobs = set(ids), {}
    squeue = ("squeue", "--array", "--states=all", f"--Format={QUEUE}")
    for job, state, reason, nodes, elapsed, status, restarts, *_ in _fields(
        squeue, requested_ids, "Invalid job id"
    ):
        # In Lockstep, a stopped run has saved its state and ended.
        state = "suspended" if state == "STOPPED" else state.lower()
        reason = "" if reason == "None" else reason
        wait_status = int(status or 0)
        code = _exit_code(wait_status >> 8, wait_status & 127)
        jobs[job] = Scheduled(state, reason, nodes, seconds(elapsed), code, int(restarts or 0))
    sacct = ("sacct", "--allocations", "--parsable2", f"--format={ACCOUNTS}")
    for job, state, nodes, elapsed, codes in _fields(
        sacct, requested_ids - jobs.keys(), "storage is disabled"
    ):
        state = state.partition(" ")[0].lower()  # The state can be "CANCELLED by 1000".
        code = _exit_code(*map(int, codes.split(":")))
        jobs.setdefault(job, Scheduled(state, "", nodes, seconds(elapsed), code))
    return {job: jobs[job] for job in requested_ids & jobs.keys()}


def seconds(duration: str) -> float | None:
    """Return a time of squeue or sacct, such as 3-04:00:01 or 0:07, in seconds.

    Returns None for any other text.
    """
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){1,2}", duration):
        return None
    days, _, clock = duration.rpartition("-")
    hours, minutes, num_seconds = [0, *map(int, clock.split(":"))][-3:]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + num_seconds)


def _exit_code(code: int, signal_number: int) -> int:
    """Return the exit code that shells report for a process, which a signal may have ended."""
    return 128 + signal_number if signal_number and not code else code


def _fields(command: Sequence[str], jobs: set[str], ignored_error: str) -> Iterator[list[str]]:
    """Yield the fields of jobs, and of others in the same arrays.

    There are none if the error of the tool contains `ignored_error`.
    """
    if jobs:
        numbers = ",".join(sorted({job.partition("_")[0] for job in jobs}))
        output = call(*command, "--noheader", f"--jobs={numbers}", ignored_error=ignored_error)
        for line in output.splitlines():
            yield line.split("|")


def call(*command: str, ignored_error: str | None = None) -> str:
    """Run a tool and return its output.

    Raises ValueError if it hangs or fails, unless its error contains `ignored_error`.
    """
    environ = {
        variable: value
        for variable, value in os.environ.items()
        if not variable.startswith(OPTION_VARIABLE_PREFIXES)
    }
    try:
        process = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        raise ValueError(
            f"{command[0]} is not on this machine: use a login node of the cluster."
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{command[0]} did not respond within {TIMEOUT_S:g} s: SLURM is busy or down, "
            "try again later."
        ) from None
    if process.returncode and (ignored_error is None or ignored_error not in process.stderr):
        error_text = process.stderr.strip() or process.stdout.strip()
        error_text = error_text or f"exit code {process.returncode}"
        raise ValueError(f"{command[0]} failed: {' '.join(error_text.splitlines())}")
    return process.stdout
