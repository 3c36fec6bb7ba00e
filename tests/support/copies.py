"""Folders to copy, and the sections of a configuration that ask for it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.config.target_sections import Data
from lockstep.data.transfer.copying import Copy
from lockstep.training import staging


def section(root: Path | str, scratch: Path | None, **changes: Any) -> Data:
    values = {"root": str(root), "copy_to": str(scratch) if scratch else None, "copy_remove": False} | changes
    settings = {"val_fraction": 0.25, "test_fraction": 0.25, "split_seed": 0, "image_size": 8, "channels": 3}
    rest = {"background": "white", "cache": None, "memory": "host", "num_workers": 1}
    return Data.model_validate({"_target_": "lockstep.data.image_folder", **settings, **rest, **values})


def copy_of(root: Path, scratch: Path) -> Copy:
    copy = staging.copy_of(section(root, scratch))
    assert copy is not None
    return copy


def make(root: Path, scratch: Path, load: Callable[[Data], Any] = lambda _: None) -> Copy:
    """As a run that ends at once."""
    with contextlib.ExitStack() as held:
        staging.once_a_node(section(root, scratch), load, rank=0, local_rank=0, is_silent=False, held=held)
    return copy_of(root, scratch)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
