"""Gives torch pretended GPUs when it is imported.

This happens in every Python process with this folder in PYTHONPATH. LOCKSTEP_PRETENDED_LIBRARY,
_GPUS and _MEMORY_MIB are the arguments of `pretended_gpu.install`.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def _in_torch(module: ModuleType) -> None:
    import pretended_gpu

    pretended_gpu.install(
        os.environ["LOCKSTEP_PRETENDED_LIBRARY"],
        int(os.environ["LOCKSTEP_PRETENDED_GPUS"]),
        int(os.environ["LOCKSTEP_PRETENDED_MEMORY_MIB"]),
    )


def _in_environment(module: Any) -> None:
    """Show device files to the part of Lockstep that counts GPUs without torch."""

    class _Os:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def listdir(self, path: str) -> list[str]:
            gpus = [
                f"nvidia{number}" for number in range(int(os.environ["LOCKSTEP_PRETENDED_GPUS"]))
            ]
            return os.listdir(path) + (gpus if path == "/dev" else [])

    module.os = _Os()


AFTER_IMPORT: dict[str, Callable[[Any], None]] = {
    "torch": _in_torch,
    "lockstep.system.hardware": _in_environment,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function after the import of certain modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        function = AFTER_IMPORT.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if function else None
        if spec is None or spec.loader is None or function is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            function(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
