"""Runs are prepared, their code is frozen, and they are handed to a scheduler, which has them from then on."""

import contextlib
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from lockstep.cluster import background, code, jobs, record, slurm
from lockstep.cluster.job import Settings
from lockstep.cluster.record import Record
from lockstep.config import build, project, slurm_rules, storage
from lockstep.config.faults import ConfigError
from lockstep.config.schema import Config
from lockstep.config.workers import Workers, resolve_workers
from lockstep.launch import runner
from lockstep.runs import naming
from lockstep.runs.files import write_atomically
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import quoted, resuming, shown
from lockstep.system.signals import Ended, SignalFlag
from lockstep.system.terminal import show_table
from lockstep.system.wording import plural


def start(config: Config, typed: Sequence[str], chosen: Path | None) -> tuple[RunFolder, int]:
    """Submit a new run. Returns its folder, whose name is fixed from now on, and the exit code."""
    if chosen is not None:
        _need_empty(chosen)
    config = build.scaled(config)
    outputs, now = Path("outputs").resolve(), datetime.now()
    if config.dry_run:
        folder = RunFolder(chosen.resolve() if chosen else naming.free_path(outputs, config.run_name, now))
        print(script(folder, config, name=config.run_name), end="")
        return folder, 0
    with in_one_piece() as flag:
        files = code.needed([config], project.root())  # a fault leaves nothing behind
        if chosen is None:
            folder = RunFolder(naming.create_path(outputs, config.run_name, now))
        else:
            chosen.mkdir(parents=True, exist_ok=True)
            folder = RunFolder(chosen.resolve())
        try:
            runner.save(folder, for_job(config), typed)
            records = submit_all([folder], [config], flag, base=folder, name=config.run_name, files=files)
        except BaseException:
            _withdraw(folder)
            if chosen is None:
                with contextlib.suppress(OSError):  # not empty: somebody else's
                    folder.path.rmdir()
                    folder.path.parent.rmdir()
            raise
    if chosen is None:
        naming.link_latest(outputs, folder.path)
    _show(folder, records[0], config)
    return folder, 0


def resume(folder: RunFolder, config: Config) -> tuple[RunFolder, int]:
    """Submit the rest of a run that has no live job, perhaps on other nodes. Returns its folder and the exit code."""
    if config.dry_run:
        print(script(folder, config, name=config.run_name), end="")
        return folder, 0
    with in_one_piece() as flag:
        files = code.needed([config], project.root())
        with runner.locked(folder):
            before = folder.config.read_text()
            storage.save(for_job(config), folder.config)
        try:
            records = submit_all([folder], [config], flag, base=folder, name=config.run_name, files=files)
        except BaseException:
            write_atomically(folder.config, before)
            raise
    _show(folder, records[0], config)
    return folder, 0


def submit_all(
    folders: Sequence[RunFolder],
    configs: Sequence[Config],
    flag: SignalFlag,
    *,
    base: RunFolder,
    name: str,
    files: Sequence[Path] | None = None,
    has_test: bool = True,
    old_code: Path | None = None,
    cwd: Path | None = None,
) -> list[Record]:
    """Submit prepared runs, several as one array of one script: what is wrong with one is no harm to the others.

    All share one copy of the code: of `files` of the project, by default all that is code; `old_code` is one that is
    there. It is in `base`, as scripts and logs are. What was saved in the folders is replaced by what the job reads.
    Jobs run in `cwd`, by default the current folder. Raises ConfigError where runs ask for different nodes, or the
    scheduler refuses, and Ended where `flag` has a signal before the scheduler is asked; then nothing is submitted.
    """
    cluster, workers = configs[0].cluster, resolve_workers(configs[0])
    if any((config.cluster, resolve_workers(config)) != (cluster, workers) for config in configs):
        raise ConfigError(["runs of one job array must have the same cluster.*, devices, num_nodes and strategy"])
    cwd, task = cwd or Path.cwd(), record.TASKS[0] if has_test else record.TASKS[1]
    with contextlib.ExitStack() as undone:
        frozen = old_code or undone.enter_context(_frozen(files or code.needed(configs, project.root()), base))
        for folder, config in zip(folders, configs, strict=True):
            storage.save(for_job(config), folder.config)
            if old_code is None:
                undone.enter_context(_reading(folder, frozen))
            undone.enter_context(_waiting(folder, config))
        if flag.received:
            ended = Ended(flag.received)
            ended.add_note("nothing was submitted")
            raise ended
        if cluster.name == "local":
            started = background.start(cluster, folders, task=task, code=frozen, cwd=cwd)
        else:
            made = slurm.executor(cluster, workers, name=name, files=base.job_files, code=frozen, cwd=cwd)
            settings = Settings(task, cluster.max_requeues, len(workers.gpus))
            started = [(job, log, None) for job, log in slurm.submit(made, folders, settings)]
        records = []
        for folder, config, (job, log, pid) in zip(folders, configs, started, strict=True):
            known = _record(folder, config, job=job, log=log, pid=pid, task=task, code=frozen, cwd=cwd)
            known.save(folder)
            records.append(known)
    return records


