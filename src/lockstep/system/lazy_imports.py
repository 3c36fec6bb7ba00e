"""Imports that a training has no use for wait until somebody has: parts of torchmetrics and torch, and matplotlib.

`import torchmetrics`, which Lightning does, imports every metric, and for some of them scipy.signal, torchvision and
matplotlib (torchmetrics issue 3457); torch imports its exporter, Lightning and every optimizer its compiler, also where
nothing is exported or compiled. That is more than half of the time that a training takes to its first step
(docs/benchmarks.md).

Packages imported inside of `lazy` that stand in `PACKAGES` do not run their `__init__` before a name of theirs is asked
for that is not known here, or, after the block, a part of theirs that nobody has imported yet. From then on all is as
after a plain import. After the block nothing looks at imports any more. Where another version of a library has other
names, its packages are imported at once, as without this module.
"""

import builtins
import contextlib
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from typing_extensions import override

DRAWING = "torchmetrics.utilities.plot"  # the file of torchmetrics that imports matplotlib

_lock = threading.RLock()  # of whoever completes a package
_num_blocks = 0  # of `lazy`, in all threads
_tried: set[str] = set()  # packages whose known names are looked up for the first time
_completed: set[str] = set()  # packages whose `__init__` runs, or has run
_moved: set[str] = set()  # libraries that have them elsewhere


@contextlib.contextmanager
def lazy() -> Iterator[None]:
    """Let the packages of this module wait that are imported inside of the block for the first time."""
    global _num_blocks
    finder = _Finder()
    with _lock:
        sys.meta_path.insert(0, finder)
        _num_blocks += 1
    try:
        yield
    finally:
        with _lock:
            sys.meta_path.remove(finder)
            _num_blocks -= 1


