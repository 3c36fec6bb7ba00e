"""`lockstep jobs follow`, `wait` and `result`: the end of a job, from any shell."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.cluster import jobs
from lockstep.cluster.jobs import Job
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED
from lockstep.system import output
from lockstep.system.terminal import printable

ASK_EVERY_S = (2.0, 15.0)  # first and last pause between two questions to the scheduler
READ_EVERY_S = 0.2
# SLURM's reasons that a newcomer meets first
REASONS = {
    "Resources": "waits for free nodes",
    "Priority": "others come first",
    "BeginTime": "was requeued, starts in a moment",
    "Dependency": "waits for another job",
    "JobHeldUser": "held: scontrol release lets it go",
    "JobHeldAdmin": "held by an administrator",
    "JobArrayTaskLimit": "cluster.parallel others of the array run",
    "PartitionTimeLimit": "cluster.time_min is above what the partition allows",
    "PartitionNodeLimit": "the partition has not so many nodes",
    "ReqNodeNotAvail": "nodes are down or reserved",
    "NodeDown": "a node is down",
}


def explained(reason: str) -> str:
    """A reason of SLURM with what it means, where a newcomer meets it first."""
    meaning = REASONS.get(reason.partition(",")[0].strip("()"))
    return printable(f"{reason} ({meaning})" if meaning else reason)


class _Asking:
    """The same jobs, asked for again and again with growing pauses; what fails in between fails only if it stays."""

    def __init__(self, chosen_jobs: Sequence[Job]) -> None:
        self.jobs = list(chosen_jobs)
        self._pause, self._next, self._failed = ASK_EVERY_S[0], time.monotonic() + ASK_EVERY_S[0], 0

    def look(self) -> list[Job]:
        """The jobs as the scheduler told them at most some seconds ago."""
        if time.monotonic() < self._next:
            return self.jobs
        try:
            self.jobs, self._failed = jobs.again(self.jobs), 0
        except ValueError:
            self._failed += 1
            if self._failed == 5:
                raise
        self._pause = min(1.2 * self._pause, ASK_EVERY_S[1])
        self._next = time.monotonic() + self._pause
        return self.jobs


def follow(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print what a job prints, to its end. Returns its exit code. Raises ValueError where there is not one job."""
    if len(chosen_jobs) > 1:
        raise ValueError(
            f"follow shows one job, not {len(chosen_jobs)}: choose from {', '.join(job.id for job in chosen_jobs)}."
        )
    asking, shown_state, log, at = _Asking(chosen_jobs), "", "", 0
    try:
        while asking.look() and output.is_read():
            job = asking.jobs[0]
            if job.record.log != log:
                log, at = job.record.log, 0
            # before the log is read: what it printed last is there when it has ended
            is_live = job.is_live
            at = _print_from(Path(log), at)
            state = f"{job.state}: {explained(job.scheduled.reason)}" if job.scheduled.reason else job.state
            if state != shown_state and job.state != "running":
                print(f"[job {job.id} {state}]", file=sys.stderr, flush=True)
            shown_state = state
            if not is_live:
                return job.exit_code or 0
            time.sleep(READ_EVERY_S)
    except KeyboardInterrupt:
        print(f"\nJob {chosen_jobs[0].id} goes on: lockstep jobs cancel {chosen_jobs[0].id} ends it.", file=sys.stderr)
        return EXIT_INTERRUPTED
    if not output.is_read():  # the job goes on
        return 0
    raise ValueError(f"job {chosen_jobs[0].id} was deleted.")


def _print_from(log: Path, at: int) -> int:
    """Print what the log has from byte `at` on. Returns where it ends now."""
    try:
        with open(log, "rb") as file:
            file.seek(at)
            text = file.read()
    except FileNotFoundError:  # it has not begun
        return at
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return at + len(text)


def wait(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Wait for the end of all jobs, and name each as it ends. Returns the first exit code that is not 0, else 0."""
    asking = _Asking(chosen_jobs)
    reported: set[str] = set()
    try:
        while True:
            ended = [job for job in asking.look() if not job.is_live]
            for job in ended:
                if job.id not in reported:
                    print(f"{job.id}\t{job.state}\t{job.run.name}", flush=True)
            reported |= {job.id for job in ended}
            if len(ended) == len(asking.jobs):
                return next((job.exit_code for job in ended if job.exit_code), 0)
            time.sleep(READ_EVERY_S)
    except KeyboardInterrupt:
        print("The jobs go on.", file=sys.stderr)
        return EXIT_INTERRUPTED


def result(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print the summaries of the jobs as JSON. Returns 1 where one has none."""
    results = [job.folder.read_summary() or None for job in chosen_jobs]
    for job, result in zip(chosen_jobs, results, strict=True):
        if result is None:
            reason = f": {job.facts['reason']}" if job.facts.get("reason") else ""
            text = f"job {job.id} has no result: it is {job.state}, its run {job.facts['state']}{reason}"
            print(f"lockstep: {printable(text)}", file=sys.stderr)
    if len(chosen_jobs) > 1:
        print(to_json(results))
    elif results[0] is not None:
        print(to_json(results[0]))
    return EXIT_FAILED if None in results else 0
