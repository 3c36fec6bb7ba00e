"""Lockstep: N workers compute what one worker would.

These names are public: projects use them. They wait with their imports until somebody asks for one of them, so that
every command starts at once.
"""

from typing import TYPE_CHECKING

from lockstep.system.faces import face

if TYPE_CHECKING:
    from lockstep.distributed.batch import Batch
    from lockstep.distributed.global_sum import sum_over_global
    from lockstep.tasks.task import Task

__all__ = ["Batch", "Task", "sum_over_global"]
__version__ = "0.1.0"
__getattr__ = face(
    __name__, {"Batch": "distributed.batch", "Task": "tasks.task", "sum_over_global": "distributed.global_sum"}
)
