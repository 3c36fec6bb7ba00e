"""`lockstep jobs`: what was submitted, from any shell and on any day; the records are in the run folders."""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lockstep.cluster import following, jobs, record, scheduler
from lockstep.cluster.following import explained
from lockstep.cluster.jobs import Job
from lockstep.monitoring import cells, pruning
from lockstep.runs.discovery import DiscoveredRun
from lockstep.runs.files import to_json
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from lockstep.runs.naming import TRUSTING, quoted, resuming, shown
from lockstep.system import output
from lockstep.system.redaction import redacted
from lockstep.system.terminal import duration, new_table, print_table, printable, show_table, terminal
from lockstep.system.wording import plural

WATCH_EVERY_S = 2.0
NAMES = "id of a job or an array, run folder, or latest"
EPILOG = "Names are ids such as 17, 17_3 (of an array: 17) and local-3fa9c1, run folders, or latest."


def run(words: Sequence[str]) -> int:
    """Run a `lockstep jobs` command. Returns its exit code. Raises ValueError where that is not possible."""
    arguments = _parser().parse_args(words)
    if not all([arguments.folder, *arguments.names]):
        raise ValueError("a name is empty, perhaps a variable that is not set: give an id, a run folder, or latest.")
    if arguments.folder != "outputs" and not Path(arguments.folder).is_dir():
        raise ValueError(f"--folder {arguments.folder} is no folder: give one that holds runs.")
    return arguments.function(_chosen(arguments), arguments)


def _chosen(arguments: argparse.Namespace) -> list[Job]:
    """The jobs of a command, as they are now."""
    only_looks = arguments.function in (_list, _show, following.result)
    roots = [Path(arguments.folder), *(Path(name) for name in arguments.names if Path(name).is_dir())]
    found = jobs.below(roots, may_be_silent=only_looks)
    if arguments.names or arguments.function != _list:
        found = jobs.chosen(found, arguments.names or ["latest"])
    if not only_looks:
        jobs.need_certain(found)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep jobs", description="Jobs: runs that were submitted.", epilog=EPILOG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[list[Job], argparse.Namespace], int], text: str, *, names: str = "*"
    ) -> argparse.ArgumentParser:
        subparser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", epilog=EPILOG)
        default = "; default: all" if name == "list" else "; default: latest" if names == "*" else ""
        subparser.add_argument("names", nargs=names, metavar="job", help=NAMES + default)
        subparser.add_argument("--folder", default="outputs", help="where runs are searched; default: outputs")
        subparser.set_defaults(function=function)
        return subparser

    listed = command("list", _list, "all jobs, the newest last")
    listed.add_argument("--watch", action="store_true", help="again every two seconds until Ctrl-C")
    for subparser in (listed, command("show", _show, "all of a job, also why it waits")):
        subparser.add_argument("--json", action="store_true", help="as JSON")
    command("follow", following.follow, "what a job prints, from the start to its end; Ctrl-C leaves the job alone")
    command("wait", following.wait, "wait for the end; exit code 0 only if all runs are through")
    command("result", following.result, "summary.json of the run, a list of several")
    command("cancel", _cancel, "end jobs; what runs saves a checkpoint first", names="+")
    requeue = command("requeue", _requeue, "put jobs that have ended back into the queue, to resume", names="+")
    requeue.add_argument("--trust", action="store_true", help=TRUSTING)
    text = "remove record and run folder of jobs that have ended, after asking"
    command("delete", _delete, text, names="+").add_argument("--yes", action="store_true", help="without asking")
    return parser


# -- list and show -----------------------------------------------------------------------------------------------------


