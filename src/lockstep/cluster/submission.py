"""Runs are prepared, their code is frozen, and they are handed to a scheduler, which has them from then on."""

import contextlib
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from lockstep.cluster import background, code, jobs, record, slurm
from lockstep.cluster.job import Settings
from lockstep.cluster.record import Record
from lockstep.config import build, project, slurm_rules, storage
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.workers import Workers, resolve_workers
from lockstep.launch import runner
from lockstep.runs import naming
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import quoted, resuming, shown
from lockstep.system import signals
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import show_table
from lockstep.system.wording import plural


def interruptible() -> contextlib.AbstractContextManager[None]:
    """A block that the first stop signal ends: before the scheduler is asked, or once the id of the job is written."""
    return SignalFlag(ends=True).installed()


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
    code.needed([config], project.root())  # an error leaves not even an empty folder of the day
    with interruptible():
        if chosen is not None:
            chosen.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(chosen.resolve() if chosen else naming.create_path(outputs, config.run_name, now))
        try:
            runner.save(folder, for_job(config), typed)
            (job,) = submit_all([folder], [config], base=folder, name=config.run_name)
        except BaseException:
            if not folder.job_file.exists():  # else it is submitted
                shutil.rmtree(folder.path)
            raise
        if chosen is None:
            naming.link_latest(outputs, folder.path)
        _show(folder, job, config)
    return folder, 0


def resume(folder: RunFolder, config: Config) -> tuple[RunFolder, int]:
    """Submit the rest of a run that has no live job, perhaps on other nodes. Returns its folder and the exit code."""
    if config.dry_run:
        print(script(folder, config, name=config.run_name), end="")
        return folder, 0
    with runner.locked(folder):  # refused while another process trains it
        pass
    with interruptible():
        (job,) = submit_all([folder], [config], base=folder, name=config.run_name)
        _show(folder, job, config)
    return folder, 0


def submit_all(
    folders: Sequence[RunFolder],
    configs: Sequence[Config],
    *,
    base: RunFolder,
    name: str,
    task: str = record.TASKS[0],
    old_code: Path | None = None,
    cwd: Path | None = None,
) -> list[Record]:
    """Submit prepared runs, several as one array of one script: what is wrong with one is no harm to the others.

    All share one copy of the code in `base`, where scripts and logs are, too; `old_code` is one that is there. Jobs run
    in `cwd`, by default the current folder. Raises ConfigError where runs ask for different nodes, or the scheduler
    refuses: then the folders are as before.

    Everything is written before the scheduler is asked, but the record of the job, with its id: a folder without one is
    not submitted.
    """
    cluster, workers = configs[0].cluster, resolve_workers(configs[0])
    if any((config.cluster, resolve_workers(config)) != (cluster, workers) for config in configs):
        raise ConfigError(["runs of one job array must have the same cluster.*, devices, num_nodes and strategy"])
    cwd = cwd or Path.cwd()
    earlier = [record.read(folder) for folder in folders]
    before = {path: path.read_bytes() if path.is_file() else None for folder in folders for path in _written(folder)}
    records: list[Record] = []
    frozen = old_code
    try:
        frozen = frozen or code.freeze(code.needed(configs, project.root()), base.code, project.root())
        for folder, config in zip(folders, configs, strict=True):
            _prepare(folder, config)
            if old_code is None:
                project.record_copy(folder, project.root(), frozen)
        # a Ctrl-C of the terminal reaches sbatch, too, which may have submitted the job and not yet said its number
        with signals.blocked():
            if cluster.name == "local":
                started = background.start(cluster, folders, task=task, code=frozen, cwd=cwd)
            else:
                made = slurm.executor(cluster, workers, name=name, files=base.job_files, code=frozen, cwd=cwd)
                started = slurm.submit(made, folders, Settings(task, cluster.max_requeues, len(workers.gpus)))
            for folder, config, old, (job, log, pid) in zip(folders, configs, earlier, started, strict=True):
                known = Record(
                    id=job,
                    engine=cluster.name,
                    name=config.run_name,
                    task=task,
                    cluster=cluster.model_dump(),
                    num_nodes=workers.num_nodes,
                    workers_per_node=workers.num_local,
                    gpus_per_node=len(workers.gpus),
                    submitted=time.time(),
                    log=str(log),
                    code=str(frozen),
                    cwd=str(cwd),
                    host=socket.gethostname(),
                    pid=pid,
                    earlier=(*old.earlier, old.id) if old else (),
                    inode=folder.path.stat().st_ino,
                )
                known.save(folder)
                records.append(known)
    except BaseException as error:
        if records:
            name = quoted(base.path)
            error.add_note(f"job {records[0].id.partition('_')[0]} is submitted: lockstep jobs cancel {name} ends it")
        else:
            error.add_note("nothing was submitted")
            _restore(before)
            if frozen is not None and old_code is None:
                shutil.rmtree(frozen)
        raise
    return records


def _prepare(folder: RunFolder, config: Config) -> None:
    """Write what the job reads, and that the run waits for it; the run is neither through nor cancelled any more."""
    storage.save(for_job(config), folder.config)
    folder.job_file.unlink(missing_ok=True)
    folder.forget_end()
    status = {"state": "not started", "name": config.run_name, **folder.read_status()}
    folder.write_status(**{**status, "reason": "submitted: see lockstep jobs", "exit_code": None, "signal": None})


def _written(folder: RunFolder) -> list[Path]:
    """The files of a run that a submission writes or removes."""
    return [folder.config, folder.facts_file, folder.job_file, folder.status_file, folder.stop_flag, *folder.ended]


def _restore(contents: Mapping[Path, bytes | None]) -> None:
    """Leave runs that could not be submitted as they were: a finished one keeps its result."""
    for path, content in contents.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            with atomic_file(path) as file:
                file.write(content)


def again(folder: RunFolder, job: Record) -> Record:
    """Submit the rest of a run as it was submitted before, with the code of that time. Raises ConfigError."""
    if not Path(job.code).is_dir():
        raise ConfigError([f"{job.code}, the code of job {job.id}, is gone: use {resuming(folder.path)}"])
    tree = storage.to_tree(storage.load(folder.config)) | {"cluster": dict(job.cluster)}
    config = Config.model_validate(tree)
    # the rest was checked, and is that code's business
    errors = [*resolve_workers(config).errors, *slurm_rules.errors(config)]
    if errors:
        raise ConfigError(errors)
    old_code, cwd = Path(job.code), Path(job.cwd)
    with interruptible():
        return submit_all([folder], [config], base=folder, name=job.name, task=job.task, old_code=old_code, cwd=cwd)[0]


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
