"""Copies of data folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.assembly import run_parts
from lockstep.config.schema.target_sections import Data
from tests.support.image_files import LIST, SETTINGS


def section(root: Path | str | None, scratch: Path | None, **changes: Any) -> Data:
    places = {"root": str(root) if root else None, "copy_to": str(scratch) if scratch else None}
    settings = {"_target_": "lockstep.data.image_folder", "num_workers": 1, **SETTINGS}
    return Data.model_validate(settings | places | changes)


def listed(file: Path, scratch: Path | None, root: str | None = None, **changes: Any) -> Data:
    """The images of a list, which has their columns path and label."""
    settings = {**LIST, "_target_": "lockstep.data.image_list", "file": str(file), **changes}
    return section(root, scratch, **settings)


def read(asked: Data, load: Callable[[Data], Any] = lambda data: data.root) -> Any:
    """What a run loads once its files are copied."""
    return run_parts.once_a_node(asked, load, rank=0, local_rank=0, is_silent=False)


def make(root: Path | str, scratch: Path | None, **changes: Any) -> Path:
    """Copy as a run does. Returns the folder of the copy."""
    return Path(read(section(root, scratch, **changes)))


def shown(scratch: Path) -> list[Path]:
    """The copies in a folder, without lock files."""
    return [path for path in scratch.iterdir() if not path.name.endswith(".lock")]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ctime_ns for path in folder.rglob("*")}
