"""Signatures read from text, against those Python gives after an import."""

import importlib
import inspect
from pathlib import Path

import pytest

from lockstep.config import signatures
from lockstep.config.signatures import Missing, Signature

REAL = [
    *(f"torch.optim.{name}" for name in ("SGD", "Adam", "AdamW", "RMSprop", "LBFGS", "Adagrad")),
    *(f"torch.optim.lr_scheduler.{name}" for name in ("StepLR", "OneCycleLR", "CosineAnnealingLR")),
    *(f"torch.nn.{name}" for name in ("Linear", "Conv2d", "BatchNorm2d", "CrossEntropyLoss")),
    "torchvision.models.ResNet",
    *(
        f"lightning.pytorch.callbacks.{name}"
        for name in ("ModelCheckpoint", "EarlyStopping", "Timer", "LearningRateMonitor", "EMAWeightAveraging")
    ),
    *(f"lightning.pytorch.loggers.{name}" for name in ("TensorBoardLogger", "CSVLogger", "WandbLogger")),
    "lockstep.data.digits",
    "lockstep.data.image_folder",
    "lockstep.callbacks.SplitTensorBoardLogger",
    "lockstep.models.ResNet18",
    "lockstep.models.cosine",
    "lockstep.models.classifier.Classifier",
]


@pytest.mark.parametrize("target", REAL)
def test_the_text_tells_what_the_import_tells(target: str) -> None:
    found = signatures.read(target)
    assert found is not None
    module, _, name = target.rpartition(".")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    assert found.names == tuple(p.name for p in named)
    assert found.required == tuple(p.name for p in named if p.default is p.empty)
    assert found.takes_any == any(p.kind == p.VAR_KEYWORD for p in parameters)


PACKAGE = {
    "__init__.py": "from .shapes import Round as Circle\nfrom .stars import *\nimport written.shapes as forms\n",
    "shapes.py": """
import dataclasses
import functools
from typing import Generic, TypeVar, overload
from . import circle

T = TypeVar("T")

class Base:
    def __init__(self, size, *, colour: str = "red"): ...

class Round(Base):
    pass

class Elsewhere(circle.Ring): ...

class Typed(Generic[T], Base): ...

class Failure(ValueError): ...

class Made(Base):
    def __new__(cls, *, shade): ...

@dataclasses.dataclass
class Data(Base):
    size: int
    shade: str = "dark"

def open_ended(a, /, b, *rest, c, d=1, **others): ...

def wrap(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): ...
    return inner

@wrap
def wrapped(size): ...

@overload
def many(a: int): ...
@overload
def many(a: str): ...
def many(a, b): ...

try:
    from nowhere_at_all import Fast
except ImportError:
    class Fast:
        def __init__(self, speed): ...

Alias = Base
""",
    "circle.py": "from .ring import Ring\n",
    "ring.py": "class Ring:\n    def __init__(self, radius): ...\n",
    "stars.py": "from .ring import *\nif False:\n    from .not_there import *\ndef twinkle(times): ...\n",
    "inner/__init__.py": "from ..ring import Ring as Deep\n",
    "loop.py": "from .pool import around\n",
    "pool.py": "from .loop import around\n",
    "lazy.py": """
def __getattr__(name):
    if name != "late":
        raise AttributeError(name)
    return lambda hour: hour
""",
}


@pytest.fixture
def _written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "written" / "inner").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (tmp_path / "written" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    signatures.find.cache_clear()


BASE = Signature(("size", "colour"), ("size",), False)
RING = Signature(("radius",), ("radius",), False)


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("written.Circle", BASE),  # a re-export under another name, and a base class
        ("written.forms.Base", BASE),  # a module under another name
        ("written.shapes.Alias", BASE),
        ("written.shapes.Typed", BASE),
        ("written.shapes.Elsewhere", RING),  # a base class in another module
        ("written.Ring", RING),  # through two stars
        ("written.inner.Deep", RING),  # from two packages up
        ("written.twinkle", Signature(("times",), ("times",), False)),
        ("written.shapes.open_ended", Signature(("b", "c", "d"), ("a", "b", "c"), True)),
        ("written.shapes.many", Signature(("a", "b"), ("a", "b"), False)),
    ],
)
def test_names_are_followed_to_where_they_are_defined(target: str, expected: Signature) -> None:
    assert signatures.read(target) == expected


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize(
    "target",
    [f"written.{name}" for name in ("shapes.Data", "shapes.Made", "shapes.wrapped", "shapes.Failure", "shapes.Fast")]
    + ["written.lazy.late", "written.loop.around", "math.sqrt", "torch.nn.Module.forward"],
)
def test_what_the_text_does_not_tell_is_left_open(target: str) -> None:
    assert signatures.read(target) is None


@pytest.mark.usefixtures("_written")
def test_where_the_text_is_open_the_import_tells() -> None:
    assert signatures.find("written.shapes.Data") == Signature(("size", "shade"), ("size",), False)
    assert signatures.find("written.shapes.wrapped") == Signature(("size",), ("size",), False)
    assert signatures.find("written.shapes.Fast") == Signature(("speed",), ("speed",), False)
    assert signatures.find("written.lazy.late") == Signature(("hour",), ("hour",), False)
    assert signatures.find("math.sqrt") == Signature((), (), False)
    with pytest.raises(Missing, match="around"):
        signatures.find("written.loop.around")


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize(
    ("target", "what", "near"),
    [
        ("nowhere.Net", "no package 'nowhere'", None),
        ("written.shapes.Rond", "'written.shapes' has no 'Rond'", "Round"),
        ("written.shape.Round", "'written' has no 'shape'", "shapes"),
        ("written.shapes", "is a module, not something to call", None),
        ("torch.optim.SDG", "'torch.optim' has no 'SDG'", "SGD"),
        ("lightning.pytorch.callbacks.EarlyStoping", "has no 'EarlyStoping'", "EarlyStopping"),
    ],
)
def test_what_is_not_there_is_missing_with_the_names_that_are(target: str, what: str, near: str | None) -> None:
    with pytest.raises(Missing, match=what) as caught:
        signatures.read(target)
    assert near is None or near in caught.value.known


@pytest.mark.usefixtures("_written")
def test_annotations_are_kept_as_they_are_written() -> None:
    found = signatures.read("written.shapes.Base")
    assert found is not None
    assert found.types == {"colour": "str"}
