"""The gate to a folder of a run, a sweep or a job: who made it, and whether all in it is what it seems.

A folder that this user did not make here is data: its files are read; nothing in it is executed,
expanded, followed, written or removed. Refusals are PermissionErrors, with the entry as the file
name.
"""

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from lockstep.runs.files import owner
from lockstep.runs.folder import JOB_FILES, WANDB, RunFolder


def open_new(path: Path) -> RunFolder:
    """Create the folder of a new run, sweep, job or benchmark, or use one that is there.

    Refuses one in which, or in whose parent, another user can write, and one that contains more
    than files and folders.
    """
    path = path.resolve()
    need_private(path)
    path.mkdir(0o755, parents=True, exist_ok=True)
    need_plain(path)
    return RunFolder(path)


def need_own(folder: RunFolder, fix: str, *, is_trusted: bool = False) -> None:
    """Refuse to write into a folder that is not plain, or not made here by this user unless it `is_trusted`."""
    if not is_trusted:
        need_made_here(folder, fix)
    need_plain(folder.path)


def need_made_here(folder: RunFolder, fix: str) -> None:
    """Refuse a folder that this user did not make here."""
    if not folder.is_made_here():
        raise _refusal(folder.path, f"{origin(folder)}: {fix}")


def origin(folder: RunFolder) -> str:
    """Return where a folder comes from that this user did not make here."""
    if folder.path.stat().st_uid != os.geteuid():
        return f"belongs to {owner(folder.path)}"
    return "was not made here: it was copied, unpacked, or made by an earlier version"


def need_readable(folder: RunFolder) -> None:
    """Refuse to read a folder of another origin that contains more than files and folders."""
    if not folder.is_made_here():
        need_plain(folder.path)


def need_plain(path: Path) -> None:
    """Refuse links, hard links, pipes and devices below a folder, and what another user than its owner put there.

    Weights & Biases and submitit make links, the former to its logs in the home folder, too: they
    are accepted below the folders of these two.
    """
    user, linked = (
        path.stat().st_uid,
        tuple(os.path.join(path, name, "") for name in (WANDB, JOB_FILES)),
    )
    for entry in _entries(path):
        state = entry.stat(follow_symlinks=False)
        is_file = stat.S_ISREG(state.st_mode)
        if entry.is_symlink():
            if entry.path.startswith(linked):
                continue
            what = "is a link"
        elif not is_file and not stat.S_ISDIR(state.st_mode):
            what = "is neither a file nor a folder"
        elif is_file and state.st_nlink > 1:
            what = "is a hard link"
        elif state.st_uid != user:
            what = "belongs to another user than the folder"
        else:
            continue
        raise _refusal(
            entry.path, f"{what}, which no run contains: replace it by a copy, or remove it"
        )


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a folder whose files may come and go meanwhile."""
    pending = [os.fspath(path)]
    while pending:
        with contextlib.suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    entry.stat(follow_symlinks=False)  # which the entry keeps
                    yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def need_private(path: Path) -> None:
    """Refuse a folder, and its parent, in which another user could replace a new run; those that exist are checked."""
    for each in (path, path.parent):
        while not each.exists():
            each = each.parent
        if reason := exposure(each):
            raise _refusal(each, reason)


def exposure(path: Path) -> str:
    """Return why another user can replace what is in a folder; empty if none can.

    Empty also where others can replace what is in the current folder: the code that runs is theirs
    already.
    """
    reason = _exposure(path)
    return "" if reason and _exposure(Path.cwd()) else reason


def _exposure(path: Path) -> str:
    state = path.stat()
    if state.st_uid not in (0, os.geteuid()):
        return f"belongs to {owner(path)}, who could replace a run in it: name a folder of yours, or run as its owner"
    if state.st_mode & stat.S_ISVTX or not state.st_mode & 0o022:
        return ""
    if not state.st_mode & stat.S_IWOTH and _is_private(state.st_gid):
        return ""
    return f"can be written by other users, who could replace a run in it: chmod go-w {path}, or name another folder"


def _is_private(group: int) -> bool:
    """Return True for the group that a system made for this user alone: it has the user's name, and no members."""
    try:
        name, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and {*found.gr_mem} <= {name}


def _refusal(path: str | Path, reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason, str(path))
