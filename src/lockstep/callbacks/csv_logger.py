"""Curves as a CSV file that goes on where a run goes on."""

import csv
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lockstep.runs import files

STEP = "step"


class ResumableCSVLogger(CSVLogger):
    """Lightning's CSV logger, whose file `csv/metrics.csv` below the run folder `save_dir` is kept on a resume.

    Lightning's own deletes the file of an earlier session. Rows from the optimizer step `purge_step` on are dropped,
    since these steps are done again; so is a test after the step before.
    """

    def __init__(
        self, *, save_dir: str, prefix: str = "", flush_logs_every_n_steps: int = 100, purge_step: int = 0
    ) -> None:
        super().__init__(save_dir, "", "csv", prefix, flush_logs_every_n_steps)
        self._purge_step = purge_step
        self._writer: _Writer | None = None

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """What writes the file. Rank 0 only: others get an object that does nothing."""
        if self._writer is None:
            self._writer = _Writer(self.log_dir, self._purge_step)
        return self._writer

    @override
    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


class _Writer(ExperimentWriter):
    """Appends rows; with a new column the file is replaced in one step, so that a kill loses none of it."""

    def __init__(self, log_dir: str, purge_step: int) -> None:
        super().__init__(log_dir)
        path = Path(self.metrics_file_path)
        rows = [row for row in _rows(path) if _is_kept(row, purge_step)]
        if path.exists():
            files.write_rows(path, rows)
        self.metrics_keys = list(rows[0]) if rows else []

    @override
    def _check_log_dir_exists(self) -> None:
        """Leave the file of an earlier session alone."""

    @override
    def save(self) -> None:
        """Write the rows since the last call."""
        path, known = Path(self.metrics_file_path), self.metrics_keys
        new = [name for name in dict.fromkeys(name for row in self.metrics for name in row) if name not in known]
        if new:
            columns = [STEP, *(name for name in (*known, *new) if name != STEP)]
            empty = dict.fromkeys(columns, "")
            files.write_rows(path, [{**empty, **row} for row in (*_rows(path), *self.metrics)])
            self.metrics_keys = columns
        elif self.metrics:
            files.append_rows(path, known, self.metrics)
        self.metrics = []


def _rows(path: Path) -> list[dict[str, Any]]:
    """The rows of the file, however many; none where there is no file."""
    try:
        with open(path, newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _is_kept(row: dict[str, Any], purge_step: int) -> bool:
    """Whether a row is of a step that is not done again; not one that a kill has cut."""
    if not str(row.get(STEP, "")).isdigit() or None in row.values():
        return False
    is_test = any(value for name, value in row.items() if name.partition("/")[0].endswith("test"))
    return int(row[STEP]) < purge_step - is_test
