"""The run folder: the only interface between a training process and every tool that watches, stops or reads it.

Owns the names and formats of all files in it. Standard library only, so that tools start at once.
"""

import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs import files
from lockstep.runs.files import read_json, read_lines, read_text, write_json

EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, go on later
EXIT_INTERRUPTED = 130  # by a second Ctrl-C
GRACE_S = 5.0  # after a rank failed, the others get this long to notice it themselves
LIVE_STATES = ("starting", "training", "validating", "testing", "stopping")
ENDED_STATES = ("stopped", "pruned", "finished", "failed")
SILENT_S = 600.0  # longer than any step: between two steps a status is written every second
BENCHMARK = "results.json"  # beside the run folders of a benchmark
# where TensorBoard's event files of a split lie in the run folder: it takes every folder with such files for a run
CURVES = {"train": "", "val": "validation", "test": "test"}
WANDB = "wandb"  # what Weights & Biases writes, beside the configuration of a run
CODE = "code"  # what a job runs: its config.yaml files are of no run
SWEEP = "sweep.json"  # beside the run folders of a sweep


class FailedElsewhere(RuntimeError):
    """Ends a rank because of another one, which knows more of the cause and is about to record it."""


class _File:
    """A file or folder of a run, by its name in the run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", kind: object = None) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    config = _File("config.yaml")  # resolved: ranks, trials, tasks and resumes start from it
    facts_file = _File("run.json")  # facts of the start: overrides, folders of modules, environment, id at W&B
    status_file = _File("status.json")  # what the run is doing, from its preparation on
    summary = _File("summary.json")  # the result of a finished run
    metrics = _File("metrics.csv")  # a row per epoch
    checkpoints = _File("checkpoints")
    last_checkpoint = _File("checkpoints/last.ckpt")  # the newest state, from which a resume continues
    best_checkpoint = _File("checkpoints/best.ckpt")  # the state with the best monitored value
    initial_weights = _File("initial.ckpt")  # a copy of the checkpoint that `init_from` names, for a start from scratch
    images = _File("images.json.gz")  # name, target and split of every image of the training, and its classes
    pictures = _File("pictures")  # PNG files of what the network gets right and wrong, and confusion matrices
    old_project = _File("project.json")  # the folders of modules of a run that was begun before 2026-11-25
    old_curves = _File("tensorboard")  # all event files of a run that was begun before 2026-11-22
    failure = _File("failure.txt")  # the traceback of the first rank that failed
    scores = _File("scores.json")  # loss and accuracy of the last evaluation
    stop_flag = _File("STOP")  # present = please stop; contains the reason
    lock_file = _File(".lock")  # held by the process that trains the run; there since the first training
    job_file = _File("job.json")  # the record of the last job, and the only one
    job_files = _File("job")  # the script of a job and what it prints, a log for every rank
    job_lock = _File(".job")  # held by a job in the background of this machine, from its start to its end
    code = _File(CODE)  # the source of the project when a job was submitted

    def curves(self, split: str) -> Path:
        """Event files of a split, of all sessions of the run; those of train hold also what belongs to no split."""
        return self.path / CURVES[split]

    def confusion(self, split: str) -> Path:
        """The numbers of a picture of the same name: classes, and counts of what each was taken for."""
        return self.pictures / f"{split}_confusion_matrix.json"

    def read_confusion(self, split: str) -> dict[str, Any]:
        """What stands there; empty where nothing was drawn."""
        return read_json(self.confusion(split))

    def rank_log(self, rank: int) -> Path:
        """Everything a rank other than 0 printed."""
        return self.path / f"rank{rank}.log"

    def heartbeat(self, rank: int) -> Path:
        """Host and process of a rank; touched while it lives."""
        return self.path / f".beat{rank}"

    def heartbeats(self) -> dict[int, Path]:
        """The heartbeats that there are, by rank."""
        return {int(path.name.removeprefix(".beat")): path for path in self.path.glob(".beat*")}

    def rendezvous(self, step: str) -> Path:
        """Where rank 0 of one start of a job says where it can be reached; there until all ranks have met."""
        return self.path / f"rendezvous-{step}"

    # -- facts of the start; runs made before 2026-11-25 have them in files of their own ------------------------------

    def note(self, **facts: Any) -> None:
        """Add facts to run.json, or replace them. One process at a time: before a training the parent, then rank 0."""
        write_json(self.facts_file, {**read_json(self.facts_file), **facts})

    def _fact(self, name: str) -> Any:
        return read_json(self.facts_file).get(name)

    def read_overrides(self) -> list[str]:
        """The overrides that were typed, without secrets."""
        return self._fact("overrides") or read_lines(self.path / "overrides.txt")

    def read_project(self) -> dict[str, Any]:
        """The folders that contain the modules of the run, empty where they were not recorded."""
        return self._fact("project") or read_json(self.old_project)

    def read_environment(self) -> dict[str, Any]:
        """Versions, devices and commit of the machine that trained last."""
        return self._fact("environment") or read_json(self.path / "environment.json")

    def read_version(self) -> str | None:
        """The version of Lockstep that trained the run last, if it is known."""
        try:
            return self.read_environment()["packages"]["lockstep"]
        except (OSError, ValueError, KeyError):
            return None

    def wandb_id(self) -> str:
        """The id of the run at Weights & Biases in all its sessions; made up at the first call. Rank 0 only."""
        known = self._fact("wandb_id") or "".join(read_lines(self.path / "wandb_id.txt")) or secrets.token_hex(4)
        self.note(wandb_id=known)
        return known

    # -- status and summary ------------------------------------------------------------------------------------------

    def status_changed_ns(self) -> int:
        """When status.json was replaced last; 0 where there is none."""
        try:
            return self.status_file.stat(follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def write_status(self, **fields: Any) -> None:
        """Replace status.json. Rank 0 or the parent only."""
        write_json(self.status_file, {**fields, "updated": time.time()})

    def update_status(self, **fields: Any) -> None:
        """Change some fields of status.json, of a damaged one all. Only while no training writes it."""
        try:
            before = read_json(self.status_file)
        except ValueError:
            before = {}
        self.write_status(**{**before, **fields})

    def read_status(self) -> dict[str, Any]:
        """Fields of status.json, empty before the first one is written.

        A run with a summary is finished, also if it was killed before its last status. A live run that was asked to
        stop shows as state "stopping", one whose process is gone as "no signal". The process of another machine or
        user counts as gone when its status is older than `SILENT_S` by the clock of the file system.
        """
        status = read_json(self.status_file)
        if self._is_gone(status):
            status = read_json(self.status_file)  # it may have ended well since the first look
            if self._is_gone(status):
                status["state"] = "no signal"
        if status.get("state", "finished") != "finished" and self.summary.is_file():
            status |= {"state": "finished", "reason": ""}
        if status.get("state") in LIVE_STATES and self.stop_flag.is_file():
            status["state"] = "stopping"
        return status

    def _is_gone(self, status: dict[str, Any]) -> bool:
        if status.get("state") not in LIVE_STATES or (is_locked := self.is_locked()):
            return False
        is_here = is_locked is not None and status.get("host") == socket.gethostname()
        return is_here or self.now_s() - self.status_file.stat().st_mtime > SILENT_S

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json: the result of a finished run."""
        write_json(self.summary, summary)

    def read_summary(self) -> dict[str, Any]:
        """The result of a finished run, empty for others."""
        return read_json(self.summary)

    # -- the job that trains the run ---------------------------------------------------------------------------------

    def read_job(self) -> dict[str, Any]:
        """The record of the job, empty where nobody submitted the run."""
        return read_json(self.job_file)

    def write_job(self, record: dict[str, Any]) -> None:
        """Replace the record of the job."""
        write_json(self.job_file, record)

    # -- metrics: a row per epoch ------------------------------------------------------------------------------------

    def read_metrics(self) -> list[dict[str, str]]:
        """Rows of metrics.csv, one per epoch; half a last line is none."""
        return files.read_rows(self.metrics)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace metrics.csv."""
        files.write_rows(self.metrics, rows)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Append the row of an epoch to metrics.csv."""
        files.append_rows(self.metrics, [row])

    # -- the stop flag -----------------------------------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """Ask all ranks to stop together. A request that is already there stays as it is."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            number = os.open(self.stop_flag.name, flags, 0o644, dir_fd=folder)
        except FileExistsError:
            return
        except PermissionError as error:
            message = f"belongs to {files.owner(self.path)}: ask them to stop it"
            raise PermissionError(error.errno, message, str(self.path)) from error
        finally:
            os.close(folder)
        with open(number, "w") as file:
            file.write(reason + "\n")

    def stop_reason(self) -> str:
        """Why the run was asked to stop; empty when nobody asked or said, or no plain file says it."""
        try:
            return read_text(self.stop_flag).strip()
        except (OSError, ValueError):
            return ""

    def clear_stop(self) -> None:
        """Forget a request to stop."""
        self.stop_flag.unlink(missing_ok=True)

    # -- failures ----------------------------------------------------------------------------------------------------

    def record_failure(self, text: str) -> None:
        """Keep the first failure; later ones, mostly its consequences, change nothing."""
        with contextlib.suppress(FileExistsError), open(self.failure, "xb") as file:
            file.write(text.encode(errors="backslashreplace"))

    def await_failure(self, timeout_s: float) -> None:
        """Return when a failure is on record, or after `timeout_s`: the rank that knew of it may have died."""
        deadline = time.monotonic() + timeout_s
        while not self.failure.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def ended(self) -> list[Path]:
        """The files that record how a run ended, besides its status."""
        return [self.failure, self.summary, *self.pictures.glob("test_*")]

    def forget_end(self) -> None:
        """Clear STOP, failure.txt, summary.json and pictures of the test before a resume."""
        for path in (self.stop_flag, *self.ended, *self.heartbeats().values()):
            path.unlink(missing_ok=True)

    # -- one trainer at a time ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; the kernel lets go when the process ends, however it ends.

        Raises BlockingIOError while another process holds it.
        """
        with files.held(self.lock_file):
            yield

    def is_locked(self) -> bool | None:
        """Whether a live process on this machine trains the run; None for a run of another user."""
        return files.is_held(self.lock_file)

    def now_s(self) -> float:
        """The time by the clock of the file system, which sets the times of files: that of a file server is its own."""
        try:
            os.utime(self.lock_file)
            return self.lock_file.stat().st_mtime
        except OSError:  # never trained here, of another user, or read-only
            return time.time()

    def has_job_here(self) -> bool | None:
        """Whether a job in the background of this machine lives; None for a job of another user."""
        return files.is_held(self.job_lock)

    def remove_leftovers(self, *, is_deep: bool = True) -> None:
        """Remove what writers left that were killed: half a checkpoint, say. `is_deep`: also in the folders below."""
        files.remove_leftovers(self.path, is_deep=is_deep)

    def remove(self, *, kept: Collection[str] = ()) -> None:
        """Remove the run and all in its folder but what is `kept`, links themselves only. Hold the lock.

        The configuration and the lock go last: what an interrupted removal leaves is still a run.
        """
        for entry in list(os.scandir(self.path)):
            if entry.name in kept:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name not in (self.config.name, self.lock_file.name):
                os.unlink(entry.path)
        self.config.unlink(missing_ok=True)
        self.lock_file.unlink()
        if not kept:
            self.path.rmdir()
