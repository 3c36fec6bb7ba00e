"""What a network is trained for: the loss of every sample, the meaning of the outputs, and what is measured.

These names are public: configurations and projects use them, and they stay where modules move.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.tasks.builtin import Classification, Multilabel, Regression
    from lockstep.tasks.scores import Accuracy
    from lockstep.tasks.task import SupervisedTask, Task

__all__, __getattr__ = face(
    __name__,
    {
        "builtin": ("Classification", "Multilabel", "Regression"),
        "scores": ("Accuracy",),
        "task": ("SupervisedTask", "Task"),
    },
)
