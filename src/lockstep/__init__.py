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

__version__ = "0.1.0"
__all__, __getattr__ = face(
    __name__,
    {
        "config.faults": ("ConfigError",),
        "distributed.batch": ("Batch",),
        "distributed.global_sum": ("sum_over_global",),
        "python.prediction": ("Prediction", "Predictions"),
        "python.predictor": ("Predictor", "load"),
        "python.run": ("Run", "runs"),
        "python.training": ("TrainingFailed", "train"),
        "tasks.task": ("Task",),
    },
)
