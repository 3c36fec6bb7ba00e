"""Choose the checkpoint of a run: the requested one, or the newest intact one.

This module does not import torch, so that a damaged file is found before anything starts.
"""

import os
import shutil
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

from lockstep.config.errors import ConfigError, config_error, file_error
from lockstep.runs import naming
from lockstep.runs.files import atomic_file, open_regular
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.text import expand_path

# These are errors of zipfile, depending on which byte is wrong.
DAMAGES = (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, OverflowError, struct.error)


class Chosen(NamedTuple):
    """The checkpoint to use.

    `path` is None if the run has saved none. `note` is the reason if it is not the requested one.
    """

    path: Path | None
    note: str


def choose_checkpoint(folder: RunFolder, path: Path) -> Chosen:
    """Return the checkpoint at `path`, else the newest intact one of the run.

    Raises ConfigError if there are checkpoints and none is intact. Changes no file.
    """
    alternatives = [other for other in folder.checkpoints.glob("*.ckpt") if other != path]
    alternatives.sort(key=lambda alternative: alternative.lstat().st_mtime_ns, reverse=True)
    errors: list[str] = []
    for candidate in (path, *alternatives):
        error = damage(candidate)
        if error is None:
            return Chosen(
                candidate,
                f"{'; '.join(errors)}: using {display_path(candidate)} instead" if errors else "",
            )
        errors.append(f"{display_path(candidate)} {error}")
    if not path.exists() and not alternatives:
        return Chosen(None, "")
    raise config_error(
        "damaged",
        "",
        "; ".join(errors),
        "restore one of them from a backup, or start a new run",
    )


def requested_checkpoint(folder: RunFolder, name: str, *, option: str) -> Path:
    """Return the checkpoint `name`, best or last, of a run.

    `option` is the option that selects another one, with {} for its name. Raises FileNotFoundError,
    or ValueError if the checkpoint is damaged.
    """
    path = folder.best_checkpoint if name == "best" else folder.last_checkpoint
    if not path.exists():
        raise FileNotFoundError(
            f"{display_path(path)} does not exist: has the run finished an epoch?"
        )
    if (error := damage(path)) is not None:
        alternative = option.format("last" if name == "best" else "best")
        raise ValueError(
            f"{display_path(path)} {error}: restore it from a backup, or try {alternative}."
        )
    return path


def initial_checkpoint(init_from: str | None) -> Path | None:
    """Return the intact checkpoint that `init_from` names: a file, or the best one of a run.

    Raises ConfigError.
    """
    if init_from is None:
        return None
    from lockstep.runs import permissions

    # The user typed this path, so a link is followed.
    path = Path(expand_path(init_from)).resolve()
    if path.is_file():
        error = damage(path)
        if error is not None:
            raise config_error(
                "damaged", f"init_from={init_from}", error, "use another file, or a run folder"
            )
        return path
    try:
        folder = naming.find(init_from)
        permissions.need_readable(folder)
    except FileNotFoundError as error:
        raise config_error("missing", "", f"init_from={error}") from error
    except OSError as error:
        raise ConfigError(file_error(error).within("init_from")) from error
    best = choose_checkpoint(folder, folder.best_checkpoint).path
    if best is None:
        raise config_error(
            "missing",
            f"init_from={init_from}",
            "has no checkpoint yet",
            "use another run, or remove it",
        )
    return best


def copy_initial_checkpoint(folder: RunFolder, checkpoint: Path | None) -> None:
    """Copy the initial checkpoint into the folder of the run, and keep an earlier copy.

    The other run may change or be removed.
    """
    if checkpoint is not None and not folder.initial_weights.exists():
        with (
            open(checkpoint, "rb", opener=open_regular) as file,
            atomic_file(folder.initial_weights) as target,
        ):
            shutil.copyfileobj(file, target)


def damage(path: Path) -> str | None:
    """Return how a checkpoint file is damaged, or None if it is intact.

    torch writes a zip archive with a checksum of every tensor, and compresses nothing. A file that
    unpacks to more than its size is rejected. The file is read once, and nothing in it is executed.
    """
    try:
        with open(path, "rb", opener=open_regular) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            unpacked_bytes = sum(member.file_size for member in members)
            if unpacked_bytes > os.fstat(file.fileno()).st_size or any(
                member.compress_type for member in members
            ):
                return "is not a checkpoint (compressed)"
            broken_member = archive.testzip()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except DAMAGES:
        return "is damaged (truncated, or not a checkpoint)"
    return None if broken_member is None else "is damaged (wrong checksum)"
