"""Permissions of a folder of a run, a sweep or a job.

The checks ask who created the folder, and whether all entries in it are what they seem to be. A
folder that this user did not create on this machine is data. Its files are read, but nothing in it
is executed, expanded, followed, written or removed. A rejection is a PermissionError, with the
entry as the file name.
"""

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockstep.runs.files import owner
from lockstep.runs.folder import JOB_FILES, WANDB, RunFolder


def open_new(path: Path) -> RunFolder:
    """Create the folder of a new run, sweep, job or benchmark, or use an existing one.

    Rejects a folder if another user can write in it or in its parent. Also rejects one that
    contains anything but files and folders. Raises PermissionError.
    """
    path = path.resolve()
    need_private(path)
    path.mkdir(0o755, parents=True, exist_ok=True)
    need_plain(path)
    return RunFolder(path)


def need_own(folder: RunFolder, hint: str, *, is_trusted: bool = False) -> None:
    """Raise PermissionError for a folder that is not plain, or not created here by this user.

    A folder that `is_trusted` need not be created here. Call it before writing into the folder.
    """
    if not is_trusted:
        need_made_here(folder, hint)
    need_plain(folder.path)


def need_made_here(folder: RunFolder, hint: str) -> None:
    """Raise PermissionError for a folder that this user did not create on this machine."""
    if not folder.is_made_here():
        raise _refusal(folder.path, f"{origin(folder)}: {hint}")


def origin(folder: RunFolder) -> str:
    """Return the origin of a folder that this user did not create on this machine."""
    if folder.path.stat().st_uid != os.geteuid():
        return f"belongs to {owner(folder.path)}"
    return "was not made here: it was copied, unpacked, or made by an earlier version"


def need_readable(folder: RunFolder) -> None:
    """Raise PermissionError for a folder of another origin that cannot be read safely.

    Such a folder contains more than files and folders.
    """
    if not folder.is_made_here():
        need_plain(folder.path)


def need_plain(path: Path) -> None:
    """Raise PermissionError for anything below a folder but files and folders of its owner.

    These are links, hard links, pipes and devices, and entries of another user than the owner of
    the folder. Weights & Biases and submitit create links, which are accepted below their folders.
    Those of Weights & Biases also point to its logs in the home folder.
    """
    user = path.stat().st_uid
    link_folders = tuple(os.path.join(path, name, "") for name in (WANDB, JOB_FILES))
    for entry in _entries(path):
        state = entry.stat(follow_symlinks=False)
        is_file = stat.S_ISREG(state.st_mode)
        if entry.is_symlink():
            if entry.path.startswith(link_folders):
                continue
            problem = "is a link"
        elif not is_file and not stat.S_ISDIR(state.st_mode):
            problem = "is neither a file nor a folder"
        elif is_file and state.st_nlink > 1:
            problem = "is a hard link"
        elif state.st_uid != user:
            problem = "belongs to another user than the folder"
        else:
            continue
        raise _refusal(
            entry.path, f"{problem}, which no run contains: replace it by a copy, or remove it"
        )


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a folder whose files may come and go meanwhile."""
    pending = [os.fspath(path)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    entry.stat(follow_symlinks=False)  # The entry keeps this state.
                    yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def need_private(path: Path) -> None:
    """Raise PermissionError if another user could replace a new run in a folder or its parent.

    If one of them does not exist, its nearest existing parent is checked.
    """
    for folder in (path, path.parent):
        while not folder.exists():
            folder = folder.parent
        if reason := exposure(folder):
            raise _refusal(folder, reason)


def exposure(path: Path) -> str:
    """Return why another user can replace the contents of a folder, or an empty text.

    The text is also empty if others can replace the contents of the current folder, because the
    code that runs is then already theirs.
    """
    reason = _exposure(path)
    return "" if reason and _exposure(Path.cwd()) else reason


def _exposure(path: Path) -> str:
    state = path.stat()
    if state.st_uid not in (0, os.geteuid()):
        return (
            f"belongs to {owner(path)}, who could replace a run in it: name a folder of yours, "
            "or run as its owner"
        )
    if state.st_mode & stat.S_ISVTX or not state.st_mode & 0o022:
        return ""
    if not state.st_mode & stat.S_IWOTH and _is_private(state.st_gid):
        return ""
    return (
        f"can be written by other users, who could replace a run in it: chmod go-w {path}, "
        "or name another folder"
    )


def _is_private(group: int) -> bool:
    """Return True for the group that the system created for this user alone.

    It has the name of the user, and no other members.
    """
    try:
        user_name, group_entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return group_entry.gr_name == user_name and {*group_entry.gr_mem} <= {user_name}


def _refusal(path: str | Path, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, str(path))
