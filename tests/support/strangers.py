"""Run folders as a stranger hands them over, and what must not change around them."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.harness import SMALL

TOUCH = "touch ran"  # a command whose effect is seen in the folder of the command
Digest = dict[str, tuple[Any, ...]]


class Runs:
    """Touches a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (TOUCH,)


def typed(
    cwd: Path, *words: str | Path, code: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `lockstep ...` in a folder, which must exit with `code`; None: with any."""
    done = commands.run([sys.executable, "-m", "lockstep", *words], cwd)
    assert code in (None, done.returncode), f"{words}: {done.stdout}{done.stderr}"
    return done


def train(cwd: Path, name: str, *words: str) -> RunFolder:
    """Train a run of this user in a new folder of this name."""
    typed(cwd, "train", *SMALL, f"hydra.run.dir={name}", *words, code=0)
    return RunFolder(cwd / name)


def edit(folder: RunFolder, **sections: Any) -> None:
    """Change sections of the saved configuration.

    Entries of callbacks, loggers and the like change; data is replaced completely.
    """
    tree = yaml.safe_load(folder.config.read_text())
    for name, value in sections.items():
        tree[name] = value if name == "data" else {**tree[name], **value}
    folder.config.write_text(yaml.safe_dump(tree))


def copied(folder: Path, path: Path) -> RunFolder:
    """Copy a folder as if it came out of an archive.

    It has the same names, contents and times, and is owned by this user.
    """
    return RunFolder(shutil.copytree(folder, path, symlinks=True))


def digest(*roots: Path) -> Digest:
    """Return names, modes, modification times and contents of everything below `roots`.

    Links are not followed.
    """
    digests: Digest = {}
    pending = list(roots)
    while pending:
        path = pending.pop()
        state = path.lstat()
        content: Any = None
        if stat.S_ISLNK(state.st_mode):
            content = os.readlink(path)
        elif stat.S_ISDIR(state.st_mode):
            pending += path.iterdir()
        elif stat.S_ISREG(state.st_mode):
            content = path.read_bytes()
        digests[str(path)] = (state.st_mode, state.st_uid, state.st_mtime_ns, content)
    return digests


def changes(before: Digest, after: Digest) -> list[str]:
    """Paths that are new, gone or different."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )
