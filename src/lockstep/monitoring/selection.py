"""Lists the runs below a folder, with the values by which `lockstep runs` sorts them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.discovery import DiscoveredRun, RunWatcher, modified_ns
from lockstep.runs.files import JsonObject

DEFAULT_ROOT = "outputs"


@dataclass(frozen=True)
class Listed:
    """A run and its facts.

    `since` is the start of its last session, or else when it was created, in seconds since 1970.
    """

    discovered: DiscoveredRun
    facts: JsonObject
    since: float

    def value(self, key: str) -> Any:
        """Return a fact, a metric or a typed setting by its key, or None if the run has none."""
        pairs = (override.lstrip("+").partition("=") for override in self.facts["overrides"])
        settings = {setting: value for setting, _, value in pairs}
        aliases = {"started": self.since or None, "s/epoch": self.facts.get("epoch_s")}
        values = settings | self.facts["metrics"] | self.facts | aliases
        return values.get(key)


def all_runs(watcher: RunWatcher) -> list[Listed]:
    """List all runs, the newest first."""
    runs: list[Listed] = []
    for run in watcher.runs().values():
        facts = watcher.facts(run)
        since = facts.get("started") or modified_ns(run.folder.config) / 1e9
        runs.append(Listed(run, facts, since))
    return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)


def root_of(folder: str) -> Path:
    """Return the folder to search.

    Raises FileNotFoundError if it does not exist, unless it is the default.
    """
    root = Path(folder)
    if folder != DEFAULT_ROOT and not root.is_dir():
        problem = f"{folder} is not a folder"
        raise FileNotFoundError(f"{problem}: give a folder of runs, or none for {DEFAULT_ROOT}/.")
    return root
