"""The folder of a run, which is all that the processes of Lockstep know of each other.

Called, this package lists runs: Python puts it in the place of the function `lockstep.runs`, whoever imports it.
"""

import sys
from types import ModuleType
from typing import Any

import lockstep


class _Runs(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(lockstep)["__getattr__"]("runs")(*args, **kwargs)


sys.modules[__name__].__class__ = _Runs