class _Finder(MetaPathFinder):
    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_known = fullname in PACKAGES or (fullname == DRAWING and "matplotlib" not in sys.modules)
        if not is_known or fullname.partition(".")[0] in _moved:
            return None
        spec = PathFinder.find_spec(fullname, path.plain if isinstance(path, _Path) else path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Drawing(spec.loader) if fullname == DRAWING else _Waiting(spec.loader)
        return spec


class _Before(Loader):
    """Stands before Python's own loader of a module, which answers whatever is not asked here."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)


# -- packages that wait ------------------------------------------------------------------------------------------------


class _Waiting(_Before):
    @override
    def exec_module(self, module: ModuleType) -> None:
        name, is_package = module.__name__, hasattr(module, "__path__")
        if is_package:
            module.__path__ = _Path(module)
        module.__class__ = _Package
        _tried.add(name)
        try:
            for bring in PACKAGES[name].known.values():
                bring()
        except (ImportError, AttributeError):  # another version, which has something elsewhere
            _moved.add(name.partition(".")[0])
            for part in [part for part in sys.modules if part.startswith(f"{name}.")]:
                del sys.modules[part]
            _as_usual(module)
            module.__loader__ = self.loader
            self.loader.exec_module(module)
        finally:
            _tried.discard(name)


class _Path(list[str]):
    """The folders of a package's parts. Whoever looks for one completes the package, which may be what brings it."""

    def __init__(self, package: ModuleType) -> None:
        super().__init__(package.__path__)
        self.plain = list(package.__path__)
        self._package = package

    @override
    def __iter__(self) -> Iterator[str]:
        is_alone = _num_blocks > 0 and PACKAGES[self._package.__name__].has_parts
        if not is_alone and self._package.__name__ not in _completed:
            _complete(self._package)
        return super().__iter__()


class _Package(ModuleType):
    """A package whose `__init__` has not run, or a part of one that has not."""

    def __getattr__(self, name: str) -> Any:
        known = self._known(name)
        if known is not None:
            return known
        if self.__name__ in _tried or name == "__path__":  # which a module that is no package does not have
            raise AttributeError(name)
        with _lock:  # not while another thread completes it
            if self.__name__ in _completed:
                return ModuleType.__getattribute__(self, name)
            _complete(self)
        return getattr(self, name)

    def _known(self, name: str) -> Any:
        bring = PACKAGES[self.__name__].known.get(name)
        is_there = _completed.isdisjoint((self.__name__, _whole(self.__name__)))
        return bring() if bring is not None and is_there else None

    @override
    def __dir__(self) -> list[str]:
        _complete(self)
        return list(ModuleType.__dir__(self))


def _whole(name: str) -> str:
    """The name of the package that a module is a part of."""
    return name.rpartition(".")[0]


def _complete(package: ModuleType) -> None:
    """Run the `__init__` of a package, once. Other threads wait; to this one it is as any module while it runs."""
    with _lock:
        if _whole(package.__name__) in PACKAGES and not PACKAGES[_whole(package.__name__)].has_parts:
            _complete(sys.modules[_whole(package.__name__)])  # it comes first, and may bring this one
        spec = package.__spec__
        if type(package) is not _Package or package.__name__ in _completed or spec is None:
            return
        assert isinstance(spec.loader, _Waiting)
        waiting = spec.loader
        spec.loader = package.__loader__ = waiting.loader
        _completed.add(package.__name__)
        PACKAGES[package.__name__].before()
        try:
            waiting.loader.exec_module(package)
        except BaseException:  # who asks next hears of it, too
            spec.loader = package.__loader__ = waiting
            _completed.discard(package.__name__)
            raise
        _as_usual(package)
        PACKAGES[package.__name__].after()


def _as_usual(module: Any) -> None:
    module.__class__ = ModuleType
    if hasattr(module, "__path__"):
        module.__path__ = module.__path__.plain


# -- torch's compiler, while nothing is compiled -----------------------------------------------------------------------

_undone: list[Callable[[], None]] = []  # what the compiler is to be told as soon as it is there


def _disable(function: Any = None, recursive: bool = True, **settings: Any) -> Any:
    """As torch._dynamo.disable, whose answer waits for the compiler: until then nothing could compile `function`."""
    if not isinstance(function, FunctionType):
        package = importlib.import_module("torch._dynamo")
        _complete(package)
        return package.disable(function, recursive, **settings)
    now: Callable[..., Any] = function

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return now(*args, **kwargs)

    def tell() -> None:
        nonlocal now
        now = importlib.import_module("torch._dynamo").disable(function, recursive, **settings)

    _undone.append(tell)
    return disabled


def _is_compile_supported(device_type: str) -> bool:
    """As torch._dynamo.utils.is_compile_supported, which brings the compiler."""
    utils = importlib.import_module("torch._dynamo.utils")
    _complete(utils)
    return utils.is_compile_supported(device_type)


def _tell_compiler() -> None:
    while _undone:
        _undone.pop()()


class _Later(type):
    """A class that nothing is an instance of before its module runs; for annotations and isinstance, and calls."""

    def __new__(cls, module: str, name: str) -> "_Later":
        return super().__new__(cls, name, (), {"__module__": module})

    def __init__(cls, module: str, name: str) -> None:
        super().__init__(name, (), {})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        module = importlib.import_module(cls.__module__)
        _complete(module)
        return getattr(module, cls.__name__)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        real = cls._real()
        return real is not None and isinstance(instance, real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        real = cls._real()
        return real is not None and issubclass(subclass, real)

    def _real(cls) -> Any:
        module = sys.modules.get(cls.__module__)
        return None if type(module) is _Package else getattr(module, cls.__name__, None)


_OPTIMIZED_MODULE = _Later("torch._dynamo.eval_frame", "OptimizedModule")
_FLOP_COUNTER = _Later("torch.utils.flop_counter", "FlopCounterMode")


# -- matplotlib, until something is drawn ------------------------------------------------------------------------------


class _Drawing(_Before):
    """Runs a file that names matplotlib in annotations and decorates functions with one of its styles."""

    @override
    def exec_module(self, module: ModuleType) -> None:
        stands_in = _stand_in()

        def bring(name: str, *args: Any, **kwargs: Any) -> Any:
            return stands_in if name.partition(".")[0] == "matplotlib" else builtins.__import__(name, *args, **kwargs)

        # seen by this module alone, whatever other threads import meanwhile
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": bring}
        self.loader.exec_module(module)


class _Matplotlib(ModuleType):
    """Brings matplotlib when a name of it is asked for that is not known yet."""

    def __getattr__(self, name: str) -> Any:
        importlib.import_module("matplotlib.pyplot")
        return getattr(sys.modules[self.__name__], name)


def _stand_in() -> ModuleType:
    matplotlib, pyplot = _Matplotlib("matplotlib"), _Matplotlib("matplotlib.pyplot")
    matplotlib.__dict__.update(
        pyplot=pyplot,
        axes=SimpleNamespace(Axes=_Later("matplotlib.axes", "Axes")),
        colors=SimpleNamespace(Colormap=_Later("matplotlib.colors", "Colormap")),
    )
    pyplot.__dict__.update(Figure=_Later("matplotlib.figure", "Figure"), style=SimpleNamespace(context=_style))
    return matplotlib


@contextlib.contextmanager
def _style(*args: Any, **kwargs: Any) -> Iterator[None]:
    with importlib.import_module("matplotlib.pyplot").style.context(*args, **kwargs):
        yield


# -- which packages ----------------------------------------------------------------------------------------------------


class Waits(NamedTuple):
    """How a package waits: names that are `known` before, and whether inside of `lazy` its parts are imported alone."""

    known: Mapping[str, Callable[[], Any]]
    has_parts: bool = True
    before: Callable[[], None] = lambda: None  # called before its `__init__` runs at last
    after: Callable[[], None] = lambda: None


def _of(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _torchmetrics_logger() -> logging.Logger:
    """Make the logger of torchmetrics as its package does."""
    logger = logging.getLogger("torchmetrics")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)
    return logger


PACKAGES = {
    "torchmetrics": Waits(
        {
            "Metric": _of("torchmetrics.utilities.checks", "Metric"),  # imported first, as its package does
            "MetricCollection": _of("torchmetrics.collections", "MetricCollection"),
            "__version__": _of("torchmetrics.__about__", "__version__"),
            "_logger": _torchmetrics_logger,
        },
        before=_torchmetrics_logger().handlers.clear,
    ),
    "torchmetrics.classification": Waits({}),
    "torchmetrics.functional": Waits({}),
    "torchmetrics.functional.classification": Waits({}),
    "torchmetrics.wrappers": Waits({}),
    "torch._dynamo": Waits(
        {
            "OptimizedModule": lambda: _OPTIMIZED_MODULE,
            "disable": lambda: _disable,
            "graph_break": lambda: lambda *_: None,
            "trace_rules": lambda: SimpleNamespace(clear_lru_cache=lambda: None),
            "utils": lambda: importlib.import_module("torch._dynamo.utils"),
        },
        has_parts=False,
        after=_tell_compiler,
    ),
    "torch._dynamo.utils": Waits(
        {
            # the mode where nobody has set another, for which the compiler would be there
            "get_optimize_ddp_mode": lambda: lambda: "ddp_optimizer",
            "is_compile_supported": lambda: _is_compile_supported,  # torchvision imports it by its name
        }
    ),
    "torch.export": Waits({}, has_parts=False),
    # Lightning imports the class for its summary of a network; for whoever asks later the module is as ever
    "torch.utils.flop_counter": Waits({"FlopCounterMode": lambda: _FLOP_COUNTER if _num_blocks else None}),
}
