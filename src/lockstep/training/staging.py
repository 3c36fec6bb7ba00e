"""The files of a run where its node reads them: downloaded, copied or fetched once a node while other ranks wait."""

import contextlib
import io
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lockstep.config.faults import ConfigError
from lockstep.config.target_sections import Data
from lockstep.data.images.listing import FOLDERS, IMAGE_SUFFIXES, list_classes
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy, Source
from lockstep.distributed.collectives import gather_objects
from lockstep.system.redaction import redacted

T = TypeVar("T")
IMAGE_FOLDER = "lockstep.data.image_folder"
BEAT_S = 5.0  # well below any strategy.timeout_s


def once_a_node(
    section: Data, load: Callable[[Data], T], *, rank: int, local_rank: int, is_silent: bool, held: contextlib.ExitStack
) -> T:
    """What `load` makes of the section once its files are where this node reads them; every rank must call it.

    Files that are downloaded, on rank 0 first, lie in data.root. A copy stays while `held` is open. Raises ConfigError
    on all ranks, with the faults of all nodes.
    """
    copy = copy_of(section)
    is_first, is_download = local_rank == 0, bool(section.arguments().get("download"))
    # one voice: the first process of a machine tells of what is done, also by another one
    with contextlib.redirect_stdout(io.StringIO()) if is_silent or not is_first else contextlib.nullcontext():
        loaded: list[T] = []
        if is_download and not (copy is not None and remote.is_url(section.root or "")):
            # a folder that all nodes share is filled once
            for is_turn in (rank == 0, rank > 0 and is_first):
                loaded += together(lambda beat: [load(section)] if is_turn and not loaded else [])  # noqa: B023
        if copy is None:
            return loaded[0] if loaded else readable(lambda: load(section))
        loaded.clear()
        with contextlib.ExitStack() as reading:
            together(lambda beat: copy.make(lambda: _source(section, copy, beat), beat, reading) if is_first else None)
            if not is_first:
                reading.enter_context(copy.used())
            held.callback(remove_unused, section)  # after the end of what follows
            held.enter_context(reading.pop_all())
        _check_same(copy)
        update = {"root": str(copy.folder), **({"download": False} if is_download else {})}
        local = section.model_copy(update=update)
        return readable(lambda: load(local), f"{local.root} is the copy of {copy.source}")


def together(work: Callable[[Callable[[], None]], T]) -> T:
    """What `work` returns on this rank; every rank must call it. Its faults become one ConfigError on all ranks.

    `work` calls what it is given now and then, so that the ranks that wait do not take it for dead.
    """
    last = time.monotonic()

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last >= BEAT_S:
            gather_objects((False, ("", [])))
            last = time.monotonic()

    faults: list[str] = []
    result: list[T] = []
    try:
        result.append(work(beat))
    except (FileNotFoundError, ValueError) as error:
        faults = str(error).splitlines()
    reports = gather_objects((True, (socket.gethostname(), faults)))
    while not all(is_done for is_done, _ in reports):
        reports = gather_objects((True, (socket.gethostname(), faults)))
    if any(faults for _, (_, faults) in reports):
        has_nodes = len({node for _, (node, _) in reports}) > 1
        all_faults = [f"{node}: {fault}" if has_nodes else fault for _, (node, faults) in reports for fault in faults]
        raise ConfigError(list(dict.fromkeys(all_faults)))
    return result[0]


def copy_of(section: Data) -> Copy | None:
    """The copy a section asks for; None where its files are read where they are."""
    if section.root is None:
        return None
    is_remote, cache = remote.is_url(section.root), section.arguments().get("cache")
    if section.copy_to is not None:
        key, folder = "data.copy_to", section.copy_to
    elif is_remote and section.target == IMAGE_FOLDER and cache is not None:
        key, folder = "data.cache", cache
    else:
        return None
    below = FOLDERS.get(section.target, "")
    if is_remote:
        source = "/".join(filter(None, (remote.without_query(section.root).rstrip("/"), below)))
        called, name = redacted(source), remote.name_of(section.root)
    else:
        source = called = str((Path(section.root).expanduser() / below).resolve())
        name = below.partition("/")[0] or Path(source).name.lstrip(".") or "files"
    return Copy(
        setting=f"{key}={folder}",
        source=called,
        place=copying.place_of(folder, source, name),
        name=name,
        is_optional=not is_remote,
    )


def remove_unused(section: Data) -> None:
    """Remove the copy of a run that has ended, where it asks for that and no other run uses it."""
    copy = copy_of(section)
    if copy is not None and section.copy_remove:
        copy.remove()


def _source(section: Data, copy: Copy, beat: Callable[[], None]) -> Source:
    assert section.root is not None
    below, is_images = FOLDERS.get(section.target, ""), section.target == IMAGE_FOLDER
    if remote.is_url(section.root):
        return remote.files_at(
            section.root, "data.root", below=below, suffixes=IMAGE_SUFFIXES if is_images else (), beat=beat
        )
    if copy.place.resolve().is_relative_to(copy.source):
        raise ValueError(f"{copy.setting} lies in what it is to copy, {copy.source}: set it to another folder.")
    try:
        if not is_images:
            root = Path(section.root).expanduser().resolve()
            if not (root / below).is_dir():
                raise FileNotFoundError(
                    f"data.root={section.root} has no folder {below}: set data.download=true, or correct the path."
                )
            return copying.files_below(root, below)
        listing = list_classes(section.root)
    except OSError as error:
        if error.errno is None:
            raise  # says itself what is wrong
        raise ValueError(f"data.root={section.root} cannot be read ({error}): mend it.") from error
    states: list[list[int]] = listing.states.tolist()
    files = {
        name: (size, time_ns, entry_ns) for name, (size, time_ns, entry_ns) in zip(listing.names, states, strict=True)
    }
    return Source(files, lambda name, path: copying.copy_file(listing.folder / name, path), listing.digest)


def _check_same(copy: Copy) -> None:
    """All nodes read the same, also when the source was changed while they copied."""
    note = copying.note(copy.folder)
    if len(set(gather_objects(note and note.digest))) > 1:
        raise ConfigError([f"{copy.source} changed while the nodes copied it, one after the other: start again"])


def readable(read: Callable[[], T], remark: str = "") -> T:
    """What `read` returns. Its faults, which name a setting or a file and the cure, become a ConfigError."""
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        faults = str(error).splitlines()
        raise ConfigError([*faults[:-1], f"{faults[-1]} ({remark})" if remark else faults[-1]]) from error
