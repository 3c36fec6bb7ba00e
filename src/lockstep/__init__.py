"""Lockstep: N workers compute what one worker would.

These names are public: projects use them. They wait with their imports until somebody asks for one of them, so that
every command starts at once.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.config.faults import ConfigError
    from lockstep.distributed.batch import Batch
    from lockstep.distributed.global_sum import sum_over_global
    from lockstep.python.prediction import Prediction, Predictions
    from lockstep.python.predictor import Predictor, load
    from lockstep.python.run import Run, runs
    from lockstep.python.training import TrainingFailed, train
    from lockstep.tasks.task import Task

__all__ = [
    "Batch",
    "ConfigError",
    "Prediction",
    "Predictions",
    "Predictor",
    "Run",
    "Task",
    "TrainingFailed",
    "load",
    "runs",
    "sum_over_global",
    "train",
]
__version__ = "0.1.0"
HOMES = {
    "Batch": "distributed.batch",
    "ConfigError": "config.faults",
    "Prediction": "python.prediction",
    "Predictions": "python.prediction",
    "Predictor": "python.predictor",
    "Run": "python.run",
    "Task": "tasks.task",
    "TrainingFailed": "python.training",
    "load": "python.predictor",
    "runs": "python.run",
    "sum_over_global": "distributed.global_sum",
    "train": "python.training",
}
__getattr__ = face(__name__, HOMES)
