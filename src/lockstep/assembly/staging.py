"""Data that is downloaded or copied once on each node."""

import contextlib
import io
from collections.abc import Callable
from typing import TypeVar

from lockstep.assembly.agreement import readable, together
from lockstep.config.schema.target_sections import Data

T = TypeVar("T")


def once_a_node(section: Data, load: Callable[[Data], T], *, rank: int, local_rank: int, is_silent: bool) -> T:
    """Return `load(section)` once its files are where this node reads them. Every rank must call it.

    Downloads go to data.root, on rank 0 first. Raises ConfigError on all ranks, with the errors of all nodes.
    """
    section = together(section.resolve_paths)
    is_first = local_rank == 0
    # only the first process of a machine prints
    with contextlib.redirect_stdout(io.StringIO()) if is_silent or not is_first else contextlib.nullcontext():
        if section.is_copied:
            from lockstep.assembly import data_copies

            local, remark = data_copies.stage(section, is_first=is_first)
            return readable(lambda: load(local), remark)
        loaded: list[T] = []
        if section.arguments().get("download"):
            # a folder that all nodes share is filled once
            for is_turn in (rank == 0, rank > 0 and is_first):
                loaded += together(lambda: [load(section)] if is_turn else [])  # noqa: B023
        return loaded[0] if loaded else readable(lambda: load(section))
