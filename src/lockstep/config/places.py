"""Where a machine reads the data of a run: the variables in its paths, and copies on its own disks. No torch."""

import os
import re
import socket
from pathlib import Path

from lockstep.config.target_sections import IMAGE_LIST, OF_FILES, Data
from lockstep.data.images.listing import FOLDERS
from lockstep.data.transfer import copying, remote
from lockstep.data.transfer.copying import Copy
from lockstep.system.redaction import redacted

VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
PATHS = ("root", "file", "cache", "copy_to")


def here(section: Data) -> Data:
    """Replace $NAME in the paths of a section by the variables of this process; a configuration keeps the name.

    Raises ValueError, with a line for each variable that is not set.
    """
    paths = {key: path for key in PATHS if isinstance(path := getattr(section, key, None), str)}
    errors = [
        f"data.{key}={path}: ${name} is not set on {socket.gethostname()}: set it there, or give a path"
        for key, path in paths.items()
        for name in VARIABLE.findall(path)
        if not os.environ.get(name)
    ]
    if errors:
        raise ValueError("\n".join(errors))
    found = {key: VARIABLE.sub(lambda name: os.environ[name[1]], path) for key, path in paths.items()}
    return section.model_copy(update=found)


def copy_of(section: Data) -> Copy | None:
    """Return the copy that a section of this machine requires; None if its files are read in place."""
    arguments = section.arguments()
    cache, file = arguments.get("cache"), Path(arguments["file"]) if section.target == IMAGE_LIST else None
    root = section.root if section.root is not None or file is None else str(file.parent)
    if root is None:
        return None
    is_remote = remote.is_url(root)
    if section.copy_to is not None:
        key, folder = "data.copy_to", section.copy_to
    elif is_remote and section.target in OF_FILES and cache is not None:
        key, folder = "data.cache", cache
    else:
        return None
    below = FOLDERS.get(section.target, "")
    if is_remote:
        source = "/".join(filter(None, (remote.without_query(root).rstrip("/"), below)))
        called, name = redacted(source), remote.name_of(root)
    else:
        source = called = str((Path(root).expanduser() / below).resolve())
        name = below.partition("/")[0] or Path(source).name.lstrip(".") or "files"
    if file is not None:  # two lists of one folder name different files
        source = f"{source} {file.expanduser().resolve()}"
    return Copy(f"{key}={folder}", called, copying.stem_of(folder, source, name), name)


def remove_unused(section: Data) -> None:
    """Remove the copy of a run that has ended, if data.copy_remove is set and no other run uses it."""
    if section.copy_remove and (copy := copy_of(here(section))) is not None:
        copy.remove()
