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
from lockstep.runs.files import (
    left_nothing,
    opened_and_held,
    read_json,
    read_text,
    write_json,
)

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


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration: ranks, trials, tasks and resumes start from it."""
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        """What was typed, one override a line; for people, nothing reads it back."""
        return self.path / "overrides.txt"

    @property
    def project(self) -> Path:
        """The folders in which the modules lie that the configuration names."""
        return self.path / "project.json"

    @property
    def images(self) -> Path:
        """Name, target and split of every image that the run was trained with, and its classes."""
        return self.path / "images.json.gz"

    @property
    def environment(self) -> Path:
        """Versions, devices and commit of the machine that trained last."""
        return self.path / "environment.json"

    @property
    def checkpoints(self) -> Path:
        """Holds best.ckpt and last.ckpt."""
        return self.path / "checkpoints"

    @property
    def last_checkpoint(self) -> Path:
        """The newest state: a resume goes on from here."""
        return self.checkpoints / "last.ckpt"

    @property
    def best_checkpoint(self) -> Path:
        """The state with the best monitored value."""
        return self.checkpoints / "best.ckpt"

    @property
    def initial_weights(self) -> Path:
        """The checkpoint whose weights the run started with, where `init_from` names one: kept here for a new start."""
        return self.path / "initial.ckpt"

    def curves(self, split: str) -> Path:
        """Event files of a split, of all sessions of the run; those of train hold also what belongs to no split."""
        return self.path / CURVES[split]

    @property
    def old_curves(self) -> Path:
        """All event files, in runs that were begun before 2026-11-22; they go on there."""
        return self.path / "tensorboard"

    @property
    def pictures(self) -> Path:
        """PNG files of what the network gets right and wrong, and the numbers of its confusion matrices."""
        return self.path / "pictures"

    def confusion(self, split: str) -> Path:
        """The numbers of a picture of the same name: classes, and counts of what each was taken for."""
        return self.pictures / f"{split}_confusion_matrix.json"

    def read_confusion(self, split: str) -> dict[str, Any]:
        """What stands there; empty where nothing was drawn."""
        return read_json(self.confusion(split))

    @property
    def failure(self) -> Path:
        """The traceback of the first rank that failed."""
        return self.path / "failure.txt"

    @property
    def scores(self) -> Path:
        """Loss and accuracy of the last evaluation."""
        return self.path / "scores.json"

    @property
    def code(self) -> Path:
        """The source of the project when a job was submitted."""
        return self.path / CODE

    @property
    def job_files(self) -> Path:
        """The script of a job and what it prints, a log for every rank."""
        return self.path / "job"

    def rank_log(self, rank: int) -> Path:
        """Everything a rank other than 0 printed."""
        return self.path / f"rank{rank}.log"

    @property
    def ranks(self) -> Path:
        """Signs of life of the ranks, while they compute."""
        return self.path / ".ranks"

    def rank_beat(self, rank: int) -> Path:
        """Host and process of a rank; touched while it lives."""
        return self.ranks / f"{rank}.beat"

    def rendezvous(self, step: str) -> Path:
        """Where rank 0 of one start of a job says where it can be reached; there until all ranks have met."""
        return self.path / f"rendezvous-{step}"

    def read_overrides(self) -> list[str]:
        """What was typed; empty where nothing was, or nobody typed."""
        try:
            return read_text(self.overrides).splitlines()
        except FileNotFoundError:
            return []

    def read_version(self) -> str | None:
        """The version of Lockstep that trained the run last; None where none did, or what it wrote cannot be read."""
        try:
            packages = self._read_json(self.environment.name).get("packages")
        except (OSError, ValueError):
            return None
        version = packages.get("lockstep") if isinstance(packages, dict) else None
        return version if isinstance(version, str) else None

    def read_project(self) -> dict[str, Any]:
        """The folders of the modules of the run, empty where nobody wrote them down."""
        return self._read_json(self.project.name)

    def write_project(self, folders: dict[str, Any]) -> None:
        """Replace project.json."""
        write_json(self.project, folders)

    def wandb_id(self) -> str:
        """What Weights & Biases calls the run, in all its sessions; made up at the first call. Rank 0 only."""
        path = self.path / "wandb_id.txt"
        if not path.is_file():
            files.write_atomically(path, secrets.token_hex(4) + "\n")
        return read_text(path).strip()

    # -- status and summary ------------------------------------------------------------------------------------------

    @property
    def status_file(self) -> Path:
        """What the run is doing, from its preparation on."""
        return self.path / "status.json"

    def write_status(self, **fields: Any) -> None:
        """Replace status.json. Rank 0 or the parent only."""
        write_json(self.status_file, {**fields, "updated": time.time()})

    def update_status(self, **fields: Any) -> None:
        """Change some fields of status.json, of a damaged one all. Only while no training writes it."""
        try:
            before = self._read_json(self.status_file.name)
        except ValueError:
            before = {}
        self.write_status(**{**before, **fields})

    def read_status(self) -> dict[str, Any]:
        """Fields of status.json, empty before the first one is written.

        A run with a summary is finished, also if it was killed before its last status. A live run that was asked to
        stop shows as state "stopping", one whose process is gone as "no signal". The process of another machine or
        user counts as gone when its status is older than `SILENT_S` by the clock of the file system.
        """
        status = self._read_json(self.status_file.name)
        if self._is_gone(status):
            status = self._read_json(self.status_file.name)  # it may have ended well since the first look
            if self._is_gone(status):
                status["state"] = "no signal"
        if status.get("state", "finished") != "finished" and self._summary.is_file():
            status |= {"state": "finished", "reason": ""}
        if status.get("state") in LIVE_STATES and self.stop_flag.is_file():
            status["state"] = "stopping"
        return status

    def _is_gone(self, status: dict[str, Any]) -> bool:
        if status.get("state") not in LIVE_STATES or (is_locked := self.is_locked()):
            return False
        is_here = is_locked is not None and status.get("host") == socket.gethostname()
        return is_here or self.now_s() - self.status_file.stat().st_mtime > SILENT_S

    @property
    def _summary(self) -> Path:
        return self.path / "summary.json"

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json: the result of a finished run."""
        write_json(self._summary, summary)

    def read_summary(self) -> dict[str, Any]:
        """The result of a finished run, empty for others."""
        return self._read_json(self._summary.name)

    def _read_json(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)

    # -- the job that trains the run ---------------------------------------------------------------------------------

    @property
    def job_file(self) -> Path:
        """The record of the last job; nothing else knows of it."""
        return self.path / "job.json"

    def read_job(self) -> dict[str, Any]:
        """The record of the job, empty where nobody submitted the run."""
        return self._read_json(self.job_file.name)

    def write_job(self, record: dict[str, Any]) -> None:
        """Replace the record of the job."""
        write_json(self.job_file, record)

    @property
    def job_lock(self) -> Path:
        """Held by a job in the background of this machine, from its start to its end."""
        return self.path / ".job"

    # -- metrics: a row per epoch ------------------------------------------------------------------------------------

    def read_metrics(self) -> list[dict[str, str]]:
        """Rows of metrics.csv, one per epoch."""
        return files.read_rows(self.path / "metrics.csv")

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace metrics.csv."""
        files.write_rows(self.path / "metrics.csv", rows)

    # -- the stop flag -----------------------------------------------------------------------------------------------

    @property
    def stop_flag(self) -> Path:
        """Present = please stop; holds the reason."""
        return self.path / "STOP"

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
        """Keep the first failure, whole; later ones, mostly its consequences, change nothing."""
        with left_nothing(self.failure) as temporary:
            with opened_and_held(temporary) as file:
                file.write(text.encode(errors="backslashreplace"))
            try:
                os.link(temporary, self.failure)
            except FileExistsError:
                return
            except OSError:  # a file system without links
                if not self.failure.exists():
                    files.replace(temporary, self.failure)

    def await_failure(self, timeout_s: float) -> None:
        """Return when a failure is on record, or after `timeout_s`: the rank that knew of it may have died."""
        deadline = time.monotonic() + timeout_s
        while not self.failure.exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    @property
    def ended(self) -> list[Path]:
        """The files that record how a run ended, besides its status."""
        return [self.failure, self._summary, *self.pictures.glob("test_*")]

    def forget_end(self) -> None:
        """Forget how the run ended: it goes on."""
        for path in (self.stop_flag, *self.ended, *self.ranks.glob("*")):
            path.unlink(missing_ok=True)

    # -- one trainer at a time ---------------------------------------------------------------------------------------

    @property
    def lock_file(self) -> Path:
        """Held by the process that trains the run; there since the first training."""
        return self.path / ".lock"

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