def _record(
    folder: RunFolder, config: Config, *, job: str, log: Path, pid: int | None, task: str, code: Path, cwd: Path
) -> Record:
    """What is kept of a run that was submitted, after the jobs it had before."""
    workers, old = resolve_workers(config), record.read(folder)
    return Record(
        id=job,
        engine=config.cluster.name,
        name=config.run_name,
        task=task,
        cluster=config.cluster.model_dump(),
        num_nodes=workers.num_nodes,
        workers_per_node=workers.num_local,
        gpus_per_node=len(workers.gpus),
        submitted=time.time(),
        log=str(log),
        code=str(code),
        cwd=str(cwd),
        host=socket.gethostname(),
        pid=pid,
        earlier=(*old.earlier, old.id) if old else (),
        inode=folder.path.stat().st_ino,
    )


def again(folder: RunFolder, job: Record) -> Record:
    """Submit the rest of a run as it was submitted before, with the code of that time. Raises ConfigError."""
    if not Path(job.code).is_dir():
        raise ConfigError([f"{job.code}, the code of job {job.id}, is gone: use {resuming(folder.path)}"])
    tree = storage.to_tree(storage.load(folder.config)) | {"cluster": dict(job.cluster)}
    config = Config.model_validate(tree)
    faults = [
        *resolve_workers(config).faults,
        *slurm_rules.faults(config),
    ]  # the rest was checked, and is that code's business
    if faults:
        raise ConfigError(faults)
    with in_one_piece() as flag:
        return submit_all(
            [folder],
            [config],
            flag,
            base=folder,
            name=job.name,
            has_test=job.task == record.TASKS[0],
            old_code=Path(job.code),
            cwd=Path(job.cwd),
        )[0]


@contextlib.contextmanager
def in_one_piece() -> Iterator[SignalFlag]:
    """Stop signals end nothing inside of the block, which does all or, asked in time, nothing.

    A second Ctrl-C raises KeyboardInterrupt, which takes back what is prepared. The block ends well with a submission.
    """
    flag = SignalFlag()
    with flag.installed():
        yield flag
    if flag.received:
        name = signal.Signals(flag.received).name
        cure = "lockstep jobs cancel takes it back"
        print(f"lockstep: {name} came too late, the job is submitted: {cure}", file=sys.stderr, flush=True)


def for_job(config: Config) -> Config:
    """What the processes of the job read: there the run is trained, by as many workers as were asked for."""
    if config.cluster.name == "none":
        return config
    trainer = config.trainer
    if config.cluster.name == "slurm":
        trainer = trainer.model_copy(update={"devices": resolve_workers(config).num_local})
    return config.model_copy(update={"trainer": trainer, "cluster": slurm_rules.without_job(config.cluster)})


def refuse_live(folder: RunFolder) -> None:
    """Raise ConfigError for a run whose job waits or runs, or may do so where SLURM cannot be asked."""
    try:
        job = jobs.of(folder)
        if job is not None:
            jobs.need_certain([job])
    except ValueError as error:
        raise ConfigError([str(error)]) from error
    if job is not None and job.is_live:
        message = f"{shown(folder.path)} has job {job.id}, {job.state}: lockstep jobs cancel {job.id} first"
        raise ConfigError([message])


