"""Copies of the data of a run on each node (data.copy_to), from a folder or a URL.

Only the creation of a copy imports torch.
"""

import os
from pathlib import Path

from lockstep.config.errors import config_error
from lockstep.config.schema.target_sections import IMAGE_LIST, Data
from lockstep.data.images.image_table import copied_digest, is_image, print_unread, real_names
from lockstep.data.transfer import copying
from lockstep.system.redaction import redact


def stage(section: Data, *, is_first: bool) -> tuple[Data, str]:
    """Return a section whose files are a copy on this node, and a message for errors.

    The first rank of the node creates the copy. Every rank must call it. Raises ConfigError on all
    ranks.
    """
    from lockstep.assembly.agreement import together
    from lockstep.distributed.collectives import gather_objects

    root = section.root or str(Path(section.arguments()["file"]).parent)
    origin = redact(root) if section.is_remote else str(Path(root).resolve())
    key = "copy_to" if section.copy_to is not None else "cache"
    folder = Path(section.copy_to or section.arguments()["cache"]).absolute()
    setting = f"data.{key}={folder}"
    if section.target != IMAGE_LIST and folder.resolve().is_relative_to(origin):
        raise config_error(
            "conflict",
            setting,
            f"lies inside the folder to copy, {origin}",
            "set it to another folder",
        )
    copy = together(
        lambda: copying.copy(_files(section, root, origin), folder, setting) if is_first else None
    )
    copies = {copy for copy in gather_objects(copy) if copy is not None}
    if len(copies) > 1:
        raise config_error(
            "changed",
            origin,
            "changed while one node after the other copied it",
            "delete its copies",
        )
    local = folder / copies.pop()[0]
    return section.model_copy(update={"root": str(local)}), f"{local} is the copy of {origin}"


def _files(section: Data, root: str, origin: str) -> copying.Files:
    """Return the files of a section.

    For a URL, changes are detected from its listing.
    """
    if not section.is_remote:
        from fsspec.implementations.local import LocalFileSystem

        from lockstep.assembly.listed_images import files_of

        table = files_of(section).table
        files = real_names(table.folder, table.names, table.states)
        paths = {
            os.path.normpath(name): f"{origin}/{file}"
            for name, file in zip(table.names, files, strict=True)
        }
        return copying.Files(origin, LocalFileSystem(), paths, table.digest, table.digest)
    with copying.explain_errors(f"data.root={origin} cannot be listed"):
        system, listing = copying.list_files(root)
    if section.target == IMAGE_LIST:
        from lockstep.data.sources.lists import listed_names

        arguments = section.arguments()
        image_names = set(
            map(os.path.normpath, listed_names(arguments["file"], arguments["path_column"]))
        )
    else:
        print_unread(f"data.root={origin}", list(map(os.path.basename, listing)))
        image_names = set(filter(is_image, listing))
    paths = {name: info["name"] for name, info in listing.items() if name in image_names}
    states = [copying.state_of(listing[name]) for name in paths]
    return copying.Files(origin, system, paths, copied_digest([origin, *paths], [[], *states]))
