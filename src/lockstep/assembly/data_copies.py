"""Copies of the data of a run on each node (data.copy_to), from a folder or a URL. Only making one imports torch."""

import os
from collections.abc import Iterator
from pathlib import Path

from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_FOLDER, IMAGE_LIST, OF_FILES, Data, is_ours
from lockstep.data.images.image_table import is_image, print_unread, real_names
from lockstep.data.sources import FOLDERS
from lockstep.data.transfer import copying
from lockstep.system.redaction import redact


def errors(config: Config) -> Iterator[Error]:
    """Yield the errors of settings of a copy, and of a URL."""
    data, root = config.data, config.data.root
    if root is None and data.copy_to is not None and data.target != IMAGE_LIST:
        yield Error(f"data.copy_to={data.copy_to}", "is for a copy of data.root, which is not set", "remove it")
    if root is not None and data.is_remote and is_ours(data.target):
        yield from (Error("", text) for text in copying.url_errors(root))
        if not data.is_copied:
            yield Error(f"data.root={root}", "is a URL", "choose a folder for its files, data.copy_to=data/cache")


def stage(section: Data, *, is_first: bool) -> tuple[Data, str]:
    """Return a section whose files are a copy on this node, made by its first rank, and a remark for errors.

    Every rank must call it. Raises ConfigError on all ranks.
    """
    from lockstep.assembly.staging import together
    from lockstep.distributed.collectives import gather_objects

    root = section.root if section.root is not None else str(Path(section.arguments()["file"]).parent)
    origin = redact(root) if section.is_remote else str(Path(root).resolve())
    key = "copy_to" if section.copy_to is not None else "cache"
    folder = Path(section.copy_to or section.arguments()["cache"]).absolute()
    setting = f"data.{key}={folder}"
    if section.target not in (IMAGE_LIST, *FOLDERS) and folder.resolve().is_relative_to(origin):
        raise ConfigError(Error(setting, f"lies inside the folder to copy, {origin}", "set it to another folder"))
    place = together(lambda: copying.copy(_list(section, root, origin), folder, setting) if is_first else None)
    places = {place for place in gather_objects(place) if place is not None}
    if len(places) > 1:
        raise ConfigError(Error(origin, "changed while one node after the other copied it", "start again"))
    local = folder / places.pop()
    return section.model_copy(update={"root": str(local)}), f"{local} is the copy of {origin}"


def _list(section: Data, root: str, origin: str) -> copying.Files:
    if section.target in OF_FILES and not section.is_remote:
        from fsspec.implementations.local import LocalFileSystem

        from lockstep.assembly.listed_images import files_of

        table = files_of(section).table
        files = real_names(table.folder, table.names, table.states)
        paths = {os.path.normpath(name): f"{origin}/{file}" for name, file in zip(table.names, files, strict=True)}
        return copying.Files(origin, LocalFileSystem(), paths, table.digest)
    system, files = copying.list_files(root, origin, FOLDERS.get(section.target, ""))
    if section.target == IMAGE_FOLDER:
        print_unread(f"data.root={origin}", list(map(os.path.basename, files)))
        files = {name: info for name, info in files.items() if is_image(name)}
    elif section.target == IMAGE_LIST:
        from lockstep.data.sources.lists import listed_names

        arguments = section.arguments()
        listed = set(map(os.path.normpath, listed_names(arguments["file"], arguments["path_column"])))
        files = {name: info for name, info in files.items() if name in listed}
    return copying.with_states(origin, system, files)
