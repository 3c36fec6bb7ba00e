"""What memory or a disk refuses to a run, in a sentence or two in place of a traceback."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lockstep.runs.naming import shown

# errors other than torch.OutOfMemoryError by which torch reports memory that was not there
OF_MEMORY = ("DefaultCPUAllocator: can't allocate memory", "CUDAn error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# and shared memory: allocated, resized or written to in vain; and by the kernel, when it is touched
OF_SHARED_MEMORY = (
    *("unable to allocate shared memory", "unable to resize file </torch_", "unable to write to file </torch_"),
    "out of shared memory",
)
FULL = (errno.ENOSPC, errno.EDQUOT)
OF_DISK = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTDIR, errno.EISDIR, errno.EFBIG),
)
ASKED = re.compile(r"[Tt]ried to allocate .*?(is free|bytes)")  # the part of an allocator's message for people
LESS_MEMORY = (
    "A larger trainer.accumulate_grad_batches computes the same step in more parts (batch norm alone sees the "
    "difference), a smaller eval_batch_size the same evaluation; data.memory=host keeps images out of the memory of a "
    "GPU, data.memory=stream those of a folder out of that of the host."
)


class Refused(Exception):
    """Ends a run: memory or a disk refuses what it needs. The text is for people."""


def explained(error: BaseException, folder: Path, who: str) -> str | None:
    """What was refused to `who`, a rank of the run in `folder`, of which `error` is or follows from; None if nothing.

    An error of the system that names no file of the run is none of these, unless a disk is full.
    """
    for cause in _causes(error):
        if is_of_memory(cause):
            asked = ASKED.search(str(cause))
            return f"{who} ran out of memory{f' ({asked[0]})' if asked else ''}. {LESS_MEMORY}"
        if isinstance(cause, RuntimeError) and any(saying in str(cause) for saying in OF_SHARED_MEMORY):
            fix = "give it more (docker run --shm-size=8g), or set a smaller data.num_workers, or data.memory=host"
            return f"no room in shared memory for images that are decoded ahead: {fix}"
        if isinstance(cause, OSError) and (text := _of_disk(cause, folder)):
            return text
    return None


def is_of_memory(error: BaseException) -> bool:
    """True for the error of an allocator; that of torch is known by its name, for who has not imported it."""
    is_of_torch = type(error).__name__ == "OutOfMemoryError" or any(saying in str(error) for saying in OF_MEMORY)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_of_torch)


def unwritable(path: Path) -> str | None:
    """Why nothing can be made at `path`, found by trying; None where it can. Leaves nothing there."""
    folder = _existing(path)
    if not folder.is_dir():
        return f"{shown(folder)} is no folder: name another place, or move it away"
    try:
        with tempfile.TemporaryDirectory(prefix=".lockstep-", dir=folder):
            return None
    except OSError as error:
        return f"{shown(folder)} cannot be written to ({error.strerror}): name another place, or check permissions"


def _of_disk(error: OSError, folder: Path) -> str | None:
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if error.errno in FULL:
        there = _existing(path or folder)
        free = f"{there} has {shutil.disk_usage(there).free / 2**20:,.1f} MiB free"
        what = f"the disk is full: {'something' if path is None else shown(path)} cannot be written"
        return f"{what}{_needed(error)}, {free}. Make room, then resume: what was saved before is whole"
    if path is None or not path.is_relative_to(folder):
        return None
    if not folder.is_dir():
        return f"the run folder {shown(folder)} is gone: it was removed or moved while the run wrote into it"
    if error.errno in OF_DISK:
        return f"{shown(path)} cannot be written{_needed(error)}: {error.strerror}. Fix that, then resume"
    return None


def _needed(error: OSError) -> str:
    """How much was to be written, where whoever wrote it noted that on the error."""
    notes = getattr(error, "__notes__", [])
    return f" ({notes[0]})" if notes else ""


def _existing(path: Path) -> Path:
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those it follows from, each once: one that is raised again and again can follow itself."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
