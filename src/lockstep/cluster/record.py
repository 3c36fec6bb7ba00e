"""The record of a job, in the folder of the run that it trains, or in that of its command."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from lockstep.runs.folder import RunFolder
from lockstep.system.terminal import printable

ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?|local-[0-9a-f]{1,64}")
Count = Annotated[int, Ge(0), Lt(2**31)]


@dataclass(frozen=True)
class Record:
    """One submission of a run.

    `cluster` holds its settings, and `earlier` the ids of the previous submissions. The job of a
    `command` executes `lockstep COMMAND` in every task, or in one task (`is_head`), which starts
    the others.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "strict": True,
        "extra": "forbid",
        "allow_inf_nan": False,
    }

    id: str
    engine: str
    name: str
    task: str
    cluster: Mapping[str, Any]
    num_nodes: Count
    workers_per_node: Count
    gpus_per_node: Count
    submitted: Annotated[float, Ge(0)]
    log: str
    code: str
    cwd: str
    host: str
    pid: Annotated[int, Ge(1), Lt(2**31)] | None = None
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


def read(folder: RunFolder) -> Record | None:
    """Return the record of a run, or None if it was never submitted.

    Raises ValueError for a file that is not a record.
    """
    try:
        values = folder.read_job()
        if not values:
            return None
        values.pop("inode", None)  # An earlier version wrote it.
        record: Record = _validator().validate_json(json.dumps(values))
        if not ID.fullmatch(record.id):
            raise ValueError("wrong value of id")
    except ValueError as error:
        raise ValueError(printable(f"{folder.job_file} is not a job record: {error}")) from error
    return record


@cache
def _validator() -> Any:
    from pydantic import TypeAdapter  # A command without jobs does not need it.

    return TypeAdapter(Record)
