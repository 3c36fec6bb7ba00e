"""A copy of the project's source for each submission: later edits do not affect a waiting job."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import named_callables
from lockstep.runs.naming import display_path, quote_path
from lockstep.system import provenance
from lockstep.system.processes import OTHERS
from lockstep.system.wording import size_text

WITHOUT_GIT = ("src", "conf")  # next to modules and packages
RUNS = "outputs"  # at any depth: a command may be started in a folder of the project
# files and folders that are not copied, except modules; `*token.*` leaves tokenizer.json and added_tokens.json
CREDENTIALS = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd", ".s3cfg", ".boto"),
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".dockercfg", "rclone.conf", "access_tokens.db"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "kaggle.json", "*service*account*.json", "*credential*", "*secret*", "*password*"),
    *("*token", "*token.*", "tokens.*"),
)
MAX_BYTES = 100 * 2**20
COMMIT, CHANGES = provenance.FROZEN_COMMIT, "CHANGES.diff"


def files(root: Path, max_bytes: int = MAX_BYTES) -> list[Path]:
    """List the files of the project relative to `root`: those that git tracks or would add.

    Without git, or if it ignores all of them: src, conf, train.py, and the modules and packages next to it. Raises
    ConfigError if they have more than `max_bytes`.
    """
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    paths = [path for path in map(Path, names) if (root / path).is_file()]  # no deleted files, no other repositories
    chosen = list(filter(_is_copied, paths)) or list(filter(_is_copied, _walk(root)))
    sizes = {path: os.stat(root / path).st_size for path in chosen}
    total = sum(sizes.values())
    if total > max_bytes:
        largest = ", ".join(f"{p} ({size_text(sizes[p])})" for p in sorted(chosen, key=lambda p: -sizes[p])[:3])
        problem = f"has {size_text(total)} of code, a copy at most {size_text(max_bytes)}"
        fix = f"add other files to .gitignore, the largest are {largest}"
        raise ConfigError(Error(display_path(root), problem, fix))
    return chosen


def required_files(configs: Iterable[Config], root: Path) -> list[Path]:
    """As `files`. Also raises ConfigError if git ignores a package of the project that a configuration names."""
    paths = files(root)
    errors: list[Error] = []
    for key, target in (name for config in configs for name in named_callables(to_tree(config))):
        package = target.partition(".")[0]
        candidates = (package, f"{package}.py", f"src/{package}", f"src/{package}.py")
        present = [name for name in candidates if (root / name).exists()]
        if present and not any(path.is_relative_to(name) for path in paths for name in present):
            where = display_path((root / present[0]).parent)
            problem = f": {package} in {where} is not copied for a job, because git ignores it"
            errors.append(Error(f"{key}={target}", problem, f"see git check-ignore -v {quote_path(root / present[0])}"))
    if errors:
        raise ConfigError(*errors)
    return paths


def freeze(paths: Sequence[Path], base: Path, root: Path) -> Path:
    """Copy `paths` into a new folder of `base`, with the commit and the differences from it. Returns the folder."""
    target = next_folder(base)
    target.mkdir(parents=True)  # even without code
    try:
        for path in paths:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target / path)
            (target / path).chmod((target / path).stat().st_mode & ~OTHERS)  # of a project that a group shares
        (target / COMMIT).write_text(f"{provenance.commit(root) or ''}\n")
        left_out = (f":(exclude,top,glob,icase)**/{name}{below}" for name in CREDENTIALS for below in ("", "/**"))
        (target / CHANGES).touch(0o600)
        (target / CHANGES).write_bytes(_git(root, "diff", "HEAD", "--", ":/", *left_out))
    except BaseException:
        shutil.rmtree(target)
        raise
    return target


def next_folder(base: Path) -> Path:
    """Return the folder of `base` for the next copy: `1`, then `2`, ..."""
    numbers = [int(path.name) for path in base.glob("*") if path.name.isdecimal()]
    return base / str(max(numbers, default=0) + 1)


def _is_copied(path: Path) -> bool:
    """Return False for runs and credentials."""
    names = [part.lower() for part in path.parts]
    is_secret = path.suffix != ".py" and any(fnmatch(name, pattern) for name in names for pattern in CREDENTIALS)
    return RUNS not in path.parts and not is_secret


def _walk(root: Path) -> Iterator[Path]:
    for entry in sorted(root.iterdir()):
        if entry.is_file() and entry.suffix == ".py":
            yield Path(entry.name)
        elif entry.name in WITHOUT_GIT or (not entry.name.startswith(".") and any(entry.glob("*.py"))):
            for path in sorted(entry.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield path.relative_to(root)


def _git(root: Path, *arguments: str) -> bytes:
    """Return the output of git, empty without git or a repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True)
    except FileNotFoundError:
        return b""
    return done.stdout if done.returncode == 0 else b""
