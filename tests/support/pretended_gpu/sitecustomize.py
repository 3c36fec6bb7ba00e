"""Read by every Python process that has this folder in PYTHONPATH: torch gets pretended GPUs as soon as it is imported.

LOCKSTEP_PRETENDED_LIBRARY, _GPUS and _MEMORY_MIB say what `pretended_gpu.install` is told.
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
    """Where Lockstep counts GPUs without torch, it finds their device files."""
    import pretended_gpu

    def num_visible_gpus() -> int:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return len(pretended_gpu.visible_gpus(int(os.environ["LOCKSTEP_PRETENDED_GPUS"]), visible))

    module.num_visible_gpus = num_visible_gpus


def _in_measurement(module: Any) -> None:
    """A product that shows what a GPU can do takes minutes of a CPU."""
    module.MATMUL_SIZE["cuda"] = 64


AFTER_IMPORT: dict[str, Callable[[Any], None]] = {
    "torch": _in_torch,
    "lockstep.environment": _in_environment,
    "lockstep.measurement": _in_measurement,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Has a function look at certain modules when they have been imported."""

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
