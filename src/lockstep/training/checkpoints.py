"""Which checkpoint of a run is used: the one asked for, or the newest whole one where that file is damaged.

No torch: a damaged file is found before anything starts.
"""

import shutil
import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

from lockstep.config.errors import ConfigError
from lockstep.runs import naming
from lockstep.runs.files import atomic_file
from lockstep.runs.folder import RunFolder
from lockstep.runs.naming import shown


class Chosen(NamedTuple):
    """The checkpoint to use, None where the run has saved none; `note` says why it is not the one asked for."""

    path: Path | None
    note: str


def chosen(folder: RunFolder, wanted: Path) -> Chosen:
    """The checkpoint `wanted` for, else the newest whole one of the run.

    Raises ConfigError where there are checkpoints and none is whole. Changes no file.
    """
    others = [path for path in folder.checkpoints.glob("*.ckpt") if path != wanted]
    others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    errors: list[str] = []
    for path in (wanted, *others):
        error = damage(path)
        if error is None:
            return Chosen(path, f"{'; '.join(errors)}: {shown(path)} is used instead" if errors else "")
        errors.append(f"{shown(path)} {error}")
    if not wanted.exists() and not others:
        return Chosen(None, "")
    raise ConfigError([f"{'; '.join(errors)}: put a copy of one of them back, or start a new run"])


def asked(folder: RunFolder, name: str, *, option: str) -> Path:
    """The checkpoint `name`, best or last, of a run that is to be used.

    Raises FileNotFoundError where it is not there, and ValueError where it is damaged. `option` is what chooses another
    one, with {} for its name.
    """
    path = folder.best_checkpoint if name == "best" else folder.last_checkpoint
    if not path.exists():
        raise FileNotFoundError(f"{shown(path)} is not there: has the run finished an epoch?")
    if (error := damage(path)) is not None:
        other = option.format("last" if name == "best" else "best")
        raise ValueError(f"{shown(path)} {error}: put a copy of it back, or try {other}.")
    return path


def named(init_from: str | None) -> Path | None:
    """The whole checkpoint file that `init_from` names: itself, or the last one of a run. Raises ConfigError."""
    if init_from is None:
        return None
    path = Path(init_from)
    if path.is_file():
        message = damage(path)
        if message is not None:
            raise ConfigError([f"init_from={init_from} {message}: name another file, or a run folder"])
        return path
    try:
        folder = naming.find(init_from)
    except FileNotFoundError as error:
        raise ConfigError([f"init_from={error}"]) from error
    last = chosen(folder, folder.last_checkpoint).path
    if last is None:
        raise ConfigError([f"init_from={init_from} has no checkpoint yet: name another run, or leave it out"])
    return last


def keep_initial(folder: RunFolder, init_from: str | None) -> None:
    """Copy the checkpoint whose weights a run starts with into its folder: the other run may go on, or be removed.

    What was copied before stays. Raises ConfigError where there is nothing to copy.
    """
    if folder.initial_weights.exists():
        return
    source = named(init_from)
    if source is not None:
        with open(source, "rb") as file, atomic_file(folder.initial_weights) as kept:
            shutil.copyfileobj(file, kept)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint file, None where it is whole.

    torch writes a zip archive with a checksum of every tensor. The file is read once, nothing in it is executed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    # what zipfile raises, depending on which byte is wrong
    except (zipfile.BadZipFile, ValueError, RuntimeError, EOFError, struct.error):
        return "is damaged (cut short, or no checkpoint)"
    return None if broken is None else "is damaged (a checksum is wrong)"
