"""The run folder: the interface between a training process and the tools around it.

It is the only interface for tools that watch, stop or read a run. This module owns the names and
formats of all files in the folder. It uses the standard library only, so that tools start
immediately.
"""

import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs import files
from lockstep.runs.files import JsonObject, read_json, read_text, write_json

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, resume later
EXIT_INTERRUPTED = 130  # by a second Ctrl-C
GRACE_S = 5.0  # time for the other ranks to notice a failed one
LIVE_STATES = ("starting", "training", "validating", "testing", "stopping")
ENDED_STATES = ("stopped", "pruned", "finished", "failed")
# A search prunes a run by this reason in STOP.
PRUNED = "other trials were better at this point"
STATUS_TIMEOUT_S = (
    600.0  # longer than any step, because a status is written every second between two steps
)
BENCHMARK = "results.json"  # next to the run folders of a benchmark
# Folders of TensorBoard's event files by split. TensorBoard shows each folder with such files as a
# run.
CURVES = {"train": "", "val": "validation", "test": "test"}
WANDB = "wandb"  # files of Weights & Biases
CODE = "code"  # the source that a job runs, whose config.yaml files belong to no run
JOB = "job.json"  # the record of a job
JOB_FILES = "job"  # the script, the output and a log for every rank of a job
SWEEP = "sweep.json"  # next to the run folders of a sweep
JOURNAL = "study.journal"  # Optuna's storage of a search, next to the run folders of a sweep


