"""`lockstep.Run` and `lockstep.runs`: the facts of trainings as plain values and rows of a table."""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from lockstep.monitoring.selection import DEFAULT_ROOT, selection
from lockstep.runs import discovery, naming
from lockstep.runs.discovery import Watched
from lockstep.runs.naming import shown

FACTS = ("epoch", "step", "monitor", "best", "workers", "device", "precision", "images_per_s", "elapsed_s")


class Run(Mapping[str, Any]):
    """A training by its folder, or `latest` of those below outputs/; all is read there whenever it is asked for.

    As a mapping it is a row of a table, so that pandas.DataFrame(lockstep.runs()) has its keys as columns: what the run
    is, how far it is, and its newest metrics, those of its test included. `started` is a datetime of this time zone,
    `elapsed_s` are seconds, None stands for what is not known. Raises FileNotFoundError, which names the newest runs,
    where there is no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = naming.find(os.fspath(path))

    @property
    def path(self) -> Path:
        """The folder of the run, absolute."""
        return self._folder.path

    @property
    def state(self) -> str:
        """What the run is doing: training, finished, stopped, failed, ..., as `lockstep runs` has it."""
        return discovery.look_at(self._folder)["state"]

    @property
    def overrides(self) -> list[str]:
        """What was typed for it."""
        return self._folder.read_overrides()

    @property
    def config(self) -> dict[str, Any]:
        """All its settings, nested as in conf/. Raises ConfigError where they cannot be read."""
        from lockstep.config import storage  # which a table does not need

        return storage.load_tree(self._folder.config)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The numbers of every epoch: epoch, step, train/loss, val/accuracy, ...; what is not finite is left out."""
        return discovery.read_rows(self._folder)

    @property
    def summary(self) -> dict[str, Any]:
        """The result of a finished run, test_accuracy and the like among it; empty for others."""
        return self._folder.read_summary()

    def _row(self) -> dict[str, Any]:
        facts = discovery.look_at(self._folder)
        started = facts.get("started")
        return {
            "run": shown(self.path),
            "state": facts["state"],
            "overrides": " ".join(facts["overrides"]),
            "started": None if started is None else datetime.fromtimestamp(started).astimezone(),
            **{name: facts.get(name) for name in FACTS},
            **facts["metrics"],
        }

    @override
    def __getitem__(self, key: str, /) -> Any:
        return self._row()[key]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._row())

    @override
    def __len__(self) -> int:
        return len(self._row())

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path == other.path

    @override
    def __hash__(self) -> int:
        return hash(self.path)

    @override
    def __repr__(self) -> str:
        return f"Run({shown(self.path)!r}, {self.state})"

    def __fspath__(self) -> str:
        """Its folder, so that a run stands where a path can."""
        return str(self.path)


def runs(folder: str | os.PathLike[str] = DEFAULT_ROOT) -> list[Run]:
    """All runs below a folder, by default outputs/, trials of sweeps too, the newest first.

    pandas.DataFrame takes them, a row for each. Raises FileNotFoundError for a folder that is not there, unless it is
    outputs/, which the first run makes.
    """
    chosen = selection(os.fspath(folder), "", "")
    listed = chosen.listed(Watched(chosen.root, scan_every_s=0.0))
    return [Run(run.discovered.folder.path.resolve()) for run in listed]
