"""Signatures of targets: missing targets, their parameters, and the values that these accept."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from annotated_types import Ge
from torch import Tensor, nn

from lockstep.config.checks import signatures
from lockstep.config.checks.signatures import Missing, fits

FITTING: list[tuple[Any, Any]] = [
    (float, 3),
    (int | None, None),
    (Optional[int], 2),  # noqa: UP045
    (float | Tensor, 0.1),
    (tuple[float | Tensor, float | Tensor], [0.9, 0.99]),
    (list, [1, "abc"]),
    (Sequence[str], ["abc"]),
    (Literal["a", "b"], "b"),
    (Annotated[float, Ge(0)], 3),
    (str | Path, "abc"),
    (Any, "abc"),
    ("NotDefined", "abc"),
    (int, {"_target_": "my_package.number"}),
    (list[int], [{"_target_": "my_package.number"}]),
]
UNFIT: list[tuple[Any, Any]] = [
    (int, "abc"), (int, True), (int, None), (str, 3), (bool, 1), (float | Tensor, "abc"),
    (Sequence[int], "abc"), (tuple[float, float], [0.9]), (dict[str, int], {"a": "abc"}),
    (Annotated[float, Ge(0)], -1), (nn.Module, "abc"),
    (Callable[..., int], "abc"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [*((*pair, True) for pair in FITTING), *((*pair, False) for pair in UNFIT)],
)
def test_fits(annotation: Any, value: Any, expected: bool) -> None:
    assert fits(annotation, value) == expected


@pytest.fixture
def _written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "written").mkdir()
    for name, text in {
        "__init__": "from .shapes import Round as Circle\n",
        "shapes": (
            "class Round:\n"
            "  def __init__(self, *, color: str = None, odd: 3 = None, **more): ...\n"
            "NUMBER = 1\n"
        ),
        "needy": "import not_installed_anywhere\n",
        "broken": "1 / 0\n",
    }.items():
        (tmp_path / "written" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize("target", ["written.Circle", "written.shapes.Round"])
def test_find_signature(target: str) -> None:
    found = signatures.find(target)
    assert found is not None
    assert (found.names, found.required, found.takes_any) == (("color", "odd"), (), True)
    assert fits(found.types["color"], None), "its default"
    assert not fits(found.types["color"], 3)
    assert fits(found.types["odd"], 3), "an annotation that is no type"


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize(
    ("target", "what", "near"),
    [
        ("nowhere.Net", "package 'nowhere' was not found", None),
        ("written.shapes.Rond", "'written.shapes' has no 'Rond'", "Round"),
        ("written.shape.Round", "'written' has no 'shape'", "shapes"),
        ("written.shapes", "is a module, not something to call", None),
        ("written.shapes.NUMBER", "is a int, not something to call", None),
        ("torch.optim.SDG", "'torch.optim' has no 'SDG'", "SGD"),
        ("lockstep.models.ResNet19", "'lockstep.models' has no 'ResNet19'", "ResNet18"),
    ],
)
def test_find_missing(target: str, what: str, near: str | None) -> None:
    signatures.find("written.Circle")
    with pytest.raises(Missing, match=what) as caught:
        signatures.find(target)
    assert near is None or near in caught.value.existing_names


@pytest.mark.usefixtures("_written")
@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("__main__.Net", "write net.Net"),  # of a notebook
        ("written.needy.Net", "/written/needy.py:1 (<module>)"),
        ("written.broken.Net", "/written/broken.py:1 (<module>)"),
    ],
)
def test_import_fails(target: str, part: str) -> None:
    (error,) = signatures.errors([{"callbacks": {"x": {"_target_": target}}}])
    assert str(error).startswith(f"callbacks.x._target_={target}")
    assert part in str(error)