class _File:
    """A path in the run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", kind: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    # The configuration is resolved. Ranks, trials, tasks and resumes start from it.
    config = _File("config.yaml")
    # These are facts of the start: overrides, folders of modules, environment, id at W&B.
    facts_file = _File("run.json")
    status_file = _File("status.json")  # state and progress, from the preparation on
    summary = _File("summary.json")  # the result of a finished run
    metrics = _File("metrics.csv")  # one row per epoch
    notes = _File("notes.json")  # a text and tags that a person wrote about the run
    checkpoints = _File("checkpoints")
    # This is the newest state, from which a resume continues.
    last_checkpoint = _File("checkpoints/last.ckpt")
    best_checkpoint = _File("checkpoints/best.ckpt")  # the state with the best monitored value
    # A copy of the checkpoint in `init_from`, for a restart before the first checkpoint.
    initial_weights = _File("initial.ckpt")
    # This has the name, the target and the split of every image of the training, and its classes.
    images = _File("images.json.gz")
    fold_rows = _File("fold_predictions.csv")  # truth and prediction of every test image of a fold
    pictures = _File("pictures")  # PNG files of right and wrong predictions, and confusion matrices
    network = _File("network.onnx")  # the exported network, or network.pt2
    failure = _File("failure.txt")  # the traceback of the first rank that failed
    scores = _File("scores.json")  # the result of an evaluation or a prediction
    stop_flag = _File("STOP")  # a request to stop, with the reason
    # The process that trains the run locks this file. The first training creates it.
    lock_file = _File(".lock")
    job_file = _File(JOB)  # the record of the last job, and the only one
    job_files = _File(JOB_FILES)
    job_config = _File("job/settings.yaml")  # settings and resources of the job of a command
    # A background job on this machine locks this file from its start to its end.
    job_lock = _File(".job")
    code = _File(CODE)  # the source of the project when a job was submitted

    def curves(self, split: str) -> Path:
        """Return the folder of the event files of a split.

        The folder of train also contains metrics that have no split.
        """
        return self.path / CURVES[split]

    def confusion(self, split: str) -> Path:
        """Return the JSON file with the numbers of the confusion matrix of a split."""
        return self.pictures / f"{split}_confusion_matrix.json"

    def rank_log(self, rank: int) -> Path:
        """Return the log of a rank. That of rank 0 has only errors, because it prints elsewhere."""
        return self.path / f"rank{rank}.log"

    def heartbeat(self, rank: int) -> Path:
        """Return the file with host and process of a live rank.

        The rank touches the file every second.
        """
        return self.path / f".beat{rank}"

    def heartbeats(self) -> dict[int, Path]:
        ranks = {path: path.name.removeprefix(".beat") for path in self.path.glob(".beat*")}
        return {int(rank): path for path, rank in ranks.items() if rank.isdecimal()}

    def rendezvous(self, step: str) -> Path:
        """Return the file with the address of rank 0 in one start of a job.

        It is removed when all ranks have connected.
        """
        return self.path / f"rendezvous-{step}"

    # -- facts of the start ------------------------------------------------------------------------

    def note(self, **facts: Any) -> None:
        """Add or replace facts in run.json.

        One process may call it at a time: the parent before a training, then rank 0.
        """
        write_json(self.facts_file, {**read_json(self.facts_file), **facts})

    def claim(self, **facts: Any) -> None:
        """Record that this user created the folder on this machine, with more facts.

        The inode is recorded, which a copy of the folder does not have.
        """
        self.note(**facts, inode=self.path.stat().st_ino)

    def is_made_here(self) -> bool:
        """Return True if this user created the folder on this machine.

        It is False for a copy or an unpacked archive, regardless of its owner.
        """
        try:
            state = self.path.stat(follow_symlinks=False)
            return state.st_uid == os.geteuid() and self.fact("inode") == state.st_ino
        except (OSError, ValueError):
            return False

    def fact(self, name: str) -> Any:
        """Read a fact that `note` has recorded, or return None if it has not."""
        return read_json(self.facts_file).get(name)

    def read_overrides(self) -> list[str]:
        """Read the overrides of the command line, without secrets."""
        return list(map(str, self.fact("overrides") or []))

    # -- status, summary, metrics and job ----------------------------------------------------------

    def write_status(self, **fields: Any) -> None:
        """Replace status.json. Only rank 0 or the parent may call it."""
        write_json(self.status_file, {**fields, "updated": time.time()})

    def update_status(self, **fields: Any) -> None:
        """Change some fields of status.json, or replace a damaged one.

        Call it only while no training writes the file.
        """
        try:
            before = read_json(self.status_file)
        except ValueError:
            before = {}
        self.write_status(**{**before, **fields})

    def read_status(self) -> JsonObject:
        """Read the fields of status.json, which are empty before the first status.

        A run with a summary is finished, even if it was killed before its last status. A live run
        with a request to stop has the state "stopping". It has the state "no signal" if its process
        is gone. For a process of another machine or user this means a status older than
        `STATUS_TIMEOUT_S`, by the clock of the file system.
        """
        status = read_json(self.status_file)
        if self._is_gone(status):
            status = read_json(self.status_file)  # The run may have finished since.
            if self._is_gone(status):
                status["state"] = "no signal"
        if status.get("state", "finished") != "finished" and self.summary.is_file():
            status |= {"state": "finished", "reason": ""}
        if status.get("state") in LIVE_STATES and self.stop_flag.is_file():
            status["state"] = "stopping"
        return status

    def _is_gone(self, status: JsonObject) -> bool:
        if status.get("state") not in LIVE_STATES or (is_locked := self.is_locked()):
            return False
        is_here = is_locked is not None and status.get("host") == socket.gethostname()
        return is_here or self.now_s() - self.status_file.stat().st_mtime > STATUS_TIMEOUT_S

    def write_summary(self, summary: JsonObject) -> None:
        write_json(self.summary, summary)

    def read_summary(self) -> JsonObject:
        """Read the result of a finished run, which is empty for others."""
        return read_json(self.summary)

    def read_job(self) -> JsonObject:
        """Read the record of the job, which is empty for a run that was not submitted."""
        return read_json(self.job_file)

    def write_job(self, record: JsonObject) -> None:
        write_json(self.job_file, record)

    def read_metrics(self) -> list[dict[str, str]]:
        """Read metrics.csv, one row per epoch, without an incomplete last line."""
        return files.read_rows(self.metrics)

    # -- the request to stop -----------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """Request that all ranks stop together. An earlier request keeps its reason."""
        files.create(self.stop_flag, f"{reason}\n")

    def stop_reason(self) -> str:
        """Return the reason in STOP, which is empty without a readable file."""
        try:
            return read_text(self.stop_flag).strip()
        except (OSError, ValueError):
            return ""

    def stop_request(self) -> str:
        """Return the request to stop and its reason as text, which is empty without one."""
        return (
            f"stop flag: {self.stop_reason() or 'no reason given'}"
            if self.stop_flag.exists()
            else ""
        )

    def clear_stop(self) -> None:
        files.remove(self.stop_flag)

    # -- failures ----------------------------------------------------------------------------------

    def record_failure(self, report: str) -> None:
        """Keep the first failure. Later ones are mostly its consequences."""
        files.create(self.failure, report)

    def failure_cause(self) -> str:
        """Return the line of failure.txt that names the cause, which is empty without a failure."""
        from lockstep.system import tracebacks

        with suppress(OSError, ValueError):
            return tracebacks.cause(read_text(self.failure).strip())
        return ""

    def await_failure(self, timeout_s: float) -> None:
        """Return when a failure is recorded, or after `timeout_s`.

        The failed rank may have died before it recorded the failure.
        """
        deadline = time.monotonic() + timeout_s
        while not self.failure.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def ended(self) -> list[Path]:
        """The files that record how a run ended, besides its status."""
        return [self.failure, self.summary, self.fold_rows, *self.pictures.glob("test_*")]

    @contextmanager
    def set_aside_end(self, rejection: type[Exception]) -> Iterator[None]:
        """Set aside the files that record how the run ended.

        They are restored unless the block makes progress. This needs no space on a full disk. A
        `rejection` also restores the configuration and the status.
        """
        old_times = self._checkpoint_times()
        contents = {
            path: path.read_bytes() for path in (self.config, self.status_file) if path.is_file()
        }
        renamed_paths = {
            path: path.with_name(files.temporary_name(path)) for path in self.ended if path.exists()
        }
        try:
            for path, temporary in renamed_paths.items():
                path.rename(temporary)
            yield
        except rejection:
            files.remove(self.failure)
            for path, content in contents.items():
                if path.read_bytes() != content:
                    # The disk may have become full.
                    with suppress(OSError), files.atomic_file(path) as file:
                        file.write(content)
            raise
        finally:
            is_over = self._checkpoint_times() != old_times or self.summary.exists()
            for path, temporary in renamed_paths.items():
                if is_over or path.exists():
                    files.remove(temporary)
                else:
                    temporary.rename(path)

    def _checkpoint_times(self) -> dict[Path, int]:
        """Return when each checkpoint was written."""
        return {path: path.lstat().st_mtime_ns for path in self.checkpoints.glob("*.ckpt")}

    def forget_end(self) -> None:
        """Remove STOP, failure.txt, summary.json and the files of the test before a resume."""
        for path in (self.stop_flag, *self.ended, *self.heartbeats().values()):
            files.remove(path)

    # -- one trainer at a time ---------------------------------------------------------------------

    def lock(self, *, is_patient: bool = False) -> AbstractContextManager[None]:
        """Lock the run for this process.

        The kernel releases the lock when the process ends, for any reason. If another process holds
        the lock, wait if `is_patient`, else raise BlockingIOError.
        """
        return files.hold_lock(self.lock_file, is_patient=is_patient)

    def is_locked(self) -> bool | None:
        """Check whether a live process on this machine trains the run.

        Returns None for a run of another user.
        """
        return files.is_locked(self.lock_file)

    def now_s(self) -> float:
        """Return the time by the clock of the file system, which may be that of a file server."""
        if self.is_made_here():
            # The run may never have been trained, or the folder may be read-only.
            with suppress(OSError):
                os.utime(self.lock_file, follow_symlinks=False)
                return self.lock_file.lstat().st_mtime
        return time.time()

    def has_job_here(self) -> bool | None:
        """Check whether a background job on this machine is live.

        Returns None for a job of another user.
        """
        return files.is_locked(self.job_lock)

    def remove_leftovers(self, *, is_deep: bool = True) -> None:
        """Remove temporary files of killed writers, such as half a checkpoint.

        If `is_deep`, also remove them in subfolders.
        """
        files.remove_leftovers(self.path, is_deep=is_deep)

    def remove(self, *, kept_names: Collection[str] = ()) -> None:
        """Remove all files of the run except those in `kept_names`. The caller holds the lock.

        Links are not followed. Configuration, facts and lock are removed last. An interrupted
        removal then leaves a run that is recognized as created on this machine.
        """
        last_paths = (self.config, self.facts_file, self.lock_file)
        for entry in list(os.scandir(self.path)):
            if entry.name in kept_names:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif self.path / entry.name not in last_paths:
                os.unlink(entry.path)
        for path in last_paths:
            if path.name not in kept_names:
                path.unlink(missing_ok=True)
        if not kept_names:
            self.path.rmdir()
