"""The record of a job, in the folder of the run that it trains, or in that of its command."""

import re
from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.runs.files import JsonObject
from lockstep.runs.folder import RunFolder
from lockstep.system.terminal import printable

ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?|local-[0-9a-f]{1,64}")
MAX_NUMBER = 2**64  # maximum of a number: the inode of a folder has 64 bits


@dataclass(frozen=True)
class JobRecord:
    """One submission of a run.

    `cluster` holds its settings, and `earlier` the ids of the previous submissions. The job of a
    `command` executes `lockstep COMMAND` in every task, or in one task (`is_head`), which starts
    the others.
    """

    id: str
    engine: str
    name: str
    task: str
    cluster: JsonObject
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
        """False for a benchmark, because the machines of another job would have other speeds."""
        return self.command[:1] != ("benchmark",)

    def save(self, folder: RunFolder) -> None:
        folder.write_job(asdict(self))


def read(folder: RunFolder) -> JobRecord | None:
    """Return the record of a run, or None if it was never submitted.

    Raises ValueError for a file that is not a record.
    """
    try:
        values = folder.read_job()
        if not values:
            return None
        values.pop("inode", None)  # An earlier version wrote it.
        lists = {
            key: tuple(values[key]) for key in ("earlier", "command") if _has_texts(values.get(key))
        }
        record = JobRecord(**{**values, **lists})
        for field in fields(JobRecord):
            if not _is_of(getattr(record, field.name), field.type):
                raise ValueError(f"wrong value of {field.name}")
        if not ID.fullmatch(record.id):
            raise ValueError("wrong value of id")
        if record.pid is not None and record.pid not in range(1, 2**31):
            raise ValueError("wrong value of pid")
    except (TypeError, ValueError) as error:
        raise ValueError(printable(f"{folder.job_file} is not a job record: {error}")) from error
    return record


def _is_of(value: Any, kind: Any) -> bool:
    """Check a value against the annotation of a field of `Record`.

    Numbers must not be negative or huge.
    """
    # This corresponds to `config.schema.sections.Cluster`: plain values and lists of texts.
    if kind == JsonObject:
        values = value.values() if isinstance(value, dict) else [{}]
        return all(
            item is None or isinstance(item, str | int | float) or _has_texts(item)
            for item in values
        )
    if kind == tuple[str, ...]:
        return isinstance(value, tuple)
    if isinstance(value, bool) or kind is bool:
        return kind is bool and isinstance(value, bool)
    is_small = not isinstance(value, int | float) or 0 <= value < MAX_NUMBER
    return is_small and isinstance(value, int | float if kind is float else kind)


def _has_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
