"""The results of the trials of a sweep, and the numbers by which they are compared."""

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.config import build
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.runs.discovery import (
    best_row,
    is_number,
    read_rows,
    read_run_folder,
    read_summary,
    read_tests,
)
from lockstep.runs.files import JsonObject
from lockstep.runs.folder import RunFolder
from lockstep.runs.ranking import LOSS
from lockstep.system.trees import at
from lockstep.trials.ledger import Trial, state_of


@dataclass(frozen=True)
class Row:
    """The results of one trial."""

    trial: Trial
    settings: dict[str, str]
    state: str
    value: float | None  # the objective, for a live trial the best value so far
    # The validation loss in the best epoch orders trials with equal values.
    loss: float | None
    tests: dict[str, float]
    training_s: float | None
    facts: JsonObject  # the status
    num_groups: int  # number of groups in the images it was tested on, which is 0 without groups

    @property
    def result(self) -> float | None:
        """The value of a finished trial. Others have no result."""
        return self.value if self.state == "finished" else None


@dataclass(frozen=True)
class Objective:
    """What a search optimizes and a sweep is sorted by: the metric by which best.ckpt is chosen."""

    name: str
    is_max: bool
    is_last: bool = False  # best.ckpt is the last epoch

    def value_in(self, folder: RunFolder) -> float | None:
        value = read_summary(folder).get("best")
        return best_epoch(folder, self).get(self.name) if value is None else value


def best_epoch(folder: RunFolder, objective: Objective) -> dict[str, float]:
    """Return the row of metrics.csv for the epoch of best.ckpt, which is the last of equal ones.

    The row is empty without such an epoch.
    """
    if objective.is_last:
        return next(reversed(read_rows(folder)), {})
    return best_row(read_rows(folder), objective.name, is_max=objective.is_max)


def monitored_objective(config: Config) -> Objective:
    """Return the metric by which best.ckpt is chosen, and its direction."""
    monitor, mode = build.monitored_metric(config)
    return Objective(monitor, mode == "max", config.data.validate_on_test)


def row_of(
    trial: Trial, objective: Objective, live_state: str | None, keys: Collection[str]
) -> Row:
    """Read the row of a trial.

    `live_state` is the state of a running trial, and `keys` has keys of its configuration.
    """
    facts, settings = read_run_folder(trial.folder), trial.settings
    if not settings.keys() >= {*keys} and trial.folder.config.exists():
        tree = config_file.load_tree(trial.folder.config)
        settings = {key: str(at(tree, key.split("."))) for key in keys} | settings
    summary = read_summary(trial.folder)
    num_groups = at(summary, ["groups", "test"])
    return Row(
        trial,
        settings,
        live_state or state_of(facts),
        objective.value_in(trial.folder),
        best_epoch(trial.folder, objective).get(LOSS),
        read_tests(trial.folder),
        summary.get("training_s", facts.get("elapsed_s")),
        facts,
        num_groups if is_number(num_groups) else 0,
    )
