"""Imports that a training does not need are deferred until they are used: most of torchmetrics, matplotlib, and dynamo.

`import torchmetrics`, which Lightning does, imports every metric, and for some of them scipy.signal, torchvision and
matplotlib (torchmetrics issue 3457); Lightning and every optimizer import torch's compiler, also where nothing is
compiled. That is two thirds of the time from `import torch` to a first step (docs/benchmarks.md).

A module in `KNOWN` that is imported inside of `lazy` gets the names listed there and nothing else. It runs when any
other name of it is used, or, after the block, when a part of it is imported that has not been imported yet; from then
on it is as after a plain import. Where another version of a library has no such names, it is imported as ever.
"""

import contextlib
import functools
import importlib
import logging
import sys
import threading
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from typing_extensions import override

METRICS, PLOT, DYNAMO = "torchmetrics", "torchmetrics.utilities.plot", "torch._dynamo"
FLOPS = "torch.utils.flop_counter"

_lock = threading.RLock()  # of the thread that completes a module
_waiting: set[str] = set()  # modules that have not run
_after: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)  # called when a module has run


@contextlib.contextmanager
def lazy() -> Iterator[None]:
    """Defer the modules of `KNOWN` that are imported inside of the block for the first time."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.is_lazy = True
    try:
        yield
    finally:
        _FINDER.is_lazy = False


class _Finder(MetaPathFinder, Loader):
    """Finds the modules that wait; as a loader it returns a module that is there already."""

    is_lazy = False  # inside of `lazy`

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.rpartition(".")[0]
        if target is not None:  # a reload, also that of `_complete`
            return None
        if package in _waiting and not (self.is_lazy and package.startswith(METRICS)):
            _complete(package)
            if fullname in sys.modules:  # where its spec is hidden meanwhile, or Python would run it a second time
                names = vars(sys.modules[fullname])
                spec, names["__spec__"] = names["__spec__"], None
                return ModuleSpec(fullname, self, loader_state=spec)
        spec = PathFinder.find_spec(fullname, path) if self.is_lazy and fullname in KNOWN else None
        if spec is not None and spec.loader is not None:
            setattr(spec.loader, "exec_module", functools.partial(_wait, spec.loader))  # noqa: B010
        return spec

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        vars(sys.modules[spec.name])["__spec__"] = spec.loader_state
        return sys.modules[spec.name]

    @override
    def exec_module(self, module: ModuleType) -> None:
        if (
            module.__spec__ is not None and module.__spec__.loader is self
        ):  # Python has set it, where the module lets it
            module.__spec__ = module.__spec__.loader_state


_FINDER = _Finder()


def _wait(loader: Loader, module: ModuleType) -> None:
    """Fill a module with its known names instead of running it."""
    name = module.__name__
    try:
        for known, bring in KNOWN[name].items():
            setattr(module, known, bring())
    except (ImportError, AttributeError):  # another version, which has something elsewhere
        type(loader).exec_module(loader, module)
        return
    _waiting.add(name)
    setattr(module, "__getattr__", functools.partial(_attribute, name))  # noqa: B010


def _attribute(module: str, name: str) -> Any:
    if module == FLOPS and _FINDER.is_lazy:  # for Lightning, which only calls it; others get the class itself
        return _function(module, name)()
    if name != "__path__":  # which `from module import name` asks for, and a module that is no package lacks
        _complete(module)
    if name in vars(sys.modules[module]):
        return vars(sys.modules[module])[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _complete(name: str) -> None:
    """Run a module that waits, after the package it is in. Other threads wait until it has run."""
    with _lock:
        package = name.rpartition(".")[0]
        if package in _waiting:
            _complete(package)  # which may complete this one
        if name not in _waiting:
            return
        _waiting.remove(name)
        for known in KNOWN[name]:
            if f"{name}.{known}" not in sys.modules:
                vars(sys.modules[name]).pop(known, None)
        try:
            importlib.reload(sys.modules[name])
        except BaseException:  # for the next one who asks
            _waiting.add(name)
            raise
        for call in _after.pop(name, ()):
            call()


# -- names that stand in for those of a module that waits --------------------------------------------------------------


def _of(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _function(module: str, name: str) -> Callable[[], Any]:
    def call(*args: Any, **settings: Any) -> Any:
        _complete(module)
        return getattr(sys.modules[module], name)(*args, **settings)

    return lambda: call


def _class(module: str, name: str) -> Callable[[], Any]:
    """A class for annotations and isinstance, of which nothing is an instance before the module has run."""
    stand_in: Any = ABCMeta(name, (), {})
    _after[module].append(lambda: stand_in.register(getattr(sys.modules[module], name)))
    return lambda: stand_in


def _disable(function: Any = None, *args: Any, **settings: Any) -> Any:
    """As torch._dynamo.disable, which is called when the compiler is there: until then nothing compiles `function`."""
    if not isinstance(function, FunctionType) or DYNAMO not in _waiting:
        return _function(DYNAMO, "disable")()(function, *args, **settings)
    now: Callable[..., Any] = function

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return now(*args, **kwargs)

    def tell() -> None:
        nonlocal now
        now = sys.modules[DYNAMO].disable(function, *args, **settings)

    _after[DYNAMO].append(tell)
    return disabled


KNOWN: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    METRICS: {
        "_logger": lambda: logging.getLogger(METRICS),
        "Metric": _of("torchmetrics.utilities.checks", "Metric"),  # imported first, as the package does
        "MetricCollection": _of("torchmetrics.collections", "MetricCollection"),
        "__version__": _of("torchmetrics.__about__", "__version__"),
    },
    "torchmetrics.functional": {},
    FLOPS: {},  # imports triton
    PLOT: {  # imports matplotlib
        "_AX_TYPE": _class(PLOT, "_AX_TYPE"),
        "_CMAP_TYPE": lambda: object,
        "_PLOT_OUT_TYPE": lambda: object,
        "plot_confusion_matrix": _function(PLOT, "plot_confusion_matrix"),
        "plot_curve": _function(PLOT, "plot_curve"),
        "plot_single_or_multi_val": _function(PLOT, "plot_single_or_multi_val"),
    },
    DYNAMO: {
        "OptimizedModule": _class(DYNAMO, "OptimizedModule"),
        "disable": lambda: _disable,
        "graph_break": lambda: lambda *_: None,
        "trace_rules": lambda: SimpleNamespace(clear_lru_cache=lambda: None),
        "utils": lambda: importlib.import_module("torch._dynamo.utils"),
    },
    "torch._dynamo.utils": {
        "get_optimize_ddp_mode": lambda: lambda: "ddp_optimizer",  # the default; setting another runs the compiler
        "is_compile_supported": _function("torch._dynamo.utils", "is_compile_supported"),  # for torchvision
    },
}
