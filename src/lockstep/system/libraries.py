"""Adapts libraries for a training, by deferred imports and by silenced banners and warnings.

Most of torchmetrics, matplotlib and torch._dynamo are deferred until their first use.

Lightning's `import torchmetrics` imports every metric, and for some of them scipy.signal,
torchvision and matplotlib (torchmetrics issue 3457). Lightning and every optimizer import the
compiler of torch, even if nothing is compiled. These imports take two thirds of the time from
`import torch` to a first step.

A module in `KNOWN` that is imported inside `lazy` gets only the names listed there. It is executed
when any other name is used. After the block, it is also executed when a submodule is imported that
was not imported before. Then it equals a plain import. A version of a library without these names
is imported normally.
"""

import contextlib
import functools
import importlib
import logging
import sys
import threading
import warnings
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from typing_extensions import override

METRICS, PLOT, DYNAMO = "torchmetrics", "torchmetrics.utilities.plot", "torch._dynamo"

_lock = threading.RLock()  # Held while a module is executed
_deferred: set[str] = set()  # Modules that have not been executed
# These functions are called after a module was executed.
_after: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)


@contextlib.contextmanager
def lazy() -> Iterator[None]:
    """Defer the modules of `KNOWN` that are first imported inside the block."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.is_lazy = True
    try:
        yield
    finally:
        _FINDER.is_lazy = False


class _Finder(MetaPathFinder, Loader):
    """Finds deferred modules, and as a loader returns a module that already exists."""

    is_lazy = False  # True inside `lazy`

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.rpartition(".")[0]
        if target is not None:  # This is a reload, perhaps that of `_complete`.
            return None
        if package in _deferred and not (self.is_lazy and package.startswith(METRICS)):
            _complete(package)
            # Its `__spec__` is hidden until `create_module`, or Python would execute the module
            # again.
            if fullname in sys.modules:
                namespace = vars(sys.modules[fullname])
                spec, namespace["__spec__"] = namespace["__spec__"], None
                return ModuleSpec(fullname, self, loader_state=spec)
        spec = PathFinder.find_spec(fullname, path) if self.is_lazy and fullname in KNOWN else None
        if spec is not None and spec.loader is not None:
            setattr(  # noqa: B010
                spec.loader,
                "exec_module",
                functools.partial(_defer, spec.loader),
            )
        return spec

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        vars(sys.modules[spec.name])["__spec__"] = spec.loader_state
        return sys.modules[spec.name]

    @override
    def exec_module(self, module: ModuleType) -> None:
        # Python has set the loader.
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state


_FINDER = _Finder()


def _defer(loader: Loader, module: ModuleType) -> None:
    """Fill a module with its known names instead of executing it."""
    module_name = module.__name__
    try:
        for attribute, make in KNOWN[module_name].items():
            setattr(module, attribute, make())
    except (ImportError, AttributeError):
        # This is another version of the library.
        type(loader).exec_module(loader, module)
        return
    _deferred.add(module_name)
    setattr(module, "__getattr__", functools.partial(_attribute, module_name))  # noqa: B010


def _attribute(module: str, name: str) -> Any:
    # `from module import name` reads `__path__`, even if the module is not a package.
    if name != "__path__":
        _complete(module)
    if name in vars(sys.modules[module]):
        return vars(sys.modules[module])[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def _complete(module_name: str) -> None:
    """Execute a deferred module, after its package.

    Other threads wait until it is executed.
    """
    with _lock:
        package = module_name.rpartition(".")[0]
        if package in _deferred:
            _complete(package)  # This may also complete the module itself.
        if module_name not in _deferred:
            return
        _deferred.remove(module_name)
        for attribute in KNOWN[module_name]:
            if f"{module_name}.{attribute}" not in sys.modules:
                vars(sys.modules[module_name]).pop(attribute, None)
        try:
            importlib.reload(sys.modules[module_name])
        except BaseException:
            # The next use tries again.
            _deferred.add(module_name)
            raise
        for call in _after.pop(module_name, ()):
            call()


# -- stand-ins for the names of a deferred module --------------------------------------------------


def _proxy(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _function(module: str, name: str) -> Callable[[], Any]:
    def call(*args: Any, **settings: Any) -> Any:
        _complete(module)
        return getattr(sys.modules[module], name)(*args, **settings)

    return lambda: call


def _class(module: str, name: str) -> Callable[[], Any]:
    """Make a class for annotations and isinstance.

    The class has no instance before the module is executed.
    """
    stand_in: Any = ABCMeta(name, (), {})
    _after[module].append(lambda: stand_in.register(getattr(sys.modules[module], name)))
    return lambda: stand_in


def _disable(function: Any = None, *args: Any, **settings: Any) -> Any:
    """Defer torch._dynamo.disable until the compiler is imported.

    Before that, nothing compiles `function`.
    """
    if not isinstance(function, FunctionType) or DYNAMO not in _deferred:
        return _function(DYNAMO, "disable")()(function, *args, **settings)
    current: Callable[..., Any] = function

    @functools.wraps(function)
    def call_disabled(*args: Any, **kwargs: Any) -> Any:
        return current(*args, **kwargs)

    def replace() -> None:
        nonlocal current
        current = sys.modules[DYNAMO].disable(function, *args, **settings)

    _after[DYNAMO].append(replace)
    return call_disabled


KNOWN: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    METRICS: {
        "_logger": lambda: logging.getLogger(METRICS),
        # Metric comes first, as in the package.
        "Metric": _proxy("torchmetrics.utilities.checks", "Metric"),
        "MetricCollection": _proxy("torchmetrics.collections", "MetricCollection"),
        "__version__": _proxy("torchmetrics.__about__", "__version__"),
    },
    "torchmetrics.functional": {},
    PLOT: {  # This module imports matplotlib.
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
        # This is the default, and setting another value executes the module.
        "get_optimize_ddp_mode": lambda: lambda: "ddp_optimizer",
        # This function is for torchvision.
        "is_compile_supported": _function("torch._dynamo.utils", "is_compile_supported"),
    },
}


def silence_libraries() -> None:
    for library in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(library).setLevel(logging.WARNING)
    for message in (
        # Our values are already global, and the mean over ranks would be wrong.
        r".*sync_dist=True.*",
        # An empty shard counts nothing.
        r".*The ``compute`` method of metric .* was called before the ``update``.*",
        # A batch is one gather, so workers would only copy it.
        r".*does not have many workers.*",
        # A custom module may have no validation step.
        r".*passed in a `val_dataloader` but have no `validation_step`.*",
        r".*smaller than the logging interval.*",  # The means of the epoch are logged anyway.
        r".*WeightAveraging callback, but loading.*",  # Evaluation needs the averaged weights.
        # An evaluation needs none of these callbacks.
        r".*callbacks used to create the checkpoint need to be provided.*",
        # The key is missing before the first validation, and its name was checked.
        r".*could not find the monitored key.*",
        # A resume continues in its folder.
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*The `srun` command is available.*",  # Lockstep detects the launcher itself.
        # Its successor is not in torch 2.11 to 2.14 (2026-11-21).
        r".*`broadcast_buffers` is deprecated.*",
        r".*Please use the new API settings to control TF32.*",  # See set_tf32.
        # Batch norms of frozen layers are in eval mode.
        r".*in eval mode at the start of training.*",
        # The first updates in float16 may be skipped.
        r".*Detected call of `lr_scheduler.step\(\)` before.*",
        r".*LeafSpec.* is deprecated.*",  # Lightning 2.6.6 with torch 2.15 causes it (2026-11-21).
    ):
        warnings.filterwarnings("ignore", message=message)
    threading.excepthook = _show_thread_failure


def _show_thread_failure(hook_arguments: threading.ExceptHookArgs) -> None:
    """Skip the error of TensorBoard's writing thread.

    Its writer raises the same error in the training.
    """
    if type(hook_arguments.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(hook_arguments)
