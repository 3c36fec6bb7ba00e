"""What SLURM knows of jobs, by its command-line tools, none of which may hang or fail unseen.

By text, not `--json`: its fields differ between versions, and SLURM 22.05 lists there the jobs of all users.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# variables that add options to the tools, such as a filter or a question
OPTIONS = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")
TIMEOUT_S = 30.0  # SLURM's own tools try again for some seconds
# with a separator and no width nothing is cut
QUEUE = "JobArrayID:|,State:|,Reason:|,NodeList:|,TimeUsed:|,exit_code:|,restartcnt:|"
ACCOUNTS = "JobID,State,NodeList,Elapsed,ExitCode"
LIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "SIGNALING", "STAGE_OUT"),
    *("RESIZING", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "REVOKED"),
}


class Scheduled(NamedTuple):
    """A job as SLURM has it: `state` is SLURM's word in small letters, `exit_code` is 0 before the end.

    `elapsed_s` is None where nobody knows it.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    elapsed_s: float | None = None
    exit_code: int = 0
    restarts: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the job waits, runs, or is about to do so again."""
        return self.state.upper() in LIVE


def is_here() -> bool:
    """Whether this machine has the tools of SLURM."""
    return shutil.which("squeue") is not None


def states(ids: Iterable[str]) -> dict[str, Scheduled]:
    """What SLURM knows of jobs such as 17 or 17_3; those it has forgotten are left out.

    The controller has all that waits or runs, and what ended some minutes ago; the data base, where there is one, the
    others.
    """
    wanted, known = set(ids), dict[str, Scheduled]()
    squeue = ("squeue", "--array", "--states=all", f"--Format={QUEUE}")
    for job, state, reason, nodes, elapsed, status, restarts, *_ in _rows(squeue, wanted, unless="Invalid job id"):
        state = "SUSPENDED" if state == "STOPPED" else state  # to us a run is stopped that has saved and ended
        reason = "" if reason == "None" else reason
        ended = int(status or 0)
        code = ended >> 8 or _code_of(ended & 127)
        known[job] = Scheduled(state.lower(), reason, nodes, seconds(elapsed), code, int(restarts or 0))
    sacct = ("sacct", "--allocations", "--parsable2", f"--format={ACCOUNTS}")
    for job, state, nodes, elapsed, codes in _rows(sacct, wanted - known.keys(), unless="storage is disabled"):
        word = state.partition(" ")[0]  # "CANCELLED by 1000"
        code, number = map(int, codes.split(":"))
        known.setdefault(job, Scheduled(word.lower(), "", nodes, seconds(elapsed), code or _code_of(number)))
    return {job: known[job] for job in wanted & known.keys()}


def seconds(text: str) -> float | None:
    """A time of squeue or sacct, such as 3-04:00:01 or 0:07, in seconds; None for what is no time."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){1,2}", text):
        return None
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = [0, *map(int, clock.split(":"))][-3:]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest)


def _code_of(number: int) -> int:
    """The exit code of a process that a signal has ended, as a shell reports it; 0 without a signal."""
    return 128 + number if number else 0


def cancel(jobs: Sequence[str]) -> None:
    """End jobs; what runs gets SIGTERM and time to save."""
    _call("scancel", *jobs)


def requeue(job: str) -> None:
    """Put a job that has ended back into the queue. Raises ValueError where SLURM refuses."""
    _call("scontrol", "requeue", job)


def _rows(words: Sequence[str], jobs: set[str], *, unless: str) -> Iterator[list[str]]:
    """The fields that a tool prints of jobs, and of others of the same arrays; none where its error says `unless`."""
    if jobs:
        numbers = ",".join(sorted({job.partition("_")[0] for job in jobs}))
        for line in _call(*words, "--noheader", f"--jobs={numbers}", unless=unless).splitlines():
            yield line.split("|")


def _call(*words: str, unless: str | None = None) -> str:
    """What a tool prints. Raises ValueError where it does not answer, or fails, unless its error says `unless`."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OPTIONS)}
    try:
        done = subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except FileNotFoundError:
        raise ValueError(f"{words[0]} is not on this machine: ask where SLURM is, such as on a login node.") from None
    except subprocess.TimeoutExpired:
        message = f"{words[0]} did not answer within {TIMEOUT_S:g} s: SLURM is busy or down, try again later."
        raise ValueError(message) from None
    if done.returncode and (unless is None or unless not in done.stderr):
        text = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines())
        raise ValueError(f"{words[0]} failed: {text or f'exit code {done.returncode}'}")
    return done.stdout
