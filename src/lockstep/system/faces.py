"""Public names of a package that wait with their imports until somebody asks for one of them."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def face(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that offers names of its modules: `homes` are names and the modules they are in.

    `import lockstep.data` imports neither torch nor a data source; `lockstep.data.digits` imports what it needs.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    return __getattr__
