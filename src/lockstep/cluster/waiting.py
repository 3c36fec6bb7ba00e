"""`lockstep jobs wait` and `result`: the end and the result of a job, from any shell."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from lockstep.cluster import jobs
from lockstep.cluster.jobs import Job
from lockstep.runs.files import print_json, print_result
from lockstep.runs.folder import EXIT_FAILED, EXIT_INTERRUPTED
from lockstep.system import json_output
from lockstep.system.terminal import printable

LOOK_EVERY_S = 5.0  # between two calls of squeue
SCHEDULER_TIMEOUT_S = 120.0  # A scheduler that does not answer for longer is an error.
READ_EVERY_S = 0.2


def poll_jobs(chosen_jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Yield the same jobs repeatedly, at most some seconds old, without deleted ones."""
    last_answer_s = last_look_s = time.monotonic()
    while True:
        yield chosen_jobs
        time.sleep(READ_EVERY_S)
        if time.monotonic() - last_look_s < LOOK_EVERY_S:
            continue
        try:
            chosen_jobs = jobs.jobs_of(job.folder for job in chosen_jobs)
            last_answer_s = time.monotonic()
        except ValueError:
            if time.monotonic() - last_answer_s > SCHEDULER_TIMEOUT_S:
                raise
        last_look_s = time.monotonic()


def wait(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Wait for all jobs, and print each as it ends.

    Returns the first exit code that is not 0, else 0.
    """
    reported_ids = set()
    try:
        for current_jobs in poll_jobs(chosen_jobs):
            ended_jobs = [job for job in current_jobs if not job.is_live]
            for job in ended_jobs:
                if job.id not in reported_ids:
                    print(f"{job.id}\t{job.state}\t{printable(job.facts['run'])}", flush=True)
            reported_ids |= {job.id for job in ended_jobs}
            if len(ended_jobs) == len(current_jobs):
                print_result([jobs.job_facts(job) for job in ended_jobs])
                return next(filter(None, (job.end_code for job in ended_jobs)), 0)
    except KeyboardInterrupt:
        print("The jobs continue.", file=sys.stderr)
    return EXIT_INTERRUPTED


def result(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Print the results of the jobs as JSON, and return 1 if one has none."""
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
