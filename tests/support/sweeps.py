"""Commands of sweeps, and the files of their trials."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from lockstep.runs.files import read_json
from lockstep.runs.folder import RunFolder
from lockstep.sweeps.search import JOURNAL
from tests.support import commands
from tests.support.commands import Command
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ

TINY = (*SMALL, "trainer.max_epochs=1", "data.train_size=40", "model.width=2")


class PrunesOne:
    """A pruner of Optuna that finds one trial poor, after its first epoch."""

    def __init__(self, number: int) -> None:
        self._number = number

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.user_attrs["trial"] == self._number


def variables(**more: str | None) -> dict[str, str]:
    """Variables of a sweep; None removes one."""
    found = {**environ(), "PYTHONPATH": str(ROOT), **more}
    return {name: value for name, value in found.items() if value is not None}


def run(
    cwd: Path, *overrides: str, code: int | None = None, **more: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a sweep, which must exit with `code`; None: with any."""
    words, environ_ = command("-m", *overrides), variables(**more)
    if more:
        done = subprocess.run(
            words, cwd=cwd, env=environ_, capture_output=True, text=True, timeout=PATIENCE_S
        )
    else:
        done = commands.run(words, cwd, environ_)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done


@contextmanager
def started(cwd: Path, *overrides: str) -> Iterator[Command]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = Command(command("-m", *overrides), cwd, variables(), **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tree_of(cwd: Path) -> Path:
    (found,) = cwd.glob("outputs/*/*/sweep.json")
    return found.parent


def trials_of(cwd: Path) -> list[RunFolder]:
    tree = tree_of(cwd)
    return [RunFolder(tree / entry["folder"]) for entry in read_json(tree / "sweep.json")["trials"]]


def seen(folder: RunFolder) -> dict[str, Any]:
    return json.loads((folder.path / "seen.json").read_text())


def table_of(cwd: Path) -> dict[str, Any]:
    return read_json(tree_of(cwd) / "table.json")


def journal(tree: Path) -> JournalStorage:
    """What Optuna has stored of a search."""
    return JournalStorage(JournalFileBackend(str(tree / JOURNAL)))


def processes_of(folder: RunFolder) -> list[int]:
    """Processes that have a file of a run open."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _has_open(entry, folder)
    ]


def _has_open(process: Path, folder: RunFolder) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        return any(
            os.readlink(file).startswith(f"{folder.path}/") for file in (process / "fd").iterdir()
        )
    return False


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["begin"] < other["end"] and other["begin"] < one["end"]
