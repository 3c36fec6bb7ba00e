"""Which runs a command is about: those below a folder that fit the words and states asked for."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.discovery import STATES, DiscoveredRun, Watched
from lockstep.runs.folder import ENDED_STATES

DEFAULT_ROOT = "outputs"
REMOVABLE = (*ENDED_STATES, "no signal", "not started")


@dataclass(frozen=True)
class Listed:
    """A run and what it says of itself; `since` is when its last session began, or else when it was made."""

    discovered: DiscoveredRun
    facts: dict[str, Any]
    since: float


@dataclass(frozen=True)
class Selection:
    """The folder that is searched, the words each of which must occur, and the states; none: all."""

    root: Path
    words: Sequence[str]
    states: Sequence[str]

    def listed(self, watched: Watched) -> list[Listed]:
        """The runs that fit, the newest first."""
        fitting = [facts for facts in watched.look() if self._fits(facts)]
        by_id = watched.runs()  # searched for anew, perhaps: a run may be gone since
        discovered = [(by_id[facts["id"]], facts) for facts in fitting if facts["id"] in by_id]
        runs = [Listed(run, facts, _since(run, facts)) for run, facts in discovered]
        return sorted(runs, key=lambda run: (run.since, run.discovered.name), reverse=True)

    def _fits(self, facts: dict[str, Any]) -> bool:
        if self.states and facts["state"] not in self.states:
            return False
        texts = [facts["run"], facts.get("name", ""), facts.get("device", ""), *facts["overrides"], facts["state"]]
        text = " ".join([*texts, f"state={facts['state'].replace(' ', '-')}"]).casefold()
        return all(word in text for word in self.words)


def selection(folder: str, filter_text: str, state_text: str) -> Selection:
    """What was asked for on the command line.

    Raises FileNotFoundError for a folder that is not there, unless it is the one no run has made yet.
    """
    root = Path(folder)
    if folder != DEFAULT_ROOT and not root.is_dir():
        raise FileNotFoundError(f"{folder} is no folder: give one that holds runs, or none for {DEFAULT_ROOT}/.")
    return Selection(root, filter_text.casefold().split(), states(state_text))


def states(text: str) -> tuple[str, ...]:
    """The states of a list like `failed,no-signal`. Raises ValueError naming those there are."""
    known = {state.replace(" ", "-"): state for state in STATES}
    chosen_words = [word.strip().replace(" ", "-") for word in text.split(",") if word.strip()]
    for word in chosen_words:
        if word not in known:
            raise ValueError(f"--state {word}: there is no such state, choose from {', '.join(known)}.")
    return tuple(known[word] for word in chosen_words)


def _since(run: DiscoveredRun, facts: dict[str, Any]) -> float:
    if "started" in facts:
        return facts["started"]
    with contextlib.suppress(OSError):
        return run.folder.config.stat().st_mtime
    return 0.0
