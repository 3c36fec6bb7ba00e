"""The folder of a sweep: which trials it has, and how each one ended, so that the same command goes on with it.

sweep.json lists the trials; what became of one stands in its own run folder. Standard library only.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.run_folder import SWEEP, RunFolder, read_json, write_json
from lockstep.runs import look_at

DONE = ("finished", "pruned")
HOW = ("launcher", "sweep", "notify", "cluster", "dry_run", "silent")  # say how and where, not what


@dataclass
class Trial:
    """One training of a sweep."""

    number: int
    overrides: tuple[str, ...]
    folder: RunFolder
    is_pruned: bool = False
    device: str = ""

    @property
    def state(self) -> str:
        """What its run folder says: a state of a run, or `queued`, `pruned`."""
        if self.is_pruned:
            return "pruned"
        state: str = look_at(self.folder)["state"]
        return {"not started": "queued", "no signal": "interrupted"}.get(state) or state

    @property
    def settings(self) -> dict[str, str]:
        """What was typed for it, by key."""
        pairs = (override.lstrip("+").partition("=") for override in self.overrides)
        return {key: value for key, _, value in pairs}


@dataclass
class Ledger:
    """The trials of a sweep in the order of their numbers."""

    path: Path
    name: str | None
    command: tuple[str, ...]
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path, name: str | None, command: Sequence[str]) -> "Ledger":
        """The ledger in a folder; an empty one where there is none. Raises ValueError when it cannot be read."""
        kept = read_json(path / SWEEP)
        ledger = cls(path, kept.get("name", name), tuple(kept.get("command", command)))
        for entry in kept.get("trials", ()):
            folder = RunFolder(path / entry["folder"])
            ledger.trials.append(
                Trial(entry["number"], tuple(entry["overrides"]), folder, entry["is_pruned"], entry["device"])
            )
        return ledger

    def find(self, overrides: Sequence[str]) -> Trial | None:
        """The trial of these overrides, in any order."""
        return next((trial for trial in self.trials if sorted(trial.overrides) == sorted(overrides)), None)

    def add(self, overrides: Sequence[str]) -> Trial:
        """A new trial, under the next number."""
        number = max((trial.number for trial in self.trials), default=-1) + 1
        trial = Trial(number, tuple(overrides), RunFolder(self.path / str(number)))
        self.trials.append(trial)
        return trial

    def write(self) -> None:
        """Replace sweep.json."""
        entries = [
            {
                "number": trial.number,
                "overrides": list(trial.overrides),
                "folder": trial.folder.path.name,
                "is_pruned": trial.is_pruned,
                "device": trial.device,
            }
            for trial in self.trials
        ]
        kept: dict[str, Any] = {"name": self.name, "command": list(self.command), "trials": entries}
        write_json(self.path / SWEEP, {**kept, "updated": time.time()})

    @property
    def stop_flag(self) -> RunFolder:
        """The folder as one that can be asked to stop, like a run."""
        return RunFolder(self.path)


def find(root: Path, name: str | None, command: Sequence[str]) -> Path | None:
    """The newest sweep below `root` of this name; without a name, of the same command."""
    found = []
    for file in root.glob(f"*/*/{SWEEP}"):
        try:
            kept = read_json(file)
        except (OSError, ValueError):
            continue
        is_it = kept.get("name") == name
        if name is None:
            is_it = is_it and sorted(kept.get("command", ())) == sorted(command)
        if is_it:
            found.append(file.parent)
    return max(found, default=None)


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
    return override.lstrip("+~").partition("=")[0].partition(".")[0]
