"""The record of a job, in the folder of the run that it trains, or in that of its command."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.runs.folder import RunFolder

ID = re.compile(r"\d+(_\d+)?|local-[0-9a-f]+")


@dataclass(frozen=True)
class Record:
    """One submission of a run. `cluster` holds its settings, `earlier` the ids of the submissions before it.

    The job of a `command` executes `lockstep COMMAND` in every task, or in one (`is_head`), which starts the others.
    """

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
    command: tuple[str, ...] = ()
    is_head: bool = False

    @property
    def is_resumable(self) -> bool:
        """False for a benchmark: the machines of another job would have other speeds."""
        return self.command[:1] != ("benchmark",)

    def save(self, folder: RunFolder) -> None:
        folder.write_job(asdict(self))


def read(folder: RunFolder) -> Record | None:
    """Return the record of a run, None if it was never submitted. Raises ValueError for a file that is not a record."""
    try:
        values = folder.read_job()
        if not values:
            return None
        values.pop("inode", None)  # of an earlier version
        lists = {name: tuple(values.get(name, ())) for name in ("earlier", "command")}
        record = Record(**{**values, **lists})
        if not ID.fullmatch(record.id):
            raise ValueError(f"{record.id!r} is not a job id")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder.job_file} is not a job record: {error}") from error
    return record


def mark_cancelled(folder: RunFolder) -> None:
    """Record that a person cancelled the job of a run: it is not requeued."""
    folder.write_job({**folder.read_job(), "cancelled": True})
