"""Errors of memory and disks in a sentence or two, in place of a traceback."""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

from lockstep.config.errors import Error, file_error
from lockstep.runs.naming import display_path
from lockstep.system.text import size_text

# Missing memory is reported by torch.OutOfMemoryError, or by errors that contain these texts.
OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDAn error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# Errors with these texts report missing shared memory.
OF_SHARED_MEMORY = (
    "unable to allocate shared memory",
    "unable to resize file </torch_",
    "unable to write to file </torch_",
    "out of shared memory",
)
# This is the readable part of an allocator's message.
REQUEST = re.compile(r"[Tt]ried to allocate .*?(is free|bytes)")
LESS_MEMORY = (
    "Raise trainer.accumulate_grad_batches (it changes only batch norm), lower eval_batch_size, "
    "or keep images out of GPU memory (data.memory=host) or of host memory (data.memory=stream)."
)


def explain_error(error: BaseException, folder: Path, who: str) -> str | None:
    """Explain the lack of memory or disk space behind `error`, or return None for others.

    `who` is the rank of the run in `folder`. An OSError without a file of the run is another error,
    unless a disk is full.
    """
    cause: BaseException | None = error
    cause_ids: set[int] = set()  # `raise error from error` makes a circle.
    while cause is not None and id(cause) not in cause_ids:
        cause_ids.add(id(cause))
        if is_of_memory(cause):
            request = REQUEST.search(str(cause))
            return f"{who} ran out of memory{f' ({request[0]})' if request else ''}. {LESS_MEMORY}"
        if isinstance(cause, RuntimeError) and any(
            phrase in str(cause) for phrase in OF_SHARED_MEMORY
        ):
            return (
                "not enough shared memory for images that are decoded ahead: "
                "give it more (docker run --shm-size=8g), or set a smaller data.num_workers, "
                "or data.memory=host"
            )
        if isinstance(cause, OSError) and (message := _disk_error(cause, folder)):
            return message
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def is_of_memory(error: BaseException) -> bool:
    """Return True for the error of an allocator.

    torch's error is recognized by its name, without importing torch.
    """
    is_of_torch = type(error).__name__ == "OutOfMemoryError" or any(
        phrase in str(error) for phrase in OF_MEMORY
    )
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_of_torch)


def write_obstacle(path: Path) -> Error | None:
    """Return the error if nothing can be created at `path`.

    The check tries to create something, and leaves nothing there.
    """
    folder = _nearest_existing(path)
    if not folder.is_dir():
        return Error(
            "access", display_path(folder), "is not a folder", "use another path, or move the file"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".lockstep-", dir=folder):
            return None
    except OSError as error:
        return Error(
            "access",
            display_path(folder),
            f"cannot be written to ({error.strerror})",
            "use another path, or check permissions",
        )


def folder_error(key: str, folder: str | None, default: str) -> Error | None:
    """Return the error if a folder cannot be created, or if other users could replace it.

    The folder is that of `key` if it is chosen, else the default.
    """
    from lockstep.runs import permissions

    try:
        permissions.need_private(Path(folder or "outputs").resolve())
        error = write_obstacle(Path(folder or default))
    except PermissionError as permission_error:
        error = file_error(permission_error)
    return error if error is None or folder in (None, default) else error.within(f"{key}={folder}")


def _disk_error(error: OSError, folder: Path) -> str | None:
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        disk = _nearest_existing(path or folder)
        name = "a file" if path is None else display_path(path)
        return (
            f"the disk is full: {name} cannot be written, {disk} has "
            f"{size_text(shutil.disk_usage(disk).free)} free. Free some space and resume: "
            "earlier files are intact"
        )
    if path is None or not path.is_relative_to(folder):
        return None
    if not folder.is_dir():
        return (
            f"the run folder {display_path(folder)} is gone: "
            "it was removed or moved while the run wrote into it"
        )
    # This is an error of code, which needs its source line.
    if isinstance(error, FileNotFoundError | FileExistsError):
        return None
    return f"{display_path(path)} cannot be written: {error.strerror}. Fix that, then resume"


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
