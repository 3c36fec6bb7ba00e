"""Prepares runs, copies their code, and submits them to SLURM or starts them in the background."""

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lockstep.assembly import checkpoints
from lockstep.cluster import background, code, jobs, record, slurm
from lockstep.cluster.record import JobRecord
from lockstep.config import build
from lockstep.config.checks import slurm_rules
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, config_error, errors_of
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import Config
from lockstep.launch import runner
from lockstep.runs import naming, permissions
from lockstep.runs.files import print_result
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path, quote_path, resume_override
from lockstep.system import signals
from lockstep.system.provenance import project_root
from lockstep.system.terminal import show_table


class Work(NamedTuple):
    """What the tasks of a job do: train their runs, or execute a command of Lockstep.

    Every task executes the `command`, or only one if `is_head`.
    """

    name: str
    task: str = "train"
    command: Sequence[str] = ()
    is_head: bool = False


def interruptible() -> contextlib.AbstractContextManager[None]:
    """Return a context that the first stop signal ends.

    It ends before sbatch is called, or after the id of the job is recorded.
    """
    return signals.SignalFlag(ends=True).handle_signals()


def start(config: Config, overrides: Sequence[str], path: Path | None) -> tuple[RunFolder, int]:
    """Submit a new run.

    Returns its folder, whose name never changes, and the exit code.
    """
    config = build.resolve_config(config)
    if config.dry_run:
        return _dry_run(config, Work(config.run_name), path), 0
    with interruptible(), _new_folder(path, config.run_name) as folder:
        runner.save(
            folder,
            job_config(config),
            overrides,
            checkpoints.initial_checkpoint(config.init_from),
        )
        submit(folder, config, Work(config.run_name))
        if path is None:
            naming.link_latest(Path("outputs").resolve(), folder.path)
    return folder, 0


def start_command(
    config: Config,
    name: str,
    arguments_in: Callable[[RunFolder], Sequence[str]],
    *,
    path: Path | None = None,
    is_head: bool = False,
) -> int:
    """Submit a command in a new folder, and return the exit code.

    `arguments_in` returns the arguments of the command for the folder.
    """
    if config.dry_run:
        _dry_run(config, Work(name, is_head=is_head), path)
        return 0
    with _new_folder(path, name) as folder:
        submit(folder, config, Work(name, "command", arguments_in(folder), is_head))
    return 0


@contextlib.contextmanager
def _new_folder(path: Path | None, name: str) -> Iterator[RunFolder]:
    """Create the folder of a job: `path`, or a new one below outputs/.

    It is removed if nothing is submitted.
    """
    _need_empty(path)
    folder = permissions.open_new(path or naming.create_path(Path("outputs"), name, datetime.now()))
    try:
        yield folder
    except BaseException:
        if not folder.job_file.exists():  # Otherwise the job is submitted.
            shutil.rmtree(folder.path)
        raise


def _dry_run(config: Config, work: Work, path: Path | None) -> RunFolder:
    """Print the script of a job, and return the folder that it would have."""
    _need_empty(path)
    path = path or naming.free_path(Path("outputs"), work.name, datetime.now())
    folder = RunFolder(path.resolve())
    print(script(folder, config, work), end="")
    return folder


def resume(folder: RunFolder, config: Config) -> tuple[RunFolder, int]:
    """Submit the rest of a run that has no live job, possibly on other nodes.

    Returns its folder and the exit code.
    """
    if config.dry_run:
        print(script(folder, config, Work(config.run_name)), end="")
        return folder, 0
    with runner.lock_run(folder):  # It raises an error if another process trains the run.
        pass
    submit(folder, config, Work(config.run_name))
    return folder, 0


