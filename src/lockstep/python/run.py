"""`lockstep.Run` and `lockstep.runs`: facts of runs as plain values and table rows."""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from lockstep.runs import naming
from lockstep.runs.discovery import (
    DEFAULT_ROOT,
    RunWatcher,
    all_runs,
    read_rows,
    read_run_folder,
    restrict_to_epoch,
    root_of,
)

FACTS = (
    "epoch",
    "step",
    "monitor",
    "best",
    "metrics_epoch",
    "workers",
    "device",
    "precision",
    "images_per_s",
    "elapsed_s",
)


class Run(Mapping[str, Any]):
    """A run by its folder, or `latest` for the newest below outputs/.

    Every access reads the files of the run. As a mapping it is a table row:
    pandas.DataFrame(lockstep.runs()) has its keys as columns. They are the settings, the progress,
    and the metrics of one epoch, `metrics_epoch`. This is the best epoch of a finished run, with
    its test, else the newest. `started` is a datetime in the local time zone, `elapsed_s` is in
    seconds, and unknown values are None. Raises FileNotFoundError if there is no run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = naming.find(os.fspath(path))

    @property
    def path(self) -> Path:
        """The absolute path of the run folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """The state: training, finished, stopped, failed, ..., as in `lockstep runs`."""
        return read_run_folder(self._folder)["state"]

    @property
    def overrides(self) -> list[str]:
        """The overrides as typed."""
        return self._folder.read_overrides()

    @property
    def config(self) -> dict[str, Any]:
        """All settings, nested as in conf/. Raises ConfigError if they cannot be read."""
        from lockstep.config.saved import config_file  # A table does not need this import.

        return config_file.load_tree(self._folder.config)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The metrics of every epoch: epoch, step, train/loss, val/accuracy, ...

        Non-finite values are omitted.
        """
        return read_rows(self._folder)

    @property
    def summary(self) -> dict[str, Any]:
        """The result of a finished run, such as test_accuracy, which is empty for others."""
        return self._folder.read_summary()

    def _row(self) -> dict[str, Any]:
        facts = restrict_to_epoch(read_run_folder(self._folder), self._folder)
        start_s = facts.get("started")
        return {
            "run": naming.display_path(self.path),
            "state": facts["state"],
            "overrides": " ".join(facts["overrides"]),
            "started": None if start_s is None else datetime.fromtimestamp(start_s).astimezone(),
            **{fact: facts.get(fact) for fact in FACTS},
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
        return f"Run({naming.display_path(self.path)!r}, {self.state})"

    def __fspath__(self) -> str:
        return str(self.path)


def runs(folder: str | os.PathLike[str] = DEFAULT_ROOT) -> list[Run]:
    """List all runs below a folder, including trials of sweeps, newest first.

    pandas.DataFrame makes a row of each. Raises FileNotFoundError if the folder does not exist,
    except for the default.
    """
    listed_runs = all_runs(RunWatcher(root_of(os.fspath(folder)), scan_every_s=0.0))
    return [Run(run.discovered.folder.path.resolve()) for run in listed_runs]
