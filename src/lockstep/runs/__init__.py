"""The run folder: the interface between all processes of Lockstep.

The package can be called as the public function `lockstep.runs`, whose name it takes when it is
imported.
"""

import sys
from types import ModuleType
from typing import Any

import lockstep


class _Runs(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return vars(lockstep)["__getattr__"]("runs")(*args, **kwargs)


sys.modules[__name__].__class__ = _Runs
