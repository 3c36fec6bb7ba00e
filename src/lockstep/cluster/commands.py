"""`lockstep jobs`: lists and controls submitted runs, from any shell.

The records are in the run folders.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from lockstep.cluster import jobs, waiting
from lockstep.cluster.jobs import Job
from lockstep.monitoring import formatting
from lockstep.runs import permissions
from lockstep.runs.files import print_json, print_result
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.runs.naming import ADOPT_HINT, TRUST_HELP, display_path, quote_path, resume_override
from lockstep.system import json_output
from lockstep.system.parser import CommandParser
from lockstep.system.redaction import redact
from lockstep.system.terminal import (
    duration,
    new_table,
    print_table,
    printable,
    show_table,
    terminal,
)
from lockstep.system.text import plural

NAMES = "id of a job or an array, run folder, or latest"
EPILOG = (
    "A job is given by its id (17, 17_3 of the array 17, local-3fa9c1), its run folder, or latest."
)


def run_jobs_command(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    if not all([arguments.folder, *arguments.names]):
        raise ValueError(
            "a name is empty, perhaps an unset variable: give a job id, a run folder, or latest."
        )
    records = jobs.recorded_jobs(map(Path, [arguments.folder, *arguments.names]))
    if arguments.names or arguments.function != _list:
        records = jobs.select_jobs(records, arguments.names or ["latest"])
    is_slurm_needed = arguments.function not in (_list, _show, waiting.result)
    chosen_jobs = jobs.read_jobs(records, is_slurm_needed=is_slurm_needed)
    return arguments.function(chosen_jobs, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="lockstep jobs", description="Manage submitted runs.", epilog=EPILOG
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str,
        function: Callable[[list[Job], argparse.Namespace], int],
        help_text: str,
        *,
        default: str = "latest",
    ) -> None:
        subparser = commands.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            epilog=EPILOG,
        )
        nargs, names = ("*", f"{NAMES}; default: {default}") if default else ("+", NAMES)
        subparser.add_argument("names", nargs=nargs, metavar="job", help=names)
        subparser.add_argument(
            "--folder", default="outputs", help="where to search for runs; default: outputs"
        )
        subparser.set_defaults(function=function)

    command("list", _list, "list jobs, newest last", default="all")
    command("show", _show, "show the details of a job, and why it is waiting")
    command("wait", waiting.wait, "wait until jobs end; exit code 0 only if all runs are finished")
    command(
        "result",
        waiting.result,
        "print the result of a run or command as JSON, or a list of several",
    )
    command("cancel", _cancel, "cancel jobs; running ones save a checkpoint first", default="")
    command("requeue", _requeue, "resume the runs of ended jobs in new jobs", default="")
    commands.choices["requeue"].add_argument("--trust", action="store_true", help=TRUST_HELP)
    for subparser in commands.choices.values():
        json_output.add_option(subparser)
    return parser


def _list(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json([jobs.job_facts(job) for job in chosen_jobs])
    elif not chosen_jobs:
        print(
            "No jobs: submit a run with cluster=slurm or cluster=local, "
            "or choose another --folder.",
            file=sys.stderr,
        )
    else:
        out = terminal()
        rows = [
            (
                job.id,
                formatting.state(job.state),
                job.facts["run"],
                formatting.epochs(job.facts),
                formatting.best(job.facts),
                job.reason or formatting.NONE,
                formatting.time(job.scheduled.elapsed_s or None),
                job.scheduled.nodes or formatting.NONE,
            )
            for job in chosen_jobs
        ]
        header = ("job", "state", "run", "epoch", "best", "reason", "time", "nodes")
        right_heads = ("epoch", "best", "time")
        print_table(new_table(header, rows, out, right=right_heads, wraps=("reason",)), out)
    return 0


def _show(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    if arguments.json:
        values = [jobs.job_facts(job) for job in chosen_jobs]
        print_json(values if len(values) > 1 else values[0])
    else:
        for job in chosen_jobs:
            show_table(f"Job {job.id}: {job.record.name}", _facts(job))
    return 0


def _facts(job: Job) -> list[tuple[str, str | Text]]:
    record, scheduled, facts = job.record, job.scheduled, job.facts
    is_trained = job.exit_code == 0 and not record.command
    return [
        ("state", formatting.state(job.state)),
        ("reason", printable(job.reason)),
        ("command", shlex.join(["lockstep", *redact(record.command)]) if record.command else ""),
        ("run", facts["state"] if not record.command else ""),
        ("epoch", formatting.epochs(facts) if "epoch" in facts else ""),
        ("best", formatting.best(facts) if "best" in facts else ""),
        ("nodes", scheduled.nodes),
        ("requested", jobs.resource_text(record)),
        ("time", duration(scheduled.elapsed_s) if scheduled.elapsed_s else ""),
        ("requeued", plural(scheduled.restarts, "time") if scheduled.restarts else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("submitted", f"{formatting.moment(record.submitted)} on {record.host}"),
        ("earlier jobs", ", ".join(record.earlier)),
        ("log", display_path(Path(record.log))),
        ("code", display_path(Path(record.code))),
        ("run folder", display_path(job.folder.path)),
        ("follow", jobs.follow_command(record) if job.is_live else ""),
        ("cancel", f"lockstep jobs cancel {job.id}" if job.is_live else ""),
        (
            "resume",
            f"lockstep jobs requeue {job.id}" if job.exit_code and record.is_resumable else "",
        ),
        ("evaluate", f"lockstep eval {quote_path(job.folder.path)}" if is_trained else ""),
    ]


def _cancel(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    live_jobs = [job for job in chosen_jobs if job.is_live]
    jobs.cancel(live_jobs)
    for job in chosen_jobs:
        if not job.is_live:
            print(f"Job {job.id} has already ended: {job.state}.")
        elif job.state == "pending":
            print(f"Cancelled job {job.id} before it started.")
        else:
            hint = f" lockstep jobs requeue {job.id} resumes it." if job.record.is_resumable else ""
            print(f"Cancelled job {job.id}: it saves a checkpoint first.{hint}")
    print_result(
        [{"id": job.id, "was": job.state, "is_cancelled": job.is_live} for job in chosen_jobs]
    )
    return 0 if live_jobs else EXIT_CONFIG


def _requeue(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    # This imports pydantic and Hydra, which the other commands do not need.
    from lockstep.cluster import submission

    for job in chosen_jobs:
        if job.is_live:
            raise ValueError(
                f"job {job.id} is {job.state}: only a job that has ended can be requeued."
            )
        if not job.record.is_resumable:
            raise ValueError(f"job {job.id} is a benchmark, which is not resumed: submit it again.")
        if job.exit_code == 0:
            hint = f": train longer with {resume_override(job.folder.path)}"
            raise ValueError(f"job {job.id} is finished{'' if job.record.command else hint}.")
        permissions.need_own(job.folder, ADOPT_HINT, is_trusted=arguments.trust)
    new_jobs = []
    for job in chosen_jobs:
        job.folder.claim()
        new_id = submission.resubmit(job.folder, job.record).id
        new_jobs.append({"id": new_id, "was": job.id})
        print(f"Job {job.id} resumes as job {new_id}.", flush=True)
    print_result(new_jobs)
    return 0
