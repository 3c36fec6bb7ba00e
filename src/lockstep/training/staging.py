"""Downloads or copies the data of a run once a node, while other ranks wait."""

import contextlib
import io
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from lockstep.config import places
from lockstep.config.errors import ConfigError, Error, errors_of
from lockstep.config.target_sections import IMAGE_FOLDER, IMAGE_LIST, OF_FILES, Data
from lockstep.data.images.decoding import Decoding
from lockstep.data.images.listing import FOLDERS, IMAGE_SUFFIXES, existing, list_classes
from lockstep.data.images.splits import Fold
from lockstep.data.images.views import VIEW_KEYS, View
from lockstep.data.sources.folders import with_all_splits
from lockstep.data.sources.lists import listed_names, read_list
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy, Source
from lockstep.distributed.collectives import gather_objects

T = TypeVar("T")
HEARTBEAT_S = 5.0  # well below any strategy.timeout_s


def once_a_node(
    section: Data, load: Callable[[Data], T], *, rank: int, local_rank: int, is_silent: bool, held: contextlib.ExitStack
) -> T:
    """Return `load(section)` once its files are where this node reads them. Every rank must call it.

    Downloads go to data.root, on rank 0 first. A copy stays while `held` is open. Raises ConfigError on all ranks, with
    the errors of all nodes.
    """
    section = together(lambda: places.here(section))
    copy = places.copy_of(section)
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
        held.callback(places.remove_unused, section)  # runs last
        own_digest = together(lambda: copy.make(_source(section, copy), held) if is_first else None)
        digests = {digest for digest in gather_objects(own_digest) if digest is not None}
        if len(digests) > 1:
            raise ConfigError(Error(copy.source, "changed while one node after the other copied it", "start again"))
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
        is_done, errors = bool(wait([future], HEARTBEAT_S).done), list[Error]()
        try:
            if is_done:
                future.result()
        except (FileNotFoundError, ValueError) as error:
            errors = errors_of(error)
        reports = gather_objects((is_done, socket.gethostname(), errors))
        if all(is_done for is_done, *_ in reports):
            break
    if any(errors for *_, errors in reports):
        has_nodes = len({node for _, node, _ in reports}) > 1
        raise ConfigError(*(each.within(node) if has_nodes else each for _, node, errors in reports for each in errors))
    return future.result()


def _source(section: Data, copy: Copy) -> Source:
    root, below = section.root, FOLDERS.get(section.target, "")
    if root is not None and remote.is_url(root):
        arguments = section.arguments()
        names = listed_names(arguments["file"], arguments["path_column"]) if section.target == IMAGE_LIST else None
        suffixes = IMAGE_SUFFIXES if section.target == IMAGE_FOLDER else ()
        return remote.files_at(root, below=below, suffixes=suffixes, names=names)
    if section.target != IMAGE_LIST and copy.stem.resolve().is_relative_to(copy.source):
        raise ValueError(f"{copy.setting} lies inside the folder to copy, {copy.source}: set it to another folder.")
    try:
        if section.target in OF_FILES:
            table = files_of(section).table
            sizes = dict(zip(map(os.path.normpath, table.names), table.states[:, 0].tolist(), strict=True))
            if outside := [name for name in sizes if name.split("/")[0] == ".."]:
                problem = f"{outside[0]} of {table.setting} is not below {table.folder}"
                raise ValueError(f"{copy.setting}: {problem}: set data.root to a folder that contains all images.")
            return copying.files_of(table.folder, sizes, table.digest)
        assert root is not None
        folder = Path(root).expanduser().resolve()
        existing(str(folder / below), f"data.root={folder / below}")
        return copying.files_below(folder, below)
    except OSError as error:
        if error.errno is None:
            raise  # has a message of its own
        raise ValueError(f"data.root={root} cannot be read ({error}): check its permissions.") from error


def files_of(section: Data, *, has_crops: bool = False, is_cut: bool = True) -> Decoding:
    """Return the image files of a folder or list, not decoded; to be kept scaled with `has_crops`.

    Unless `is_cut`, they have only the splits of their own, and a folder may have one class.
    """
    arguments = section.arguments()
    view = View.of(*(arguments.pop(name) for name in VIEW_KEYS))
    settings = {name: arguments.pop(name) for name in ("channels", "cache")}
    cutting = [arguments.pop(name) for name in ("val_fraction", "test_fraction", "split_seed")]
    least = 2 if is_cut else 1
    table = list_classes(**arguments, least=least) if section.target == IMAGE_FOLDER else read_list(**arguments)
    table = with_all_splits(table, *cutting, fold=fold_of(section)) if is_cut else table
    return Decoding(table=table, view=view, is_scaled=has_crops, **settings)


def fold_of(section: Data) -> Fold | None:
    return None if section.folds is None else Fold(section.fold, section.folds)


def readable(read: Callable[[], T], remark: str = "") -> T:
    """Return `read()`. Its errors, which have a setting or a file and a hint, become a ConfigError."""
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        *others, last = errors_of(error)
        raise ConfigError(*others, last._replace(fix=f"{last.fix} ({remark})") if remark else last) from error
