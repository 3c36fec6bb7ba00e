"""Metrics in a CSV file that a resumed run continues."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from typing_extensions import override

from lockstep.runs import files


class ResumableCSVLogger(CSVLogger):
    """Lightning's CSV logger, whose file `csv/metrics.csv` in the run folder `save_dir` survives a resume.

    Lightning's own deletes the file of an earlier session. Rows from the optimizer step `purge_step` on are dropped,
    since these steps are trained again; so is a test after the step before.
    """

    def __init__(
        self, *, save_dir: str, prefix: str = "", flush_logs_every_n_steps: int = 100, purge_step: int = 0
    ) -> None:
        super().__init__(save_dir, "", "csv", prefix, flush_logs_every_n_steps)
        self._purge_step = purge_step

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> Any:
        """Writer of the file. On ranks other than 0 it does nothing."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir, self._purge_step)
        return self._experiment


class _Writer(ExperimentWriter):
    def __init__(self, log_dir: str, purge_step: int) -> None:
        super().__init__(log_dir)
        if note := files.keep_rows(Path(self.metrics_file_path), "step", partial(_is_kept, purge_step)):
            print(note, file=sys.stderr, flush=True)

    @override
    def _check_log_dir_exists(self) -> None:
        """Keep the file of an earlier session."""

    @override
    def save(self) -> None:
        if self.metrics:
            files.append_rows(Path(self.metrics_file_path), [{"step": row["step"], **row} for row in self.metrics])
        self.metrics = []


def _is_kept(purge_step: int, step: int, row: dict[str, str]) -> bool:
    is_test = any(value for name, value in row.items() if name.partition("/")[0].endswith("test"))
    return step < purge_step - is_test
