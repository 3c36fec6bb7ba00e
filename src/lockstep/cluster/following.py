"""`lockstep jobs follow`, `wait` and `result`: the end of a job, from any shell."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.cluster import jobs
from lockstep.cluster.jobs import Job
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED
from lockstep.system import output
from lockstep.system.terminal import printable

ASK_EVERY_S = 5.0  # between two questions to the scheduler
SILENT_S = 120.0  # one that does not answer for longer is an error
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


def _looks(chosen_jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """The same jobs again and again, as they were at most some seconds ago. Without those that were deleted."""
    answered = asked = time.monotonic()
    while True:
        yield chosen_jobs
        time.sleep(READ_EVERY_S)
        if time.monotonic() - asked < ASK_EVERY_S:
            continue
        try:
            chosen_jobs, answered = jobs.again(chosen_jobs), time.monotonic()
        except ValueError:
            if time.monotonic() - answered > SILENT_S:
                raise
        asked = time.monotonic()


def follow(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print what a job prints, to its end. Returns its exit code. Raises ValueError where there is not one job."""
    if len(chosen_jobs) > 1:
        ids = ", ".join(job.id for job in chosen_jobs)
        raise ValueError(f"follow shows one job, not {len(chosen_jobs)}: choose from {ids}.")
    job, shown_state, log, at = chosen_jobs[0], "", "", 0
    try:
        for looked in _looks(chosen_jobs):
            if not output.is_read():  # the job continues
                return 0
            if not looked:
                raise ValueError(f"job {job.id} was deleted.")
            job = looked[0]
            if job.record.log != log:
                log, at = job.record.log, 0
            at = _print_from(Path(log), at)
            state = f"{job.state}: {explained(job.scheduled.reason)}" if job.scheduled.reason else job.state
            if state != shown_state and job.state != "running":
                print(f"[job {job.id} {state}]", file=sys.stderr, flush=True)
            shown_state = state
            if not job.is_live:
                return job.exit_code or 0
    except KeyboardInterrupt:
        print(f"\nJob {job.id} continues: lockstep jobs cancel {job.id} ends it.", file=sys.stderr)
    return EXIT_INTERRUPTED


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
    reported: set[str] = set()
    try:
        for looked in _looks(chosen_jobs):
            ended = [job for job in looked if not job.is_live]
            for job in ended:
                if job.id not in reported:
                    print(f"{job.id}\t{job.state}\t{job.run.name}", flush=True)
            reported |= {job.id for job in ended}
            if len(ended) == len(looked):
                return next((job.exit_code for job in ended if job.exit_code), 0)
    except KeyboardInterrupt:
        print("The jobs continue.", file=sys.stderr)
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
