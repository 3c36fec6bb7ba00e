"""Reads the files of Weights & Biases: logs of records in the format of LevelDB."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 32768
# bytes of the file's own header; checksum, length and kind of a part
HEADER, RECORD = 7, struct.Struct("<IHB")
FULL, LAST = 1, 4


class Session(NamedTuple):
    """Id and name of the run, its configuration, its points in order, and its exit code."""

    id: str
    name: str
    config: dict[str, Any]
    points: list[dict[str, float]]
    exit_code: int | None


def sessions(run_folder: Path) -> list[Session]:
    """The sessions of a run, the oldest first."""
    return [_session(path) for path in sorted(run_folder.glob("wandb/offline-run-*/*.wandb"))]


def _session(path: Path) -> Session:
    identity, config, points, exit_code = ("", ""), {}, [], None
    for record in _records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            identity = (record.run.run_id, record.run.display_name)
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
        elif kind == "history":
            named = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            points.append(
                {name: value for name, value in named.items() if not name.startswith("_")}
            )
        elif kind == "exit":
            exit_code = record.exit.exit_code
    return Session(*identity, config, points, exit_code)


def _records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), HEADER, b""
    while at + RECORD.size <= len(content):
        left = BLOCK - at % BLOCK
        if left < RECORD.size:
            at += left
            continue
        _, length, kind = RECORD.unpack_from(content, at)
        at += RECORD.size
        whole += content[at : at + length]
        at += length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue]
            record.ParseFromString(whole)
            whole = b""
            yield record
