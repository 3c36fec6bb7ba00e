"""Public names of a package, whose modules are imported when one of their names is asked for."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def face(package: str, names: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package, from the names of each of its modules.

    `import lockstep.data` imports neither torch nor a data source; `lockstep.data.digits` imports what it needs.
    """
    homes = {name: module for module, offered in names.items() for name in offered}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])

    return sorted(homes), __getattr__
