"""`lockstep jobs follow`, `wait` and `result`: the log, the end and the result of a job, from any shell."""

import argparse
import codecs
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.cluster import jobs
from lockstep.cluster.jobs import Job
from lockstep.runs.files import answer, no_link, print_json
from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED
from lockstep.system import json_output, output
from lockstep.system.terminal import printable, terminal

LOOK_EVERY_S = 5.0  # between two calls of squeue
SILENT_S = 120.0  # a scheduler that does not answer for longer is an error
READ_EVERY_S = 0.2


def poll_jobs(chosen_jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Yield the same jobs again and again, at most some seconds old. Deleted ones are left out."""
    answered = looked = time.monotonic()
    while True:
        yield chosen_jobs
        time.sleep(READ_EVERY_S)
        if time.monotonic() - looked < LOOK_EVERY_S:
            continue
        try:
            chosen_jobs, answered = jobs.jobs_of(job.folder for job in chosen_jobs), time.monotonic()
        except ValueError:
            if time.monotonic() - answered > SILENT_S:
                raise
        looked = time.monotonic()


def follow(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print the log of a job until it ends. Returns its exit code. Raises ValueError for more than one job."""
    if len(chosen_jobs) > 1:
        ids = ", ".join(job.id for job in chosen_jobs)
        raise ValueError(f"follow shows one job, not {len(chosen_jobs)}: choose from {ids}.")
    job, shown_state, log, position = chosen_jobs[0], "", "", 0
    try:
        for looked in poll_jobs(chosen_jobs):
            if not output.is_read():  # the job continues
                return 0
            if not looked:
                raise ValueError(f"job {job.id} was deleted.")
            job = looked[0]
            if job.record.log != log:
                log, position = job.record.log, 0
            position = _print_from(Path(log), position)
            state = f"{job.state}: {job.scheduled.reason}" if job.scheduled.reason else job.state
            if state != shown_state and job.state != "running":
                print(printable(f"[job {job.id} {state}]"), file=sys.stderr, flush=True)
            shown_state = state
            if not job.is_live:
                return job.end_code
    except KeyboardInterrupt:
        print(f"\nJob {job.id} continues: lockstep jobs cancel {job.id} ends it.", file=sys.stderr)
    return EXIT_INTERRUPTED


def _print_from(log: Path, position: int) -> int:
    """Print the log from this byte on, without terminal commands. Returns the new position, of a whole character."""
    try:
        with open(log, "rb", opener=no_link) as file:
            file.seek(position)
            content = file.read()
    except FileNotFoundError:  # the job has not begun
        return position
    except OSError as error:
        raise ValueError(f"{log} cannot be read: {error.strerror}.") from error
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lines = decoder.decode(content).split("\r")  # of progress bars
    out = terminal().file  # which removes no \r
    out.write("\r".join(map(output.strip_commands, lines)))
    out.flush()
    return position + len(content) - len(decoder.getstate()[0])


def wait(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Wait for all jobs, and print each as it ends. Returns the first exit code that is not 0, else 0."""
    reported: set[str] = set()
    try:
        for looked in poll_jobs(chosen_jobs):
            ended = [job for job in looked if not job.is_live]
            for job in ended:
                if job.id not in reported:
                    print(f"{job.id}\t{job.state}\t{printable(job.run.name)}", flush=True)
            reported |= {job.id for job in ended}
            if len(ended) == len(looked):
                answer([jobs.job_facts(job) for job in ended])
                return next(filter(None, (job.end_code for job in ended)), 0)
    except KeyboardInterrupt:
        print("The jobs continue.", file=sys.stderr)
    return EXIT_INTERRUPTED


def result(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print the results of the jobs as JSON. Returns 1 if one has none."""
    results = [job.result for job in chosen_jobs]
    for job, summary in zip(chosen_jobs, results, strict=True):
        if summary is None:
            reason = f": {job.reason}" if job.reason else ""
            json_output.fail(printable(f"job {job.id} has no result, it is {job.state}{reason}"))
    if len(chosen_jobs) > 1:
        print_json(results)
    elif results[0] is not None:
        print_json(results[0])
    return EXIT_FAILED if None in results else 0
