"""The folder of a sweep: which trials it has, and how each one ended, so that the same command goes on with it.

sweep.json lists the trials by what was typed, secrets too; what became of one stands in its own run folder.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.config.errors import ConfigError
from lockstep.runs.discovery import look_at
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.redaction import redacted

DONE = ("finished", "pruned")
HOW = ("launcher", "sweep", "notify", "cluster", "dry_run", "silent", "hydra")  # say how and where, not what


@dataclass
class Trial:
    """One training of a sweep."""

    number: int
    overrides: tuple[str, ...]
    folder: RunFolder
    device: str = ""

    @property
    def state(self) -> str:
        """The state of its run, or `queued`, `interrupted`."""
        return state_of(look_at(self.folder))

    @cached_property
    def settings(self) -> dict[str, str]:
        """The overrides of the trial as they were typed, by key, without secrets."""
        pairs = (override.lstrip("+").partition("=") for override in redacted(self.overrides))
        return {key: value for key, _, value in pairs}


@dataclass
class Ledger:
    """The trials of a sweep in the order of their numbers. `is_known`: an earlier command has begun it."""

    path: Path
    name: str | None
    command: tuple[str, ...]
    trials: list[Trial] = field(default_factory=list)
    is_known: bool = False

    @classmethod
    def opened(cls, path: Path, name: str | None, command: Sequence[str]) -> "Ledger":
        """The ledger in a folder; an empty one where there is none. Raises ValueError when it cannot be read."""
        kept = read_json(path / SWEEP)
        if not kept:
            return cls(path, name, tuple(command))
        try:
            ledger = cls(path, kept["name"], tuple(kept["command"]), is_known=True)
            for entry in kept["trials"]:
                folder = RunFolder(path / entry["folder"])
                ledger.trials.append(Trial(entry["number"], tuple(entry["overrides"]), folder, entry["device"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path / SWEEP} is no ledger of a sweep") from error
        for trial in ledger.trials:
            if not trial.folder.path.resolve().is_relative_to(path.resolve()):
                raise ValueError(f"{path / SWEEP} names a folder outside of the sweep: {trial.folder.path}")
        return ledger

    def find(self, overrides: Sequence[str]) -> Trial | None:
        """The trial of these overrides, in any order."""
        return next((trial for trial in self.trials if sorted(trial.overrides) == sorted(overrides)), None)

    @property
    def next_number(self) -> int:
        """The number of a new trial."""
        return max((trial.number for trial in self.trials), default=-1) + 1

    def add(self, overrides: Sequence[str], subdir: str) -> Trial:
        """A new trial, under the next number. Raises ConfigError where its folder is that of another one."""
        folder = RunFolder(self.path / subdir)
        same = next((trial.number for trial in self.trials if trial.folder == folder), None)
        if same is not None:
            raise ConfigError([f"hydra.sweep.subdir: {subdir} is the folder of trial {same} already"])
        trial = Trial(self.next_number, tuple(overrides), folder)
        self.trials.append(trial)
        return trial

    def write(self) -> None:
        """Replace sweep.json."""
        entries = [
            {
                "number": trial.number,
                "overrides": trial.overrides,
                "folder": str(trial.folder.path.relative_to(self.path)),
                "device": trial.device,
            }
            for trial in self.trials
        ]
        kept = {"name": self.name, "command": self.command, "trials": entries, "updated": time.time()}
        write_json(self.path / SWEEP, kept)

    @property
    def stop_flag(self) -> RunFolder:
        """The folder as one that can be asked to stop, like a run."""
        return RunFolder(self.path)


def state_of(facts: Mapping[str, Any]) -> str:
    """The state of a trial by the facts of its run."""
    state: str = facts["state"]
    return {"not started": "queued", "no signal": "interrupted"}.get(state, state)


def find(root: Path, name: str | None, command: Sequence[str]) -> Path | None:
    """The newest sweep below `root` of this name that this user may write; without a name, of the same command."""
    folders = []
    for file in filter(lambda file: os.access(file.parent, os.W_OK), root.glob(f"*/*/{SWEEP}")):
        try:
            kept = read_json(file)
            if kept["name"] == name and (name or sorted(kept["command"]) == sorted(command)):
                folders.append(file.parent)
        except (OSError, KeyError, TypeError, ValueError):  # not written by a sweep
            continue
    return max(folders, default=None)


def command_of(overrides: Sequence[str]) -> list[str]:
    """The overrides that make a sweep what it is; how, where and how long it runs can change."""
    return [text for text in _last(overrides) if _group(text) not in HOW and not text.startswith("search.num_trials=")]


def trial_of(overrides: Sequence[str]) -> list[str]:
    """The overrides that make a trial what it is."""
    return [text for text in _last(overrides) if _group(text) not in (*HOW, "search")]


def _last(overrides: Sequence[str]) -> list[str]:
    """The last override of every key, which is the one that counts."""
    return list({text.partition("=")[0]: text for text in overrides}.values())


def _group(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("/")[0]
