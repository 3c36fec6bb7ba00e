"""The record of a job: who trains a run, where its log is, and whether somebody has cancelled it."""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.folder import RunFolder

ID = re.compile(r"\d+(_\d+)?|local-[0-9a-f]+")
TASKS = ("train", "train-without-test")


@dataclass(frozen=True)
class Record:
    """One submission of a run. `cluster` holds its settings, `earlier` the ids of the submissions before it."""

    id: str
    engine: str
    name: str
    task: str
    cluster: Mapping[str, Any]
    num_nodes: int
    workers_per_node: int
    gpus_per_node: int
    submitted: float
    log: str
    code: str
    cwd: str
    host: str
    pid: int | None = None
    cancelled: bool = False
    earlier: tuple[str, ...] = ()
    inode: int = 0  # of the run folder, and not of its copies; its device has another number on another node

    def save(self, folder: RunFolder) -> None:
        """Write this record into the folder of a run."""
        folder.write_job(asdict(self))


def read(folder: RunFolder) -> Record | None:
    """The record of a run, None where nobody submitted it. Raises ValueError for a file that is no record."""
    try:
        values = folder.read_job()
        if not values:
            return None
        record = Record(**{**values, "earlier": tuple(values["earlier"])})
        if not ID.fullmatch(record.id) or record.task not in TASKS:
            raise ValueError("it has no id of a job")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder.job_file} is no record of a job: {error}") from error
    return record


def is_own(folder: RunFolder, record: Record) -> bool:
    """Whether this user has submitted the run, in this folder, and all that its job would do lies there as it did."""
    files = (folder.job_file, folder.config, folder.facts_file, folder.old_project)
    paths = (folder.path, *files, Path(record.code))
    is_mine = all(path.stat().st_uid == os.geteuid() for path in paths if path.exists())
    return is_mine and record.inode == folder.path.stat().st_ino


def mark(folder: RunFolder, *, cancelled: bool) -> None:
    """Write down whether somebody has cancelled the job of a run: it is not requeued then."""
    folder.write_job({**folder.read_job(), "cancelled": cancelled})


def is_cancelled(folder: RunFolder) -> bool:
    """Whether somebody has; not where there is no record yet."""
    return folder.read_job().get("cancelled") is True
