"""Public names of a package that wait with their imports until somebody asks for one of them."""

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
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


def call(package: str, function: str) -> None:
    """Have the module `package` do, when it is called, what `function` of another module does.

    For a public function that has the name of a package beside it: Python puts a package that is imported into the
    place of the function, whoever imports it.
    """
    home, _, name = function.rpartition(".")

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(home), name)(*args, **kwargs)

    sys.modules[package].__class__ = CallablePackage
