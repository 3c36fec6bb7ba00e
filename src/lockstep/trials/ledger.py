"""The trials of a sweep, so that the same command resumes it.

sweep.json lists their overrides, including secrets. The state of a trial is in its run folder.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.config.errors import ConfigError, config_error, file_error
from lockstep.runs import naming, permissions
from lockstep.runs.discovery import read_run_folder
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.redaction import redact

DONE = ("finished", "pruned")
# These sections may change between two commands.
FREE = ("launcher", "sweep", "cluster", "dry_run", "silent", "hydra")


@dataclass
class Trial:
    """One training of a sweep."""

    number: int
    overrides: tuple[str, ...]
    folder: RunFolder
    device: str = ""

    @property
    def state(self) -> str:
        """The state of its run, `queued` or `interrupted`."""
        return state_of(read_run_folder(self.folder))

    @cached_property
    def typed(self) -> dict[str, str]:
        """The overrides by key with secrets, to be compared and never shown."""
        return _overrides_by_key(self.overrides)

    @cached_property
    def settings(self) -> dict[str, str]:
        """The overrides by key, without secrets."""
        return _overrides_by_key(redact(self.overrides))


def _overrides_by_key(overrides: Sequence[str]) -> dict[str, str]:
    keys_and_values = [override.lstrip("+").partition("=") for override in overrides]
    return {key: value for key, _, value in keys_and_values}


@dataclass
class Ledger:
    """The trials of a sweep in the order of their numbers."""

    path: Path
    name: str | None
    command: tuple[str, ...]
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path, name: str | None = None, command: Sequence[str] = ()) -> "Ledger":
        """Read the ledger of a folder, or create an empty one.

        Raises ValueError if it cannot be read.
        """
        record = read_json(path / SWEEP)
        if not record:
            return cls(path, name, tuple(command))
        try:
            ledger = cls(path, record["name"], tuple(record["command"]))
            for entry in record["trials"]:
                overrides, folder = tuple(entry["overrides"]), RunFolder(path / entry["folder"])
                ledger.trials.append(Trial(entry["number"], overrides, folder, entry["device"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path / SWEEP} is not a sweep ledger") from error
        for trial in ledger.trials:
            if not trial.folder.path.resolve().is_relative_to(path.resolve()):
                raise ValueError(
                    f"{path / SWEEP} names a folder outside of the sweep: {trial.folder.path}"
                )
        return ledger

    def find(self, overrides: Sequence[str]) -> Trial | None:
        """Return the trial of these overrides, in any order."""
        for trial in self.trials:
            if sorted(trial.overrides) == sorted(overrides):
                return trial
        return None

    @property
    def next_number(self) -> int:
        return max((trial.number for trial in self.trials), default=-1) + 1

    def add(self, overrides: Sequence[str], subdir: str) -> Trial:
        """Add a trial with the next number. Raises ConfigError if another trial has its folder."""
        new_trial = Trial(self.next_number, tuple(overrides), RunFolder(self.path / subdir))
        for trial in self.trials:
            if trial.folder == new_trial.folder:
                raise config_error(
                    "conflict",
                    f"hydra.sweep.subdir={subdir}",
                    f"is already the folder of trial {trial.number}",
                )
        self.trials.append(new_trial)
        return new_trial

    def write(self) -> None:
        entries = [
            {
                "number": trial.number,
                "overrides": trial.overrides,
                "device": trial.device,
                "folder": str(trial.folder.path.relative_to(self.path)),
            }
            for trial in self.trials
        ]
        record = {
            "name": self.name,
            "command": self.command,
            "trials": entries,
            "updated": time.time(),
        }
        write_json(self.path / SWEEP, record)

    @property
    def folder(self) -> RunFolder:
        """The folder of the sweep, which contains a stop flag like that of a run."""
        return RunFolder(self.path)


def state_of(facts: Mapping[str, Any]) -> str:
    state: str = facts["state"]
    return {"not started": "queued", "no signal": "interrupted"}.get(state, state)


def find(root: Path, name: str | None, command: Sequence[str]) -> Path | None:
    """Find the newest sweep of this user with this name, or of this command.

    A sweep that was created on this machine comes before copies.
    """
    folders = []
    for file in root.glob(f"*/*/{SWEEP}"):
        try:
            record = read_json(file)
            is_same = record["name"] == name and (
                name or sorted(record["command"]) == sorted(command)
            )
            if is_same and file.parent.stat().st_uid == os.geteuid():
                folders.append((RunFolder(file.parent.resolve()).is_made_here(), file.parent))
        except (OSError, KeyError, TypeError, ValueError):  # It is not the file of a sweep.
            continue
    return max(folders)[1] if folders else None


def need_own(folder: RunFolder, *, is_trusted: bool = False) -> None:
    """Raise ConfigError unless this user created a sweep and its trials on this machine.

    A trusted sweep becomes a sweep of this user.
    """
    try:
        permissions.need_own(folder, naming.ADOPT_HINT, is_trusted=is_trusted)
        run_folders = [
            trial.folder
            for trial in Ledger.open(folder.path).trials
            if trial.folder.config.exists()
        ]
        for run_folder in (folder, *run_folders):
            if is_trusted:
                run_folder.claim()
            permissions.need_made_here(run_folder, naming.ADOPT_HINT)
    except PermissionError as error:
        raise ConfigError(file_error(error)) from error
    except (OSError, ValueError) as error:
        raise config_error(
            "damaged",
            naming.display_path(folder.path / SWEEP),
            f"cannot be read ({error})",
            "choose another sweep.name",
        ) from error


def sweep_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that identify a sweep.

    How, where and how long it runs may change.
    """
    return [
        override
        for override in _last(overrides)
        if group_of(override) not in FREE and not override.startswith("search.num_trials=")
    ]


def trial_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that identify a trial."""
    return [
        override for override in _last(overrides) if group_of(override) not in (*FREE, "search")
    ]


def _last(overrides: Sequence[str]) -> list[str]:
    """Return the last override of every key, which is the effective one."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


def group_of(override: str) -> str:
    """Return the section or group of an override, such as cluster for cluster.time_min=5."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("/")[0]