def submit(folder: RunFolder, config: Config, work: Work) -> None:
    """Submit a run or a command, and print how to follow it. Raises ConfigError."""
    with interruptible():
        (job,) = submit_all([(folder, config)], work, base=folder)
        print_result({"job": job.id, "path": str(folder.path)})
        if config.silent:
            return
        rows = [
            ("job", job.id),
            ("workers", jobs.resource_text(job)),
            ("run folder", display_path(folder.path)),
            ("follow", jobs.follow_command(job)),
            ("wait", f"lockstep jobs wait {job.id}"),
            ("cancel", f"lockstep jobs cancel {job.id}"),
        ]
        if job.is_head or not job.command:
            rows.append(("watch", f"lockstep board --logdir {quote_path(folder.path)}"))
        title = "Submitted to SLURM" if job.engine == "slurm" else "Started in the background"
        show_table(title, rows)


def submit_all(
    runs: Sequence[tuple[RunFolder, Config]],
    work: Work,
    *,
    base: RunFolder,
    old_code: Path | None = None,
    cwd: Path | None = None,
) -> list[JobRecord]:
    """Submit prepared runs, several as one array, or a command.

    A run that fails does not affect the others. All share one copy of the code in `base`, next to
    scripts and logs. `old_code` is an existing copy. Jobs run in `cwd`, by default the current
    folder. Raises ConfigError if runs request different nodes, or if the scheduler rejects them.

    The run folders change only after the scheduler has accepted. A job waits for its record before
    it reads them.
    """
    folders, first_config = [folder for folder, _ in runs], runs[0][1]
    cluster, workers = first_config.cluster, resolve_workers(first_config)
    if any((config.cluster, resolve_workers(config)) != (cluster, workers) for _, config in runs):
        raise config_error(
            "conflict",
            "",
            "jobs of one array need the same cluster.*, devices, num_nodes and strategy",
        )
    is_from_here, cwd = cwd is None, cwd or Path.cwd()
    earlier_records = [record.read(folder) for folder in folders]
    code_copy = old_code or code.freeze(project_root(), base.code)
    records = []
    try:
        # A Ctrl-C in the terminal also reaches sbatch, which may have submitted the job without
        # having printed its id.
        with signals.block_signals():
            if cluster.name == "local":
                submissions = [
                    background.start(cluster, folder, code=code_copy, cwd=cwd) for folder in folders
                ]
            else:
                paths = slurm.JobPaths(base.job_files, code_copy, cwd)
                slurm_executor = slurm.executor(
                    first_config, work.name, paths, is_head=work.is_head
                )
                submissions = slurm.submit(slurm_executor, folders)
            for (folder, config), earlier_record, (job_id, log, pid) in zip(
                runs, earlier_records, submissions, strict=True
            ):
                name = work.name if work.command else config.run_name
                job_record = JobRecord(
                    id=job_id,
                    engine=cluster.name,
                    name=name,
                    task=work.task,
                    cluster=cluster.model_dump(),
                    num_nodes=workers.num_nodes,
                    workers_per_node=workers.num_local,
                    gpus_per_node=len(workers.gpus),
                    submitted=time.time(),
                    log=str(log),
                    code=str(code_copy),
                    cwd=str(cwd),
                    host=socket.gethostname(),
                    pid=pid,
                    earlier=(*earlier_record.earlier, earlier_record.id) if earlier_record else (),
                    command=tuple(work.command),
                    is_head=work.is_head,
                )
                if is_from_here:
                    project.record_copy(folder, project_root(), code_copy)
                if work.command:
                    config_file.save(config, folder.job_config)
                else:
                    config_file.save(job_config(config), folder.config)
                folder.forget_end()  # The files are those of an earlier session.
                status = {"state": "not started", "name": name, **folder.read_status()}
                status |= {"reason": "submitted: see lockstep jobs"}
                folder.write_status(**status | {"exit_code": None, "signal": None})
                # This comes last, because the job begins when the record is there.
                job_record.save(folder)
                records.append(job_record)
    except ConfigError:
        if old_code is None:
            shutil.rmtree(code_copy)
        raise
    except signals.Ended as error:
        if records:
            array = records[0].id.partition("_")[0]
            error.add_note(
                f"job {array} is submitted: lockstep jobs cancel {quote_path(base.path)} ends it"
            )
        raise
    return records


