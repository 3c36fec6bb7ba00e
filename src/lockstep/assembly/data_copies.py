"""Copies of the data of a run on each node (data.copy_to), from a folder or a URL. Only making one imports torch."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from lockstep.config.errors import ConfigError, Error, literal
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_FOLDER, IMAGE_LIST, OF_FILES, Data, is_ours
from lockstep.data.images.image_table import image_suffixes, real_names, require_path
from lockstep.data.sources import FOLDERS
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy, Source
from lockstep.system.redaction import redact


def errors(config: Config) -> Iterator[Error]:
    """Yield the errors of settings of a copy, and of a URL."""
    data = config.data
    if data.root is None and data.target != IMAGE_LIST:
        for key, value in (("copy_to", data.copy_to), ("copy_remove", data.copy_remove)):
            if value:
                yield Error(f"data.{key}={literal(value)}", "is for a copy of data.root, which is not set", "remove it")
        return
    root = data.root or ""  # a list is in its own folder
    if data.is_remote and is_ours(data.target):
        yield from (Error("", text) for text in remote.errors(root))
        if data.copy_to is None and data.arguments().get("cache") is None:
            yield Error(f"data.root={root}", "is a URL", "choose a folder for its files, data.copy_to=data/cache")
    if data.copy_remove and data.copy_to is None and not data.is_remote:
        yield Error("data.copy_remove=true", "has no copy to remove", "set data.copy_to, or remove it")


def copy_of(section: Data) -> Copy | None:
    """Return the copy that a section of this machine requires; None if its files are read in place."""
    arguments = section.arguments()
    cache, file = arguments.get("cache"), Path(arguments["file"]) if section.target == IMAGE_LIST else None
    root = section.root if section.root is not None or file is None else str(file.parent)
    if root is None:
        return None
    if section.copy_to is not None:
        key, folder = "data.copy_to", section.copy_to
    elif section.is_remote and section.target in OF_FILES and cache is not None:
        key, folder = "data.cache", cache
    else:
        return None
    below = FOLDERS.get(section.target, "")
    if section.is_remote:
        source = "/".join(filter(None, (remote.strip_query(root).rstrip("/"), below)))
        called, name = redact(source), remote.name_of(root)
    else:
        source = called = str((Path(root).expanduser() / below).resolve())
        name = below.partition("/")[0] or Path(source).name.lstrip(".") or "files"
    if file is not None:  # two lists of one folder name different files
        source = f"{source} {file.expanduser().resolve()}"
    return Copy(f"{key}={folder}", called, copying.stem_of(folder, source, name), name)


def remove_unused(section: Data) -> None:
    """Remove the copy of a run that has ended, if data.copy_remove is set and no other run uses it."""
    if section.copy_remove and (copy := copy_of(section.resolve_paths())) is not None:
        copy.remove()


def stage(section: Data, held: contextlib.ExitStack, *, is_first: bool) -> tuple[Data, str]:
    """Return a section whose files are a copy on this node, made by its first rank, and a remark for errors.

    The copy stays while `held` is open. Every rank must call it. Raises ConfigError on all ranks.
    """
    from lockstep.assembly.staging import together
    from lockstep.distributed.collectives import gather_objects

    copy = copy_of(section)
    assert copy is not None, "see is_copied"
    held.callback(remove_unused, section)  # runs last
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
        from lockstep.data.sources.lists import listed_names

        arguments = section.arguments()
        names = listed_names(arguments["file"], arguments["path_column"]) if section.target == IMAGE_LIST else None
        suffixes = image_suffixes() if section.target == IMAGE_FOLDER else ()
        return remote.files_at(root, below=below, suffixes=suffixes, names=names)
    if section.target != IMAGE_LIST and copy.stem.resolve().is_relative_to(copy.source):
        raise ValueError(f"{copy.setting} lies inside the folder to copy, {copy.source}: set it to another folder.")
    try:
        if section.target in OF_FILES:
            from lockstep.assembly.listed_images import files_of

            table = files_of(section).table
            sizes = dict(zip(map(os.path.normpath, table.names), table.states[:, 0].tolist(), strict=True))
            if outside := [name for name in sizes if name.split("/")[0] == ".."]:
                problem = f"{outside[0]} of {table.setting} is not below {table.folder}"
                raise ValueError(f"{copy.setting}: {problem}: set data.root to a folder that contains all images.")
            files = real_names(table.folder, table.names, table.states)
            of_names = zip(map(os.path.normpath, table.names), map(os.path.normpath, files), strict=True)
            return copying.files_of(table.folder, sizes, table.digest, dict(of_names))
        assert root is not None
        folder = Path(root).expanduser().resolve()
        require_path(str(folder / below), f"data.root={folder / below}")
        return copying.files_below(folder, below)
    except OSError as error:
        if error.errno is None:
            raise  # has a message of its own
        raise ValueError(f"data.root={root} cannot be read ({error}): check its permissions.") from error