def _need_empty(chosen: Path) -> None:
    """Raise ConfigError for a folder with files of somebody else: a run has all of its folder, and goes with it."""
    if RunFolder(chosen).config.exists():
        raise ConfigError([f"{chosen} holds a run already: go on with it by {resuming(chosen)}"])
    if chosen.is_dir() and any(chosen.iterdir()):
        raise ConfigError([f"hydra.run.dir={chosen} is not empty: choose a new folder, {chosen}/run for example"])


@contextlib.contextmanager
def _frozen(files: Sequence[Path], base: RunFolder) -> Iterator[Path]:
    """A copy of the code for this submission alone; without it, it goes."""
    copy = code.freeze(files, base.code, project.root())
    try:
        yield copy
    except BaseException:
        shutil.rmtree(copy, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in it
            base.code.rmdir()
        raise


@contextlib.contextmanager
def _reading(folder: RunFolder, frozen: Path) -> Iterator[None]:
    """Let the run find its modules in the copy of the code; and take that back when it was not submitted."""
    before = folder.read_project()
    project.record_copy(folder, project.root(), frozen)
    try:
        yield
    except BaseException:
        if before:
            folder.write_project(before)
        else:
            folder.project.unlink()
        raise


@contextlib.contextmanager
def _waiting(folder: RunFolder, config: Config) -> Iterator[None]:
    """Let the run say that it waits, before it can have begun; and take that back when it was not submitted.

    It is neither through nor cancelled any more: a job leaves alone what is.
    """
    before, summary, was_cancelled = folder.read_status(), folder.read_summary(), record.is_cancelled(folder)
    folder.forget_end()
    if was_cancelled:
        record.mark(folder, cancelled=False)
    reason = "submitted: see lockstep jobs"
    if before:
        folder.update_status(reason=reason, exit_code=None, signal=None)
    else:
        folder.write_status(state="not started", reason=reason, name=config.run_name)
    try:
        yield
    except BaseException:
        if before:
            folder.write_status(**before)
        else:
            folder.status_file.unlink()
        if summary:
            folder.write_summary(summary)
        if was_cancelled:
            record.mark(folder, cancelled=True)
        raise


def _withdraw(folder: RunFolder) -> None:
    """Remove what was prepared for a run that could not be submitted."""
    shutil.rmtree(folder.job_files, ignore_errors=True)
    for path in (folder.overrides, folder.project, folder.job_file, folder.job_lock, folder.status_file, folder.config):
        path.unlink(missing_ok=True)


# -- what a person sees ------------------------------------------------------------------------------------------------


def script(base: RunFolder, config: Config, *, name: str, num_runs: int = 1) -> str:
    """What would be submitted for runs in `base`, or for the one that is `base`. Nothing is written."""
    if config.cluster.name == "local":
        return background.script(config.cluster, base, record.TASKS[0], code.next_folder(base.code)) + "\n"
    paths = {"files": base.job_files, "code": code.next_folder(base.code), "cwd": Path.cwd()}
    return slurm.script(slurm.executor(config.cluster, resolve_workers(config), name=name, **paths), num_runs)


def _show(folder: RunFolder, job: Record, config: Config) -> None:
    if config.silent:
        return
    run = quoted(folder.path)
    rows = [
        ("job", job.id),
        ("workers", _described(resolve_workers(config))),
        ("run folder", shown(folder.path)),
        ("follow", f"lockstep jobs follow {job.id}"),
        ("wait", f"lockstep jobs wait {job.id}"),
        ("cancel", f"lockstep jobs cancel {job.id}"),
        ("watch", f"lockstep board --logdir {run}"),
    ]
    show_table("Submitted to SLURM" if job.engine == "slurm" else "Started in the background", rows)


def _described(workers: Workers) -> str:
    nodes = plural(workers.num_nodes, "node")
    local = plural(workers.num_local, "worker")
    local += " on it" if workers.num_nodes == 1 else " on each"
    return f"{nodes}, {local}" + (f", {plural(len(workers.gpus), 'GPU')} a node" if workers.gpus else "")