def _list(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    if arguments.watch:
        return _watch(chosen_jobs, arguments)
    if arguments.json:
        print(to_json([jobs.plain(job) for job in chosen_jobs]))
    elif not chosen_jobs:
        print("No jobs: submit a run with cluster=slurm or cluster=local, or name another --folder.", file=sys.stderr)
    else:
        out = terminal()
        print_table(_table(chosen_jobs, out), out)
    return 0


def _table(chosen_jobs: Sequence[Job], out: Console) -> Table:
    rows = [
        (
            job.id,
            cells.state(job.state),
            job.run.name,
            cells.epochs(job.facts),
            cells.best(job.facts),
            job.reason or cells.NONE,
            duration(job.scheduled.elapsed_s) if job.scheduled.elapsed_s else cells.NONE,
            job.scheduled.nodes or cells.NONE,
        )
        for job in chosen_jobs
    ]
    heads = ("job", "state", "run", "epoch", "best", "reason", "time", "nodes")
    return new_table(heads, rows, out, right=("epoch", "best", "time"), wraps=("reason",))


def _watch(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    """Draw the jobs again every two seconds, until Ctrl-C. Returns the exit code."""
    out = terminal()
    if not sys.stdout.isatty() or out.is_dumb_terminal:
        raise ValueError("--watch needs a terminal: leave it out to print the jobs once.")
    drawn: Table | str = "No jobs."
    with contextlib.suppress(KeyboardInterrupt), Live(console=out, screen=True, auto_refresh=False) as live:
        while output.is_read():
            newest = chosen_jobs[2 - out.height :]  # as many as the screen holds
            drawn = _table(newest, out) if newest else "No jobs."
            live.update(drawn, refresh=True)
            time.sleep(WATCH_EVERY_S)
            chosen_jobs = _chosen(arguments)
    out.print(drawn)
    return 0


def _show(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    if arguments.json:
        values = [jobs.plain(job) for job in chosen_jobs]
        print(to_json(values if len(values) > 1 else values[0]))
        return 0
    for job in chosen_jobs:
        _show_one(job)
    return 0


def _show_one(job: Job) -> None:
    read, scheduled, facts = job.record, job.scheduled, job.facts
    run = quoted(job.folder.path)
    set_ = {
        key: value for key, value in redacted(read.cluster).items() if value not in (None, [], "") and key != "name"
    }
    workers, gpus = plural(read.workers_per_node, "worker"), plural(read.gpus_per_node, "GPU")
    rows: list[tuple[str, str | Text]] = [
        ("state", cells.state(job.state)),
        ("reason", explained(scheduled.reason)),
        ("run", facts["state"] + (f": {facts['reason']}" if facts.get("reason") else "")),
        ("epoch", cells.epochs(facts) if "epoch" in facts else ""),
        ("best", cells.best(facts) if "best" in facts else ""),
        ("nodes", scheduled.nodes),
        ("asked for", f"{read.num_nodes} x {workers}, {gpus} a node"),
        ("settings", ", ".join(f"{key}={json.dumps(value)}" for key, value in set_.items())),
        ("time", duration(scheduled.elapsed_s) if scheduled.elapsed_s else ""),
        ("requeued", plural(scheduled.restarts, "time") if scheduled.restarts else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("submitted", f"{cells.moment(read.submitted)} on {read.host}"),
        ("earlier jobs", ", ".join(read.earlier)),
        ("log", shown(Path(read.log))),
        ("code", shown(Path(read.code))),
        ("run folder", shown(job.folder.path)),
        ("follow", f"lockstep jobs follow {job.id}" if job.is_live else ""),
        ("cancel", f"lockstep jobs cancel {job.id}" if job.is_live else ""),
        ("go on", f"lockstep jobs requeue {job.id}" if not job.is_live and job.exit_code else ""),
        ("evaluate", f"lockstep eval {run}" if job.exit_code == 0 else ""),
    ]
    show_table(f"Job {job.id}: {read.name}", rows)


# -- cancel, requeue, delete -------------------------------------------------------------------------------------------


def _cancel(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    live = [job for job in chosen_jobs if job.is_live]
    for job in chosen_jobs:
        if not job.is_live:
            print(f"Job {job.id} has ended already: {job.state}.")
    for job in live:
        record.mark(job.folder, cancelled=True)  # first, or it would be requeued
        if job.record.engine == "local":
            _end_here(job)
    submitted = [job for job in live if job.record.engine == "slurm"]
    try:
        if submitted:
            scheduler.cancel([job.id for job in submitted])
    except ValueError:
        for job in submitted:
            record.mark(job.folder, cancelled=job.record.cancelled)
        raise
    for job in live:
        if job.state == "pending":
            job.folder.update_status(reason="cancelled")
            print(f"Cancelled job {job.id} before it has begun.")
        else:
            hint = f"lockstep jobs requeue {job.id} continues it."
            print(f"Cancelled job {job.id}: it saves a checkpoint first. {hint}")
    return 0 if live else EXIT_CONFIG


def _end_here(job: Job) -> None:
    if job.record.host != socket.gethostname() or job.record.pid is None:
        job.folder.request_stop("lockstep jobs cancel")
    elif job.folder.has_job_here():  # its number is its own as long as it lives
        os.kill(job.record.pid, signal.SIGTERM)


def _requeue(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    for job in chosen_jobs:
        if job.is_live:
            raise ValueError(f"job {job.id} is {job.state}: only one that has ended can be requeued.")
        if job.exit_code == 0:
            raise ValueError(f"job {job.id} is through: train longer with {resuming(job.folder.path)}.")
        if not arguments.trust and not record.is_own(job.folder, job.record):
            what = f"job {job.id}: its code and cluster.setup are not what you submitted in {shown(job.folder.path)}"
            raise ValueError(f"{printable(what)}: requeue the job where you submitted it, or add --trust.")
    for job in chosen_jobs:
        print(f"Job {job.id} {_put_back(job)}.", flush=True)
    return 0


def _put_back(job: Job) -> str:
    """The same job while SLURM remembers it, and its count of requeues leaves room; else a new one."""
    record.mark(job.folder, cancelled=False)
    is_known = job.record.engine == "slurm" and job.id in scheduler.states([job.id])
    if is_known and job.scheduled.restarts < job.record.cluster["max_requeues"]:
        before = job.folder.read_status()
        job.folder.update_status(reason="requeued: see lockstep jobs", exit_code=None, signal=None)
        try:
            scheduler.requeue(job.id)
            return "is back in the queue"
        except ValueError:  # it remembers, but has not the script any more
            job.folder.write_status(**before)
    from lockstep.cluster import submission  # and with it pydantic and Hydra, which looking at jobs does not need

    return f"goes on as job {submission.again(job.folder, job.record).id}"


def _delete(chosen_jobs: list[Job], arguments: argparse.Namespace) -> int:
    live = [job for job in chosen_jobs if job.is_live]
    if live:
        raise ValueError(f"job {live[0].id} is {live[0].state}: lockstep jobs cancel {live[0].id} first.")
    root = Path(os.path.commonpath([job.folder.path.parent for job in chosen_jobs]))
    going = [DiscoveredRun(job.run.id, job.run.name, RunFolder(job.folder.path)) for job in chosen_jobs]
    return pruning.remove(going, root, is_sure=arguments.yes)
