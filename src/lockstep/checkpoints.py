"""Which checkpoint of a run is used: the one asked for, or the newest whole one where that file is damaged.

No torch: a damaged file is found before anything starts.
"""

import struct
import zipfile
from pathlib import Path
from typing import NamedTuple

from lockstep.config import ConfigError
from lockstep.run_folder import RunFolder, shown


class Chosen(NamedTuple):
    """The checkpoint to use, None where the run has saved none; `note` says why it is not the one asked for."""

    path: Path | None
    note: str


def chosen(folder: RunFolder, asked: Path) -> Chosen:
    """The checkpoint `asked` for, else the newest whole one of the run.

    Raises ConfigError where there are checkpoints and none is whole. Changes no file.
    """
    others = [path for path in folder.checkpoints.glob("*.ckpt") if path != asked]
    others.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    faults: list[str] = []
    for path in (asked, *others):
        fault = damage(path)
        if fault is None:
            return Chosen(path, f"{'; '.join(faults)}: {shown(path)} is used instead" if faults else "")
        faults.append(f"{shown(path)} {fault}")
    if not asked.exists() and not others:
        return Chosen(None, "")
    raise ConfigError([f"{'; '.join(faults)}: put a copy of one of them back, or start a new run"])


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
