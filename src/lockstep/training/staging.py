"""Downloads or copies the data of a run once a node, while other ranks wait."""

import contextlib
import io
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from lockstep.config.errors import ConfigError
from lockstep.config.target_sections import Data
from lockstep.data.images.listing import FOLDERS, IMAGE_SUFFIXES, existing, list_classes
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy, Source
from lockstep.distributed.collectives import gather_objects
from lockstep.system.redaction import redacted

T = TypeVar("T")
IMAGE_FOLDER = "lockstep.data.image_folder"
HEARTBEAT_S = 5.0  # well below any strategy.timeout_s


def once_a_node(
    section: Data, load: Callable[[Data], T], *, rank: int, local_rank: int, is_silent: bool, held: contextlib.ExitStack
) -> T:
    """Return `load(section)` once its files are where this node reads them. Every rank must call it.

    Downloads go to data.root, on rank 0 first. A copy stays while `held` is open. Raises ConfigError on all ranks, with
    the errors of all nodes.
    """
    copy = copy_of(section)
    is_first, is_download = local_rank == 0, bool(section.arguments().get("download"))
    # only the first process of a machine prints
    with contextlib.redirect_stdout(io.StringIO()) if is_silent or not is_first else contextlib.nullcontext():
        loaded: list[T] = []
        if is_download and not (copy is not None and remote.is_url(section.root or "")):
            # a folder that all nodes share is filled once
            for is_turn in (rank == 0, rank > 0 and is_first):
                loaded += together(lambda: [load(section)] if is_turn and not loaded else [])  # noqa: B023
        if copy is None:
            return loaded[0] if loaded else readable(lambda: load(section))
        loaded.clear()
        held.callback(remove_unused, section)  # runs last
        own_digest = together(lambda: copy.make(_source(section, copy), held) if is_first else None)
        digests = {digest for digest in gather_objects(own_digest) if digest is not None}
        if len(digests) > 1:
            raise ConfigError([f"{copy.source} changed while the nodes copied it, one after the other: start again"])
        path = copy.place(digests.pop())
        together(lambda: copying.hold(path, held))
        update = {"root": str(path / copy.name), **({"download": False} if is_download else {})}
        local = section.model_copy(update=update)
        return readable(lambda: load(local), f"{local.root} is the copy of {copy.source}")


def together(work: Callable[[], T]) -> T:
    """Return `work()` of this rank; its errors become one ConfigError on all ranks. Every rank must call it.

    `work` runs in a thread while the main thread sends heartbeats, so that no waiting rank times out.
    """
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    while True:
        is_done, errors = bool(wait([future], HEARTBEAT_S).done), []
        try:
            if is_done:
                future.result()
        except (FileNotFoundError, ValueError) as error:
            errors = str(error).splitlines()
        reports = gather_objects((is_done, socket.gethostname(), errors))
        if all(is_done for is_done, *_ in reports):
            break
    if any(errors for *_, errors in reports):
        has_nodes = len({node for _, node, _ in reports}) > 1
        all_errors = [
            f"{node}: {message}" if has_nodes else message for _, node, errors in reports for message in errors
        ]
        raise ConfigError(list(dict.fromkeys(all_errors)))
    return future.result()


def copy_of(section: Data) -> Copy | None:
    """Return the copy that a section requires; None if its files are read in place."""
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
    return Copy(f"{key}={folder}", called, copying.stem_of(folder, source, name), name)


def remove_unused(section: Data) -> None:
    """Remove the copy of a run that has ended, if data.copy_remove is set and no other run uses it."""
    copy = copy_of(section)
    if copy is not None and section.copy_remove:
        copy.remove()


def _source(section: Data, copy: Copy) -> Source:
    assert section.root is not None
    below, is_images = FOLDERS.get(section.target, ""), section.target == IMAGE_FOLDER
    if remote.is_url(section.root):
        return remote.files_at(section.root, below=below, suffixes=IMAGE_SUFFIXES if is_images else ())
    if copy.stem.resolve().is_relative_to(copy.source):
        raise ValueError(f"{copy.setting} lies inside the folder to copy, {copy.source}: set it to another folder.")
    root = Path(section.root).expanduser().resolve()
    try:
        if is_images:
            listing = list_classes(section.root)
            sizes = dict(zip(listing.names, listing.states[:, 0].tolist(), strict=True))
            return copying.files_of(listing.folder, sizes, listing.digest)
        existing(str(root / below), f"data.root={root / below}")
        return copying.files_below(root, below)
    except OSError as error:
        if error.errno is None:
            raise  # has a message of its own
        raise ValueError(f"data.root={section.root} cannot be read ({error}): check its permissions.") from error


def readable(read: Callable[[], T], remark: str = "") -> T:
    """Return `read()`. Its errors, which have a setting or a file and a hint, become a ConfigError."""
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        errors = str(error).splitlines()
        raise ConfigError([*errors[:-1], f"{errors[-1]} ({remark})" if remark else errors[-1]]) from error
