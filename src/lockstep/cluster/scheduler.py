"""What SLURM says of jobs, and what it is told: its command-line tools, none of which may hang or fail unseen."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# variables that add options to the tools, such as a filter or a question
OPTIONS = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")
TIMEOUT_S = 30.0  # SLURM's own tools try again for some seconds
# widths of squeue's columns: what is longer is cut there
QUEUE = {"JobArrayID": 40, "State": 20, "Reason": 80, "NodeList": 200, "TimeUsed": 20, "exit_code": 12, "restartcnt": 8}
LIVE = {
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "SIGNALING", "STAGE_OUT"),
    *("RESIZING", "SPECIAL_EXIT", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "REVOKED"),
}


class Scheduled(NamedTuple):
    """A job as SLURM has it: `state` is SLURM's word in small letters, `exit_code` is None before the end.

    `elapsed_s` is None where nobody knows it.
    """

    state: str
    reason: str = ""
    nodes: str = ""
    elapsed_s: float | None = None
    exit_code: int | None = None
    restarts: int = 0

    @property
    def is_live(self) -> bool:
        """Whether the job waits, runs, or is about to do so again."""
        return self.state.upper() in LIVE


def is_here() -> bool:
    """Whether this machine has the tools of SLURM."""
    return shutil.which("squeue") is not None


def is_told_here() -> bool:
    """Whether this process can tell SLURM anything: not so inside of most containers."""
    return shutil.which("scontrol") is not None


def call(*words: str) -> str:
    """What a tool prints. Raises ValueError where it fails or does not answer."""
    done = _run(words)
    if done.returncode:
        command = " ".join([words[0], *(word for word in words[1:3] if not word.startswith("-"))][:2])
        if done.returncode < 0:
            raise ValueError(f"{command} was ended by {signal.Signals(-done.returncode).name}")
        raise ValueError(f"{command} failed: {_said(done)}")
    return done.stdout


def states(ids: Iterable[str]) -> dict[str, Scheduled]:
    """What SLURM knows of jobs such as 17 or 17_3; those it has forgotten are not in it."""
    wanted = set(ids)
    if not wanted:
        return {}
    queued = {job: scheduled for job, scheduled in _queued(wanted).items() if job in wanted}
    return {**_accounted(wanted - queued.keys()), **queued}


def show(job: str) -> dict[str, str]:
    """What the controller says of one job: JobState, Reason, Restarts, ... Raises ValueError where it knows not one."""
    lines = [line for line in call("scontrol", "--oneliner", "show", "job", job).splitlines() if line.strip()]
    if len(lines) != 1:
        raise ValueError(f"scontrol has {len(lines)} jobs of the number {job}.")
    return dict(word.split("=", 1) for word in lines[0].split() if "=" in word)


def cancel(jobs: Sequence[str]) -> None:
    """End jobs; what runs gets SIGTERM and time to save."""
    call("scancel", *jobs)


def requeue(job: str) -> None:
    """Put a job that runs, or has ended, back into the queue. Raises ValueError where SLURM refuses."""
    call("scontrol", "requeue", job)


def _queued(wanted: set[str]) -> dict[str, Scheduled]:
    """What the controller has in memory: all that waits or runs, and what ended some minutes ago."""
    columns = ",".join(f"{name}:{width}" for name, width in QUEUE.items())
    jobs = ",".join(sorted({job.partition("_")[0] for job in wanted}))
    words = ("squeue", "--noheader", "--array", "--states=all", f"--jobs={jobs}", f"--Format={columns}")
    done = _run(words)
    if done.returncode and "Invalid job id" not in done.stderr:  # it has forgotten all of them
        raise ValueError(f"squeue failed: {_said(done)}")
    return {job: scheduled for line in done.stdout.splitlines() for job, scheduled in _queue_line(line)}


def _queue_line(line: str) -> Iterable[tuple[str, Scheduled]]:
    fields, start = [], 0
    for width in QUEUE.values():
        fields.append(line[start : start + width].strip())
        start += width
    job, state, reason, nodes, elapsed, status, restarts = fields
    state = "SUSPENDED" if state == "STOPPED" else state  # to us a run is stopped that has saved and ended
    scheduled = Scheduled(
        state.lower(),
        "" if reason == "None" else reason,
        nodes,
        seconds(elapsed),
        None if state in LIVE else _code(int(status or 0)),
        int(restarts or 0),
    )
    yield job, scheduled


def seconds(text: str) -> float | None:
    """A time of squeue or sacct, [days-[hours:]][minutes:]seconds, in seconds; None for what is no time."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", text)
    if match is None:
        return None
    parts = [int(part) for part in match[2].split(":")]
    if match[1]:  # then hours come first
        parts += [0] * (3 - len(parts))
    value = 0
    for part in parts:
        value = 60 * value + part
    return float(value + 86400 * int(match[1] or 0))


def _code(status: int) -> int:
    """The exit code of a wait status, as a shell tells it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _accounted(wanted: set[str]) -> dict[str, Scheduled]:
    """What the data base knows, where there is one. Raises ValueError where it does not answer."""
    if not wanted or shutil.which("sacct") is None:
        return {}
    jobs = ",".join(sorted({job.partition("_")[0] for job in wanted}))
    format_ = "--format=JobID,State,NodeList,Elapsed,ExitCode"
    done = _run(("sacct", "--allocations", "--noheader", "--parsable2", format_, f"--jobs={jobs}"))
    if done.returncode:
        if "accounting storage is disabled" in done.stderr:  # the run's own status has to do
            return {}
        raise ValueError(f"sacct failed: {_said(done)}")
    accounted = {}
    for line in done.stdout.splitlines():
        job, state, nodes, elapsed, code = line.split("|")[:5]
        number, _, killed = code.partition(":")
        word = re.sub(r"\W.*", "", state)  # "CANCELLED by 1000"
        exit_code = None if word in LIVE else int(number or 0) or (128 + int(killed) if int(killed or 0) else 0)
        accounted[job] = Scheduled(word.lower(), "", nodes, seconds(elapsed), exit_code)
    return {job: scheduled for job, scheduled in accounted.items() if job in wanted}


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OPTIONS)}
    try:
        return subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except FileNotFoundError:
        raise ValueError(f"{words[0]} is not on this machine: ask where SLURM is, such as on a login node.") from None
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{words[0]} did not answer within {TIMEOUT_S:g} s: SLURM is busy or down, try again later."
        ) from None


def _said(done: subprocess.CompletedProcess[str]) -> str:
    text = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines())
    return text or f"exit code {done.returncode}"
