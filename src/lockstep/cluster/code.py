"""What a job runs is what was there when it was submitted: the source is copied, and edits come too late."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.storage import to_tree
from lockstep.config.targets import called
from lockstep.monitoring.cells import size
from lockstep.runs.naming import quoted, shown
from lockstep.system import provenance

WITHOUT_GIT = ("src", "conf")  # beside modules and packages
RUNS = "outputs"  # with copies of the code in them, also where a command was typed elsewhere in the project
# names of files and folders that stay where they are; a module among them is code
CREDENTIALS = (".env", ".env.*", ".netrc", ".pypirc", "*credential*", "id_rsa*", "id_ed25519*", "*.pem", "*.key")
MAX_BYTES = 100 * 2**20
COMMIT, CHANGES = provenance.FROZEN_COMMIT, "CHANGES.diff"
GIT_TIMEOUT_S = 60.0


def files(root: Path, max_bytes: int = MAX_BYTES) -> list[Path]:
    """Files of the project relative to `root`: those git knows, and others it does not ignore.

    Without git, or where it ignores all of it, src, conf, train.py, and the modules and packages beside it. Raises
    ConfigError when they are too large to be copied for every job.
    """
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    paths = [path for path in map(Path, names) if RUNS not in path.parts]
    chosen = [path for path in paths if (root / path).is_file()]  # not what is gone, no other repositories
    if not chosen:
        chosen = [path for path in _walk(root) if RUNS not in path.parts]
    chosen = [path for path in chosen if not _is_credential(path)]
    sizes = {path: os.stat(root / path).st_size for path in chosen}
    total = sum(sizes.values())
    if total > max_bytes:
        largest = ", ".join(f"{path} ({size(sizes[path])})" for path in sorted(chosen, key=lambda p: -sizes[p])[:3])
        message = f"the code in {shown(root)} has {size(total)}, and a job gets a copy of at most {size(max_bytes)}"
        raise ConfigError([f"{message}: let .gitignore name what is not code, largest are {largest}"])
    return chosen


def needed(configs: Iterable[Config], root: Path) -> list[Path]:
    """As `files`. Raises ConfigError, too, where a package that one of the configurations names would be left out."""
    paths = files(root)
    beside, copied = set(os.listdir(root)), {path.parts[0] for path in paths}
    if (root / "src").is_dir():
        beside |= set(os.listdir(root / "src"))
        copied |= {path.parts[1] for path in paths if path.parts[0] == "src"}
    errors = []
    for key, target in (name for config in configs for name in called(to_tree(config))):
        package = target.partition(".")[0]
        left_out = {package, f"{package}.py"} & beside
        if left_out and not left_out & copied:
            where = next(path for path in (root, root / "src") if left_out & set(os.listdir(path)))
            what = f"{package} in {shown(where)} is not copied for a job, because git ignores it"
            errors.append(f"{key}={target}: {what}: see git check-ignore -v {quoted(where / package)}")
    if errors:
        raise ConfigError(list(dict.fromkeys(errors)))
    return paths


def freeze(paths: Sequence[Path], base: Path, root: Path) -> Path:
    """Copy `paths` into the next free folder of `base`, with the commit and what differs from it. Returns the folder.

    Never one that is there: a job that waits or runs may read it.
    """
    target = next_folder(base)
    target.mkdir(parents=True)  # also where there is no code
    try:
        for path in paths:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target / path)
        (target / COMMIT).write_text(f"{provenance.commit(root) or ''}\n")
        left_out = (f":(exclude,top,glob,icase)**/{name}{below}" for name in CREDENTIALS for below in ("", "/**"))
        (target / CHANGES).touch(0o600)
        (target / CHANGES).write_bytes(_git(root, "diff", "HEAD", "--", ":/", *left_out))
    except BaseException:
        shutil.rmtree(target)
        raise
    return target


def next_folder(base: Path) -> Path:
    """Where in `base` the next copy of the code has its place: `1`, then `2`, ..."""
    numbers = [int(path.name) for path in base.glob("*") if path.name.isdecimal()]
    return base / str(max(numbers, default=0) + 1)


def search_path(code: Path) -> str:
    """What stands first in PYTHONPATH of a job; then an editable install of the project is not found."""
    return f"{code / 'src'}:{code}"


def _is_credential(path: Path) -> bool:
    names = [part.lower() for part in path.parts]
    return path.suffix != ".py" and any(fnmatch(name, pattern) for name in names for pattern in CREDENTIALS)


def _walk(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()):
        if entry.is_file() and entry.suffix == ".py":
            yield Path(entry.name)
        elif entry.name in WITHOUT_GIT or (not entry.name.startswith(".") and any(entry.glob("*.py"))):
            for path in sorted(entry.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path.relative_to(root)


def _git(root: Path, *words: str) -> bytes:
    """What git prints, empty where there is no git or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout if done.returncode == 0 else b""
