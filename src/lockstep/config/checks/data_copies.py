"""Copies of the data of a run on disks of a machine: their settings and their places. No torch."""

from collections.abc import Iterator
from pathlib import Path

from lockstep.config.errors import Error, literal
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_LIST, OF_FILES, Data, is_ours
from lockstep.data.sources import FOLDERS
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy
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
