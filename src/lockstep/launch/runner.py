"""Starts or resumes a run: prepares and locks its folder, and trains in it."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from lockstep.assembly import checkpoints
from lockstep.config import build
from lockstep.config.checks.workers import interface_errors, resolve_workers
from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent, worker
from lockstep.launch.worker import Job
from lockstep.runs import gate, naming
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path, resume_command, resume_override
from lockstep.system.launcher import World, outer_world
from lockstep.system.redaction import redact
from lockstep.system.signals import SignalFlag, SignalList
from lockstep.system.wording import plural

DISK_FIX = "check its permissions and its disk"


def start(
    config: Config,
    overrides: Sequence[str],
    path: Path | None,
    *,
    stop_signals: SignalList | None = None,
) -> tuple[RunFolder, int]:
    """Start a run in a new folder, or in the one at `path`. Returns the folder and the exit code.

    `stop_signals` records the signals for the caller.
    """
    resolved = build.settle_config(config)
    run = new_run(resolved, overrides, path)
    with open_launch(resolved, stop_signals=stop_signals) as launch, launch.share(run) as folder:
        launch.show(build.scaling_note(config, resolved))
        code = train(folder, launch)
    refresh_folds(folder, launch, code)
    return folder, code


def resume(folder: RunFolder, config: Config, *, stop_signals: SignalList | None = None) -> tuple[RunFolder, int]:
    """Resume a run in its folder, otherwise as `start`. Returns the folder and the exit code."""
    run = resumed_run(folder, config)
    with open_launch(config, folder, stop_signals=stop_signals) as launch, launch.share(run):
        if before := config_file.other_version(folder):
            launch.show(f"{display_path(folder.path)} keeps its settings of {before}; new defaults do not apply")
        code = train(folder, launch)
    refresh_folds(folder, launch, code)
    return folder, code


class Launch(NamedTuple):
    """The processes of a training: workers that this process starts, or those of an outer launcher, `world`."""

    config: Config
    world: World | None
    num_workers: int
    is_parallel: bool
    signals: SignalFlag

    @property
    def is_first(self) -> bool:
        """True in one process of the launch: it alone writes and prints."""
        return self.world is None or self.world.rank == 0

    def share(self, run: contextlib.AbstractContextManager[RunFolder]) -> contextlib.AbstractContextManager[RunFolder]:
        """Return a context in which all processes have the folder of a run that only the first one enters."""
        if self.world is None:
            return run
        from lockstep.assembly.process_group import shared_folder

        return shared_folder(run, self.config, self.world)

    def show(self, message: str) -> None:
        if message and self.is_first and not self.config.silent:
            print(message, flush=True)


@contextlib.contextmanager
def open_launch(
    config: Config,
    folder: RunFolder | None = None,
    *,
    is_worker: bool = False,
    stop_signals: SignalList | None = None,
) -> Iterator[Launch]:
    """Find the processes of a training, let those of an outer launcher meet, and record the stop signals.

    The processes of srun meet in `folder`, if it exists before. Raises ConfigError for the network interface.
    """
    num_workers = resolve_workers(config).world_size
    is_parallel = num_workers > 1 or config.strategy.name == "ddp"
    if is_parallel and (errors := interface_errors(config)):
        raise ConfigError(*errors)
    world = outer_world(os.environ) if is_parallel else None
    if world is not None:  # without handlers: a signal ends this process, which may wait for others
        worker.import_training()
        from lockstep.assembly.process_group import meet

        meet(config, world, folder)
    computes_here = world is not None or (is_worker and not is_parallel)
    signals = SignalFlag(has_parent=is_worker) if computes_here else stop_signals or SignalList()
    with signals.handle_signals():
        yield Launch(config, world, num_workers, is_parallel, signals)


@contextlib.contextmanager
def new_run(config: Config, overrides: Sequence[str], path: Path | None) -> Iterator[RunFolder]:
    """Create, lock and write the folder of a new run, and remove it again if the run is rejected in this context."""
    outputs = Path("outputs").resolve()
    latest = naming.latest(outputs)
    with contextlib.ExitStack() as stack:
        with access_errors(f"{DISK_FIX}, or choose another hydra.run.dir"):
            check_files(config, is_new=True)
            checkpoints.initial_checkpoint(config.init_from)
            if path is None:
                folder = RunFolder(naming.create_path(outputs, config.run_name, datetime.now()))
            else:
                folder = gate.open_new(path)
            earlier_files = os.listdir(folder.path)
            stack.enter_context(lock_run(folder))
            if folder.config.exists():
                fix = f"resume it with {resume_override(folder.path)}"
                raise ConfigError(Error("exists", str(path), "already contains a run", fix))
            stack.enter_context(_remove_rejected(folder, earlier_files, outputs, latest))
            save(folder, config, overrides)
            if path is None:  # after `save`: init_from=outputs/latest is the run before this one
                naming.link_latest(outputs, folder.path)
        yield folder


@contextlib.contextmanager
def _remove_rejected(folder: RunFolder, earlier_files: Sequence[str], outputs: Path, latest: str) -> Iterator[None]:
    """Remove a new run that is rejected before it begins, and restore `latest`."""
    try:
        yield
    except ConfigError:
        folder.remove(kept=earlier_files)
        naming.link_again(outputs, folder.path, latest)
        if folder.path.is_relative_to(outputs):
            with contextlib.suppress(OSError):  # another run of this day exists
                folder.path.parent.rmdir()
        raise


@contextlib.contextmanager
def resumed_run(folder: RunFolder, config: Config) -> Iterator[RunFolder]:
    """Lock a run and write its new configuration; if that is rejected in this context the run stays as it was."""
    with contextlib.ExitStack() as stack:
        with access_errors(DISK_FIX):
            check_files(config)
            stack.enter_context(lock_run(folder))
            folder.remove_leftovers()
            stack.enter_context(folder.keep_end(ConfigError))
            prepare_resume(folder)
            config_file.save(config, folder.config)
            project.record(folder)
        yield folder


def train(folder: RunFolder, launch: Launch, *, has_test: bool = True) -> int:
    """Train in a prepared folder. Returns the exit code. Raises ConfigError if the training did not begin."""
    if launch.config.data.folds is not None:
        import lockstep.trials.out_of_fold  # noqa: F401  # for the end: the source may change during a training
    options = {"command": resume_command(folder.path), "has_test": has_test}
    job = Job(worker.train, str(folder.path), options, build.hydra_config())
    if isinstance(launch.signals, SignalList):  # to forward them
        if launch.is_parallel:
            workers = plural(launch.num_workers, "worker")
            launch.show(f"Starting {workers} for {display_path(folder.path)} ...")
        code = parent.run_workers(job, launch.num_workers, launch.signals, is_parallel=launch.is_parallel)
    else:
        code = worker.run_here(job, launch.world, launch.signals)
    if launch.world is None and (errors := worker.refusal_errors(job)):
        raise ConfigError(*errors)
    return code


def refresh_folds(folder: RunFolder, launch: Launch, code: int) -> None:
    """Update the out-of-fold result after a fold. The run is unlocked: its state is that of its end."""
    if launch.config.data.folds is not None and code == 0 and launch.is_first:
        from lockstep.trials import out_of_fold

        out_of_fold.refresh(folder, is_silent=launch.config.silent)


def check_files(config: Config, *, is_new: bool = False) -> None:
    """Raise ConfigError for files of the data, and of a new run, that do not exist."""
    if not (config.data.has_files or config.pretrained):
        return
    from lockstep.config.checks import data_presence

    if config.data.has_files:
        data_presence.check(config.data)
    if is_new and config.pretrained:
        data_presence.check_weights(config)


def save(folder: RunFolder, config: Config, overrides: Sequence[str]) -> None:
    """Write the configuration, the module folders, the weights of `init_from` and the typed overrides of a run.

    Raises ConfigError if those weights cannot be read.
    """
    checkpoints.keep_initial(folder, config.init_from)
    config_file.save(config, folder.config)
    project.record(folder)
    folder.note(overrides=redact(overrides))


def prepare_resume(folder: RunFolder) -> None:
    """Prepare a locked run for resuming. Raises ConfigError, with nothing changed, if every checkpoint is damaged."""
    checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    folder.forget_end()
    folder.update_status(state="starting", reason="", host=socket.gethostname(), pid=os.getpid())


@contextlib.contextmanager
def access_errors(fix: str) -> Iterator[None]:
    """Replace an OSError in the preparation of a run folder by a ConfigError."""
    try:
        yield
    except OSError as error:
        where = display_path(Path(error.filename)) if isinstance(error.filename, str) else "the run folder"
        raise ConfigError(Error("access", where, f"cannot be written ({error.strerror or error})", fix)) from error


@contextlib.contextmanager
def lock_run(folder: RunFolder) -> Iterator[None]:
    """Lock a run. Raises ConfigError while another process has the lock."""
    try:
        with folder.lock():
            yield
    except BlockingIOError as error:
        problem = "is being trained by another process"
        raise ConfigError(
            Error("busy", display_path(folder.path), problem, "stop it, or wait for it to end")
        ) from error
