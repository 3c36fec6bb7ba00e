"""Copies the data of a run to each node (data.copy_to), from a folder or a URL."""

import contextlib
import os
from pathlib import Path

from lockstep.assembly.listed_images import files_of
from lockstep.assembly.staging import together
from lockstep.config.checks import data_copies
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.target_sections import IMAGE_FOLDER, IMAGE_LIST, OF_FILES, Data
from lockstep.data.images.image_table import IMAGE_SUFFIXES, require_path
from lockstep.data.sources import FOLDERS
from lockstep.data.sources.lists import listed_names
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy, Source
from lockstep.distributed.collectives import gather_objects


def stage(section: Data, held: contextlib.ExitStack, *, is_first: bool) -> tuple[Data, str]:
    """Return a section whose files are a copy on this node, made by its first rank, and a remark for errors.

    The copy stays while `held` is open. Every rank must call it. Raises ConfigError on all ranks.
    """
    copy = data_copies.copy_of(section)
    assert copy is not None, "see is_copied"
    held.callback(data_copies.remove_unused, section)  # runs last
    own_digest = together(lambda: copy.make(_source(section, copy), held) if is_first else None)
    digests = {digest for digest in gather_objects(own_digest) if digest is not None}
    if len(digests) > 1:
        raise ConfigError(Error(copy.source, "changed while one node after the other copied it", "start again"))
    path = copy.place(digests.pop())
    together(lambda: copying.hold(path, held))
    update = {"root": str(path / copy.name), **({"download": False} if section.arguments().get("download") else {})}
    local = section.model_copy(update=update)
    return local, f"{local.root} is the copy of {copy.source}"


def _source(section: Data, copy: Copy) -> Source:
    root, below = section.root, FOLDERS.get(section.target, "")
    if root is not None and section.is_remote:
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
        require_path(str(folder / below), f"data.root={folder / below}")
        return copying.files_below(folder, below)
    except OSError as error:
        if error.errno is None:
            raise  # has a message of its own
        raise ValueError(f"data.root={root} cannot be read ({error}): check its permissions.") from error
