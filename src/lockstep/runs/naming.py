"""Names of runs: new folders, `latest`, and how commands refer to a run."""

import os
import re
import secrets
import shlex
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from lockstep.runs.files import unused_path
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.text import expand_path

NO_TEXTS = ("null", "true", "false", "nan", "inf")  # Hydra parses these as another type.
TRAIN_COMMAND = "lockstep train"  # the command that trains in any folder
TRUST_HINT = "run this in the project's folder, or add --trust (in Python trust=True)"
ADOPT_HINT = "add --trust (in Python trust=True), with which its code and commands run as yours"
TRUST_HELP = (
    "allow any code and commands in the run folder, not only those of this project and known "
    "libraries"
)


def create_path(root: Path, name: str, time: datetime) -> Path:
    """Create `root/<date>/<time>_<name>`, with a number if that exists.

    Raises PermissionError in a shared folder.
    """
    from lockstep.runs import permissions  # Workers, which only show names, do not import it.

    root.mkdir(parents=True, exist_ok=True)
    permissions.need_private(root)
    while True:
        path = free_path(root, name, time)
        permissions.need_private(path.parent)
        with suppress(FileExistsError):  # Another process has just created it.
            path.mkdir(0o755, parents=True)
            return path


def free_path(root: Path, name: str, time: datetime) -> Path:
    """Return the path that `create_path` would create."""
    from lockstep.runs import permissions

    day = root / f"{time:%Y-%m-%d}"
    # Another user owns this folder, or could replace its contents.
    if day.exists() and (permissions.exposure(day) or not os.access(day, os.W_OK)):
        day = day.with_name(f"{day.name}_{os.geteuid()}")
    return unused_path(day / f"{time:%H-%M-%S}_{name}")


def link_latest(root: Path, path: Path) -> None:
    """Point `root/latest` to the run at `path` below `root`, atomically.

    Print a warning if the link belongs to another user.
    """
    temporary = root / f".latest.{os.getpid()}.{secrets.token_hex(4)}"
    temporary.symlink_to(path.relative_to(root))
    try:
        os.replace(temporary, root / "latest")
    except PermissionError:
        temporary.unlink()
        print(
            f"{display_path(root / 'latest')} still points to another run: "
            "the link belongs to another user",
            file=sys.stderr,
        )


def latest(root: Path) -> str:
    """Return the target of `root/latest`, which is empty without a link."""
    link = root / "latest"
    return os.readlink(link) if link.is_symlink() else ""


def link_again(root: Path, path: Path, before: str) -> None:
    """Restore the target that `root/latest` had `before`.

    Nothing changes unless it points to `path`, which was removed.
    """
    if root / latest(root) == path:
        (root / "latest").unlink()
        if before:
            link_latest(root, root / before)


def find(name: str) -> RunFolder:
    """Return the run at a path, or below outputs/, such as `latest`.

    Raises FileNotFoundError with a hint.
    """
    path = Path(expand_path(name))
    for folder in (path, "outputs" / path):
        if (folder / "config.yaml").is_file():
            return RunFolder(folder.resolve())
        if (folder / SWEEP).is_file():
            raise FileNotFoundError(
                f"{name} is a sweep, not a run: lockstep runs {quote_path(folder)} lists its runs."
            )
    raise FileNotFoundError(
        f"{name} is not a run folder: it has no config.yaml. lockstep runs lists the runs."
    )


def display_path(path: Path) -> str:
    """Format a path as a user types it: relative to the current folder if it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def quote_path(path: Path) -> str:
    """Format a path as an argument to copy into a shell."""
    argument = display_path(path)
    return shlex.quote(f"./{argument}" if argument.startswith("-") else argument)


def short_path(path: Path) -> str:
    """Format a run as the shortest argument by which `find` finds it.

    The argument is `latest`, or its path below outputs/.
    """
    outputs = Path("outputs").resolve()
    if path.is_relative_to(outputs):
        path = Path("latest") if outputs / latest(outputs) == path else path.relative_to(outputs)
    return quote_path(path)


def metric_name(field: str) -> str:
    """Return the metric of a field of summary.json, such as test/accuracy for test_accuracy."""
    return re.sub("^test_", "test/", field)


def hydra_text(value: str) -> str:
    """Format text as the value of an override.

    It is quoted if it has special characters or looks like another type.
    """
    is_plain = "/" in value or (value[:1].isalpha() and value.lower() not in NO_TEXTS)
    if is_plain and not re.search(r"[^a-zA-Z0-9_/.+-]", value):
        return value
    # Hydra unescapes a backslash only in front of a quote.
    value = re.sub(r'(?<!\\)(\\*+)"', r'\1\1\\"', value)
    value = re.sub(r"(?<!\\)(\\*+)\Z", r"\1\1", value)
    return f'"{value}"'


def resume_override(path: Path) -> str:
    """Format the override that resumes a run, quoted for a shell: resume=outputs/latest."""
    return shlex.quote(f"resume={hydra_text(display_path(path))}")


def training_command() -> str:
    """Return the command that trains in the current folder, which is its train.py if it has one."""
    return "python train.py" if Path("train.py").is_file() else TRAIN_COMMAND


def resume_command(path: Path) -> str:
    return f"{training_command()} {resume_override(path)}"
