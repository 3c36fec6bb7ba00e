"""Jobs of a sweep one after the other in this process: under torchrun or srun, or with Hydra's own launchers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from lockstep.sweeps.ledger import Ledger, Trial, trial_of
from lockstep.system.redaction import redacted

if TYPE_CHECKING:
    from lockstep.config.schema import Config
    from lockstep.sweeps.table import Table

GOOD = (0, EXIT_STOPPED)


@dataclass
class Serial:
    """The jobs of one command, in the order in which they were done."""

    num_jobs: int
    trials: list[Trial] = field(default_factory=list)
    failed: list[RunFolder] = field(default_factory=list)
    is_silent: bool = False

    def begin(self, number: int, overrides: Sequence[str], *, is_silent: bool) -> None:
        """Say that job `number`, the name of its folder, begins.

        A sweeper that proposes jobs as it goes knows no total.
        """
        self.is_silent = is_silent
        if is_silent:
            return
        from lockstep.system.terminal import terminal  # rich, which --help need not wait for

        of = f" ({number + 1} of {self.num_jobs})" if number < self.num_jobs else ""
        text = f"\nJob {number}{of}: {' '.join(redacted(overrides))}"
        terminal().print(text, style="bold", markup=False, soft_wrap=True)

    def end(self, number: int, overrides: Sequence[str], folder: RunFolder, code: int) -> None:
        """Note a job that has ended for the table, and whether it failed."""
        self.trials.append(Trial(number, tuple(trial_of(overrides)), folder))
        if code not in GOOD:
            self.failed.append(folder)

    def test_best(self) -> None:
        """Measure the best job on the test set, where `sweep.test=best`."""
        from lockstep.launch import runner

        sweep_table, config = self._table()
        if sweep_table.best is None or config.sweep.test != "best":
            return
        if not self.is_silent:
            print(f"Testing the best job, {sweep_table.best.trial.number} ...", flush=True)
        code = runner.test(sweep_table.best.trial.folder, is_worker=False)
        if code not in GOOD:
            self.failed.append(sweep_table.best.trial.folder)

    def show(self) -> None:
        """Print the table of all jobs of the sweep."""
        from lockstep.sweeps import views

        views.show(self._table()[0], None)

    def _table(self) -> "tuple[Table, Config]":
        from lockstep.config import storage
        from lockstep.sweeps import command
        from lockstep.sweeps.table import table

        config = storage.load(self.trials[0].folder.config)
        objective = command.monitored(config)
        return table(Ledger(Path(), None, (), self.trials), [objective], {}, monitored=objective), config
