"""What a disk refuses: no room, no permission, a folder that is gone. One line in place of a traceback."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

from lockstep.runs.naming import shown
from lockstep.training.memory import causes

FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTDIR, errno.EISDIR)
SHARED_MEMORY = Path("/dev/shm")
# torch's errors of shared memory: allocated, resized or written to in vain; and by the kernel, when it is touched
SAYINGS = (
    "unable to allocate shared memory",
    "unable to resize file </torch_",
    "unable to write to file </torch_",
    "out of shared memory",
)


class DiskFault(Exception):
    """Ends a run: the disk of its folder, or shared memory, refuses what is to be written. The text is one line."""


def refusal(error: BaseException, folder: Path) -> str | None:
    """What the disk of a run `folder` refused, of which `error` is or follows from; None where that is not the reason.

    An error of the system that names no file, or one elsewhere, is none of these, unless a disk is full.
    """
    for cause in causes(error):
        if isinstance(cause, RuntimeError) and any(saying in str(cause) for saying in SAYINGS):
            return (
                f"no room in shared memory for images that are decoded ahead, {_free(SHARED_MEMORY)}: give it more "
                "(docker run --shm-size=8g), or set a smaller data.num_workers, or data.memory=host"
            )
        if not isinstance(cause, OSError):
            continue
        path = Path(os.fsdecode(cause.filename)) if isinstance(cause.filename, str | bytes) else None
        if cause.errno in FULL:
            where = "something" if path is None else shown(path)
            what = f"the disk is full: {where} cannot be written{_needed(cause)}, {_free(path or folder)}"
            return f"{what}. Make room, then go on: what was saved before is whole"
        if path is None:
            continue
        if cause.errno == errno.EFBIG:
            return f"{shown(path)} cannot be written{_needed(cause)}: files are limited to a smaller size (ulimit -f)"
        if path.is_relative_to(folder) and not folder.is_dir():
            return f"the run folder {shown(folder)} is gone: it was removed or moved while the run wrote into it"
        if path.is_relative_to(folder) and cause.errno in REFUSED:
            return f"{shown(path)} cannot be written ({cause.strerror}): mend that, then go on"
    return None


def unwritable(path: Path) -> str | None:
    """Why nothing can be made at `path`, found by trying; None where it can. Leaves nothing there."""
    folder = path.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{shown(folder)} is no folder: name another place, or move it away"
    try:
        with tempfile.TemporaryDirectory(prefix=".lockstep-", dir=folder):
            return None
    except OSError as error:
        return f"{shown(folder)} cannot be written to ({error.strerror}): name another place, or mend that"


def _needed(error: OSError) -> str:
    """How much was to be written, where whoever wrote it noted that on the error."""
    notes = getattr(error, "__notes__", [])
    return f" ({notes[0]})" if notes else ""


def _free(path: Path) -> str:
    while not path.exists():
        path = path.parent
    usage = shutil.disk_usage(path)
    return f"{path} has {_size(usage.free)} of {_size(usage.total)} free"


def _size(num_bytes: int) -> str:
    unit, name = (2**30, "GiB") if num_bytes >= 2**30 else (2**20, "MiB")
    return f"{num_bytes / unit:,.1f} {name}"
