"""Starts or resumes a run: prepares and locks its folder, and trains in it."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from lockstep.assembly import checkpoints
from lockstep.config import build
from lockstep.config.checks import workers
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent, worker
from lockstep.launch.worker import Job
from lockstep.runs import gate, naming
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path, resume_command, resume_override
from lockstep.system.launcher import outer_world
from lockstep.system.redaction import redact
from lockstep.system.signals import SignalFlag, SignalList
from lockstep.system.wording import plural


def start(
    config: Config,
    typed: Sequence[str],
    chosen: Path | None,
    *,
    stop_signals: SignalList | None = None,
) -> tuple[RunFolder, int]:
    """Start a run in a new folder, or in the chosen one. Returns the folder and the exit code.

    `stop_signals` records the signals for the caller.
    """
    settled = build.settle_config(config)
    outputs = Path("outputs").resolve()
    latest = naming.latest(outputs)

    def make(held: contextlib.ExitStack) -> RunFolder:
        check_files(config, is_new=True)
        checkpoints.initial_checkpoint(config.init_from)
        if chosen is None:
            folder = RunFolder(naming.create_path(outputs, config.run_name, datetime.now()))
        else:
            folder = gate.open_new(chosen)
        kept = os.listdir(folder.path)
        held.enter_context(lock_run(folder))
        if folder.config.exists():
            fix = f"resume it with {resume_override(folder.path)}"
            raise ConfigError(Error("exists", str(chosen), "already contains a run", fix))
        held.push(partial(_remove_rejected, folder, kept, outputs, latest))
        save(folder, settled, typed)
        if chosen is None:  # after `save`: init_from=outputs/latest is the run before this one
            naming.link_latest(outputs, folder.path)
        return folder

    note = build.scaling_note(config, settled)
    return run_workers(make, settled, note=note, stop_signals=stop_signals)


def check_files(config: Config, *, is_new: bool = False) -> None:
    """Raise ConfigError for files of the data, and of a new run, that do not exist."""
    if not (config.data.has_files or config.pretrained):
        return
    from lockstep.config.checks import data_presence

    if config.data.has_files:
        data_presence.check(config.data)
    if is_new and config.pretrained:
        data_presence.check_weights(config)


def _remove_rejected(
    folder: RunFolder, kept: Sequence[str], outputs: Path, latest: str, kind: object, error: object, trace: object
) -> None:
    """Remove a new run that was rejected before it began, and restore `latest`."""
    if isinstance(error, ConfigError):
        folder.remove(kept=kept)
        naming.link_again(outputs, folder.path, latest)
        if folder.path.is_relative_to(outputs):
            with contextlib.suppress(OSError):  # another run of this day exists
                folder.path.parent.rmdir()


def save(folder: RunFolder, config: Config, typed: Sequence[str]) -> None:
    """Write the configuration, the module folders, the weights of `init_from` and the typed overrides of a run.

    Raises ConfigError if those weights cannot be read.
    """
    checkpoints.keep_initial(folder, config.init_from)
    config_file.save(config, folder.config)
    project.record(folder)
    folder.note(overrides=redact(typed))


def resume(folder: RunFolder, config: Config, *, stop_signals: SignalList | None = None) -> tuple[RunFolder, int]:
    """Resume a run in its folder, otherwise as `start`. Returns the folder and the exit code."""

    def make(held: contextlib.ExitStack) -> RunFolder:
        check_files(config)
        held.enter_context(lock_run(folder))
        folder.remove_leftovers()
        held.enter_context(folder.keep_end(ConfigError))
        prepare_resume(folder)
        config_file.save(config, folder.config)
        project.record(folder)
        return folder

    before = config_file.other_version(folder)
    kept = f"{display_path(folder.path)} keeps its settings of {before}; new defaults do not apply"
    return run_workers(make, config, known=folder, note=kept if before else "", stop_signals=stop_signals)


def prepare_resume(folder: RunFolder) -> None:
    """Prepare a locked run for resuming. Raises ConfigError, with nothing changed, if every checkpoint is damaged."""
    checkpoints.choose_checkpoint(folder, folder.last_checkpoint)
    folder.forget_end()
    folder.update_status(state="starting", reason="", host=socket.gethostname(), pid=os.getpid())


def run_workers(
    make: Callable[[contextlib.ExitStack], RunFolder],
    config: Config,
    *,
    known: RunFolder | None = None,
    note: str = "",
    has_test: bool = True,
    is_worker: bool = False,
    stop_signals: SignalList | None = None,
) -> tuple[RunFolder, int]:
    """Prepare and lock the folder, once for all processes, and train in it.

    The processes of srun meet in the folder `known`, if it exists before.
    """
    num_workers = resolve_workers(config).world_size
    is_parallel = num_workers > 1 or config.strategy.name == "ddp"
    if is_parallel and (errors := workers.interface_errors(config)):
        raise ConfigError(*errors)
    world = outer_world(os.environ) if is_parallel else None
    computes_here = world is not None or (is_worker and not is_parallel)
    flag = SignalFlag(has_parent=is_worker) if computes_here else stop_signals or SignalList()
    if config.data.folds is not None:
        import lockstep.trials.out_of_fold  # noqa: F401  # for the end: the source may change during a training
    with contextlib.ExitStack() as held:
        if world is not None:
            worker.import_training()
            from lockstep.assembly.process_group import meet, shared_folder

            meet(config, world, known)  # before, a signal ends this process, which may wait for others
            held.enter_context(flag.handle_signals())
            folder = shared_folder(lambda: _prepare_folder(make, held, known), config, world, known)
        else:
            held.enter_context(flag.handle_signals())
            folder = _prepare_folder(make, held, known)
        if note and not config.silent and (world is None or world.rank == 0):
            print(note, flush=True)
        run = display_path(folder.path)
        options = {"command": resume_command(folder.path), "has_test": has_test}
        job = Job(worker.train, str(folder.path), options, build.hydra_config())
        if isinstance(flag, SignalList):
            if is_parallel and not config.silent:
                print(f"Starting {plural(num_workers, 'worker')} for {run} ...", flush=True)
            code = parent.run_workers(job, num_workers, flag, is_parallel=is_parallel)
        else:
            code = worker.run_here(job, world, flag)
        if world is None and (errors := worker.refusal_errors(job)):
            raise ConfigError(*errors)
    # the run is unlocked: its state is that of its end
    if config.data.folds is not None and code == 0 and (world is None or world.rank == 0):
        from lockstep.trials import out_of_fold

        out_of_fold.refresh(folder, is_silent=config.silent)
    return folder, code


def _prepare_folder(
    make: Callable[[contextlib.ExitStack], RunFolder], held: contextlib.ExitStack, known: RunFolder | None
) -> RunFolder:
    """Prepare the run folder. Raises ConfigError for an OSError."""
    try:
        return make(held)
    except OSError as error:
        where = display_path(Path(error.filename)) if isinstance(error.filename, str) else "the run folder"
        fix = "check its permissions and its disk" + (", or choose another hydra.run.dir" if known is None else "")
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