def add_ignored_conf(arguments: Sequence[str]) -> list[str]:
    """Add the `conf` of this project to that of its copy.

    The copy lacks files that git ignores.
    """
    conf = project_root() / "conf"
    if not conf.is_dir() or any("hydra.searchpath=" in argument for argument in arguments):
        return list(arguments)
    return [*arguments, f"hydra.searchpath=[{naming.hydra_text(f'file://{conf.resolve()}')}]"]


def resubmit(folder: RunFolder, job: JobRecord) -> JobRecord:
    """Submit the rest of a run with the settings and the code of its last submission.

    Raises ConfigError.
    """
    old_code = Path(job.code)
    if not old_code.is_dir():
        hint = "submit it again" if job.command else f"use {resume_override(folder.path)}"
        raise config_error("missing", job.code, f", the code of job {job.id}, is gone", hint)
    settings = folder.job_config if job.command else folder.config
    tree = config_file.to_tree(config_file.load(settings)) | {"cluster": dict(job.cluster)}
    config = Config.model_validate(config_file.to_this_version(tree))
    # Other checks are left out, because targets may exist only in that code.
    if errors := [*resolve_workers(config).errors, *slurm_rules.errors(config)]:
        raise ConfigError(*errors)
    runs, work = [(folder, config)], Work(job.name, job.task, job.command, job.is_head)
    with interruptible():
        return submit_all(runs, work, base=folder, old_code=old_code, cwd=Path(job.cwd))[0]


def job_config(config: Config) -> Config:
    """Return the configuration for the processes of a job.

    It has as many workers as requested, and no settings of `cluster` that belong to a job.
    """
    if config.cluster.name == "none":
        return config
    trainer = config.trainer
    if config.cluster.name == "slurm":
        trainer = trainer.model_copy(update={"devices": resolve_workers(config).num_local})
    return config.model_copy(
        update={"trainer": trainer, "cluster": slurm_rules.drop_job_settings(config.cluster)}
    )


def refuse_live(folder: RunFolder) -> None:
    """Raise ConfigError if the job of a run is pending or running.

    Also raise it if that is possible because SLURM does not answer.
    """
    for job in live_jobs([folder]):
        raise config_error(
            "busy",
            display_path(folder.path),
            f"has job {job.id}, {job.state}",
            f"lockstep jobs cancel {job.id} first",
        )


def live_jobs(folders: Iterable[RunFolder]) -> list[jobs.Job]:
    """Return the jobs of runs that are pending or running.

    Raises ConfigError if SLURM does not answer.
    """
    try:
        return [job for job in jobs.jobs_of(folders) if job.is_live]
    except ValueError as error:
        raise ConfigError(*errors_of(error)) from error


def _need_empty(path: Path | None) -> None:
    """Raise ConfigError for a named folder that is not empty.

    A run is removed together with its folder.
    """
    if path is None:
        return
    runner.need_no_run(path)
    if path.is_dir() and any(path.iterdir()):
        raise config_error(
            "exists",
            f"hydra.run.dir={path}",
            "is not empty",
            f"choose a new folder, e.g. {path}/run",
        )


def script(base: RunFolder, config: Config, work: Work, num_runs: int = 1) -> str:
    """Return the script that would be submitted for runs in `base`, or for `base` itself.

    Nothing is written.
    """
    code_copy = code.next_folder(base.code)
    if config.cluster.name == "local":
        return background.script(config.cluster, base, code_copy, background.new_id()) + "\n"
    paths = slurm.JobPaths(base.job_files, code_copy, Path.cwd())
    slurm_executor = slurm.executor(config, work.name, paths, is_head=work.is_head)
    return slurm.script(slurm_executor, num_runs)
