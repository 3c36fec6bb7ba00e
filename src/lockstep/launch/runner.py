"""Starts or resumes a run: prepares and locks its folder, and trains in it."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.assembly import checkpoints
from lockstep.config import build
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, config_error
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent, worker
from lockstep.runs import naming, permissions
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path, resume_command, resume_override
from lockstep.system.launcher import World, outer_world
from lockstep.system.redaction import redact
from lockstep.system.signals import SignalFlag, SignalList
from lockstep.system.text import plural


def start(
    config: Config,
    overrides: Sequence[str],
    path: Path | None,
    *,
    hydra: Any = None,
    stop_signals: SignalList | None = None,
) -> tuple[RunFolder, int]:
    """Start a run in a new folder, or in the one at `path`.

    Returns the folder and the exit code. `hydra` is Hydra's configuration. `stop_signals` records
    the signals for the caller.
    """
    resolved_config = build.resolve_config(config)
    with (
        open_launch(resolved_config, stop_signals=stop_signals) as launch,
        launch.share(new_run(resolved_config, overrides, path)) as folder,
    ):
        if config.scale_with_workers:
            launch.show(build.scaling_note(config, resolved_config))
        return folder, train(folder, launch, hydra=hydra)


def resume(
    folder: RunFolder,
    config: Config,
    *,
    hydra: Any = None,
    stop_signals: SignalList | None = None,
) -> tuple[RunFolder, int]:
    """Resume a run in its folder, and otherwise do the same as `start`.

    Returns the folder and the exit code.
    """
    with (
        open_launch(config, folder, stop_signals=stop_signals) as launch,
        launch.share(resumed_run(folder, config)),
    ):
        if version := config_file.other_version(folder):
            launch.show(
                f"{display_path(folder.path)} keeps its settings of {version}; new "
                "defaults do not apply"
            )
        code = train(folder, launch, hydra=hydra)
    refresh_folds(folder, launch, code)
    return folder, code


class Launch(NamedTuple):
    """The processes of a training.

    They are those of an outer launcher, `world`, or workers of this process.
    """

    config: Config
    world: World | None
    num_workers: int
    is_parallel: bool
    signals: SignalFlag

    @property
    def is_first(self) -> bool:
        """True in exactly one process, which alone writes and prints."""
        return self.world is None or self.world.rank == 0

    def share(
        self,
        run: AbstractContextManager[RunFolder],
    ) -> AbstractContextManager[RunFolder]:
        """Return a context that only the first process enters. The others get its folder."""
        if self.world is None:
            return run
        from lockstep.assembly.process_group import shared_folder

        return shared_folder(run, self.config, self.world)

    def show(self, message: str) -> None:
        """Print a message once."""
        if self.is_first and not self.config.silent:
            print(message, flush=True)


@contextmanager
def open_launch(
    config: Config,
    folder: RunFolder | None = None,
    *,
    is_worker: bool = False,
    stop_signals: SignalList | None = None,
) -> Iterator[Launch]:
    """Connect the processes of an outer launcher, and record the signals of this process.

    The processes of srun connect through `folder`, if it exists before. Raises ConfigError if one
    of their machines lacks the network interface.
    """
    workers = resolve_workers(config)
    is_parallel = workers.world_size > 1 or config.strategy.name == "ddp"
    world = outer_world(os.environ) if is_parallel else None
    if world is not None:  # A signal ends this process, which may wait for others.
        worker.import_training()
        from lockstep.assembly.process_group import connect_ranks

        connect_ranks(config, workers, world, folder)
    computes_here = world is not None or (is_worker and not is_parallel)
    signals = SignalFlag(has_parent=is_worker) if computes_here else stop_signals or SignalList()
    with signals.handle_signals():
        yield Launch(config, world, workers.world_size, is_parallel, signals)


@contextmanager
def new_run(config: Config, overrides: Sequence[str], path: Path | None) -> Iterator[RunFolder]:
    """Create, lock and write the folder of a new run.

    A ConfigError, here or in the block, rejects the run. Its files are then removed, and
    outputs/latest is restored.
    """
    outputs = Path("outputs").resolve()
    latest = naming.latest(outputs)
    alternative = ", or choose another hydra.run.dir"
    with ExitStack() as lock:
        with access_errors(alternative):
            check_files(config, is_new=True)
            weights = checkpoints.initial_checkpoint(config.init_from)
            folder = (
                RunFolder(naming.create_path(outputs, config.run_name, datetime.now()))
                if path is None
                else permissions.open_new(path)
            )
            earlier_files = os.listdir(folder.path)
            lock.enter_context(lock_run(folder))
        if path is not None:
            need_no_run(path)
        try:
            with access_errors(alternative):
                save(folder, config, overrides, weights)
                if path is None:
                    naming.link_latest(outputs, folder.path)
            yield folder
        except ConfigError:
            folder.remove(kept_names=earlier_files)
            naming.link_again(outputs, folder.path, latest)
            if folder.path.is_relative_to(outputs):
                with suppress(OSError):  # Another run of this day exists.
                    folder.path.parent.rmdir()
            raise


@contextmanager
def resumed_run(folder: RunFolder, config: Config) -> Iterator[RunFolder]:
    """Lock a run and write its new configuration.

    A ConfigError, here or in the block, restores the previous state of the run.
    """
    with ExitStack() as stack:
        with access_errors():
            check_files(config)
            stack.enter_context(lock_run(folder))
            folder.remove_leftovers()
            stack.enter_context(folder.set_aside_end(ConfigError))
            prepare_resume(folder)
            config_file.save(config, folder.config)
            project.record(folder)
        yield folder


def train(folder: RunFolder, launch: Launch, *, has_test: bool = True, hydra: Any = None) -> int:
    """Train in a prepared folder, and return the exit code.

    Raises ConfigError if the training did not begin. Processes of an outer launcher print it
    instead.
    """
    # The end needs this module, and the source may change during a training.
    if launch.config.data.folds is not None:
        import lockstep.trials.out_of_fold  # noqa: F401
    job = worker.Job(
        worker.train, folder, {"command": resume_command(folder.path), "has_test": has_test}, hydra
    )
    if isinstance(launch.signals, SignalList):  # This process forwards such signals.
        if launch.is_parallel:
            launch.show(
                f"Starting {plural(launch.num_workers, 'worker')} for "
                f"{display_path(folder.path)} ..."
            )
        code = parent.run_workers(
            job,
            launch.num_workers,
            launch.signals,
            is_parallel=launch.is_parallel,
        )
    else:
        code = worker.run_here(job, launch.world, launch.signals)
    if launch.world is None and (errors := worker.refusal_errors(job)):
        raise ConfigError(*errors)
    return code


def refresh_folds(folder: RunFolder, launch: Launch, code: int) -> None:
    """Update the out-of-fold files of a sweep after one of its folds.

    The run is unlocked, so its state is final.
    """
    if launch.config.data.folds is not None and code == 0 and launch.is_first:
        from lockstep.trials import out_of_fold

        out_of_fold.refresh(folder, is_silent=launch.config.silent)


def need_no_run(path: Path) -> None:
    """Raise ConfigError for the folder of a run."""
    if RunFolder(path).config.exists():
        raise config_error(
            "exists",
            str(path),
            "already contains a run",
            f"resume it with {resume_override(path)}",
        )


def check_files(config: Config, *, is_new: bool = False) -> None:
    """Raise ConfigError for files of the data, and of a new run, that do not exist."""
    if config.data.has_files or config.pretrained:
        from lockstep.config.checks import data_presence

        data_presence.check(config.data)
        if is_new:
            data_presence.check_weights(config)


def save(
    folder: RunFolder,
    config: Config,
    overrides: Sequence[str],
    weights: Path | None,
) -> None:
    """Write the configuration, the module folders, the initial weights and the overrides."""
    checkpoints.copy_initial_checkpoint(folder, weights)
    config_file.save(config, folder.config)
    project.record(folder)
    folder.note(overrides=redact(overrides))


def prepare_resume(folder: RunFolder) -> None:
    """Prepare a locked run for resuming.

    Raises ConfigError, with nothing changed, if every checkpoint is damaged.
    """
    checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    folder.forget_end()
    folder.update_status(state="starting", reason="", host=socket.gethostname(), pid=os.getpid())


@contextmanager
def access_errors(alternative: str = "") -> Iterator[None]:
    """Replace an OSError in the preparation of a run folder by a ConfigError.

    `alternative` follows the advice to check the folder.
    """
    try:
        yield
    except OSError as error:
        path = "the run folder"
        if isinstance(error.filename, str):
            path = display_path(Path(error.filename))
        raise config_error(
            "access",
            path,
            f"cannot be written ({error.strerror or error})",
            f"check its permissions and its disk{alternative}",
        ) from error


@contextmanager
def lock_run(folder: RunFolder) -> Iterator[None]:
    """Lock a run. Raises ConfigError while another process has the lock."""
    try:
        with folder.lock():
            yield
    except BlockingIOError as error:
        raise busy_error(folder, "trained") from error


def busy_error(folder: RunFolder, activity: str) -> ConfigError:
    """Return the error for a folder that another process has locked."""
    return config_error(
        "busy",
        display_path(folder.path),
        f"is being {activity} by another process",
        "stop it, or wait for it to end",
    )
