"""A copy of the project's source for each submission.

Later edits do not affect a waiting job.
"""

import os
import shutil
import subprocess
from pathlib import Path

from lockstep.system import provenance
from lockstep.system.processes import OTHERS

UNTRACKED_PATTERNS = ("*.py", "*.pyi", "conf")  # Untracked files like these are copied, too.
RUNS = "outputs"  # at any depth, because a command may be started in a subfolder of the project


def files(root: Path) -> list[Path]:
    """List the files of the project relative to `root`.

    They are those that git tracks. Of other files that git does not ignore, Python files and
    everything in conf are included. If git tracks nothing here, they are src, conf, and the Python
    files next to them and in packages there.
    """
    paths = _git_files(root)
    if paths:
        paths += _git_files(root, "--others", "--exclude-standard", "--", *UNTRACKED_PATTERNS)
    else:
        paths = _files_without_git(root)
    # Deleted files and other repositories are left out.
    return sorted({path for path in paths if RUNS not in path.parts and (root / path).is_file()})


def freeze(root: Path, base: Path) -> Path:
    """Copy the files of the project at `root`, and its commit, into a new folder of `base`."""
    target = next_folder(base)
    target.mkdir(parents=True)  # The folder exists even without code.
    for path in files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target / path)
        # A group may share the project.
        (target / path).chmod((root / path).stat().st_mode & ~OTHERS)
    (target / provenance.FROZEN_COMMIT).write_text(f"{provenance.commit(root) or ''}\n")
    return target


def next_folder(base: Path) -> Path:
    """Return the folder of `base` for the next copy: `1`, then `2`, ..."""
    numbers = [int(path.name) for path in base.glob("*") if path.name.isdecimal()]
    return base / str(max(numbers, default=0) + 1)


def _files_without_git(root: Path) -> list[Path]:
    paths = [*root.glob("*.py"), *root.glob("src/**/*"), *root.glob("conf/**/*")]
    for package in {path.parent for path in root.glob("[!.]*/*.py")}:
        paths += package.rglob("*.py")
    return [path.relative_to(root) for path in paths if path.suffix != ".pyc"]


def _git_files(root: Path, *options: str) -> list[Path]:
    """Return the paths that `git ls-files` lists, which are none without git or a repository."""
    command = ["git", "-C", root, "ls-files", "-z", *options]
    try:
        output = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [Path(name) for name in os.fsdecode(output).split("\0")[:-1]]
