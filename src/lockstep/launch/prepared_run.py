"""Trains, resumes or tests a prepared run: a trial of a sweep, or a job.

`python -m lockstep.launch.prepared_run FOLDER TASK` does it in a new process.
"""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lockstep.config import saved_run
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, report
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import Config
from lockstep.launch import parent, runner, worker
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.process import leave
from lockstep.system.signals import STOP_SIGNALS, SignalFlag

LOCKED_EVERY_S = 0.5


def run_prepared(path: Path, task: str, *, is_worker: bool = False) -> int:
    """Run "train", "train-without-test" or "test" in a prepared run folder.

    Returns the exit code. If `is_worker`, this process itself computes a run of one
    worker.
    """
    folder = RunFolder(path.resolve())
    try:
        config = config_file.load(folder.config)
        project.use(folder, config)
        if task == "test":
            return _test(folder, config, is_worker=is_worker)
        return _train(folder, config, has_test=task == "train", is_worker=is_worker)
    except ConfigError as error:
        with suppress(OSError):  # The error is printed in any case.
            folder.record_failure(report(error))
            folder.update_status(state="failed", reason=str(error.errors[0]))
        print(report(error), end="", file=sys.stderr, flush=True)
        return EXIT_CONFIG


def _train(folder: RunFolder, config: Config, *, has_test: bool, is_worker: bool) -> int:
    """Train from the last checkpoint, if any.

    Returns the exit code, which is 0 if the run has finished. Waits while another process trains
    the run, because a requeued job can overlap with the end of its predecessor.
    """
    if errors := resolve_workers(config).errors:
        raise ConfigError(*errors)
    saved_run.progress(folder)  # It raises an error for damaged files.
    if folder.is_locked():
        print(
            f"{display_path(folder.path)} is being trained by another process: "
            "waiting for it to end",
            flush=True,
        )
    # Every rank waits here, because one that waits in a collective would time out.
    while folder.is_locked():
        # The signals are blocked until there is a run to stop.
        if signal.sigpending() & set(STOP_SIGNALS):
            return EXIT_STOPPED
        time.sleep(LOCKED_EVERY_S)
    if folder.read_summary():
        return 0
    with (
        runner.open_launch(config, folder, is_worker=is_worker) as launch,
        launch.share(_prepared_run(folder, config)),
    ):
        code = runner.train(folder, launch, has_test=has_test)
    runner.refresh_folds(folder, launch, code)
    return code


@contextmanager
def _prepared_run(folder: RunFolder, config: Config) -> Iterator[RunFolder]:
    """Lock a prepared run when no other process trains it."""
    with ExitStack() as lock:
        with runner.access_errors():
            runner.check_files(config)
            lock.enter_context(folder.lock(is_patient=True))
            folder.remove_leftovers()
            runner.prepare_resume(folder)
        yield folder


def _test(folder: RunFolder, config: Config, *, is_worker: bool) -> int:
    """Evaluate a finished run on its test set, and add the result to its summary.

    Returns the exit code.
    """
    num_workers = resolve_workers(config).world_size
    job = worker.Job(worker.test, folder, {})
    with runner.lock_run(folder):
        if is_worker and num_workers == 1:
            return worker.run_here(job, None, SignalFlag(has_parent=True))
        return parent.run_workers(job, num_workers, is_parallel=num_workers > 1)


if __name__ == "__main__":
    path, task = sys.argv[1:]
    leave(lambda: run_prepared(Path(path), task))
