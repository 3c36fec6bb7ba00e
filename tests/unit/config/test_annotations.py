"""Values of the configuration against annotations as they are written, and those of real classes."""

from typing import Any

import pytest

from lockstep.config import signatures
from lockstep.config.annotations import fits

FITTING: list[tuple[str, Any]] = [
    ("int", 3),
    ("float", 3),
    ("float", 0.5),
    ("str", "abc"),
    ("bool", True),
    ("int | None", None),
    ("Optional[int]", None),
    ("typing.Optional[int]", 2),
    ("Union[int, str]", "abc"),
    ("Union[int, str]", 2),
    ("float | Tensor", 0.1),
    ("float | Tensor", "a name that only the call knows"),
    ("list[int]", [1, 2]),
    ("list[int]", []),
    ("list", [1, "abc"]),
    ("Sequence[str]", ["abc"]),
    ("Sequence[str]", "abc"),
    ("tuple[float, float]", [0.9, 0.99]),
    ("tuple[int, ...]", [1, 2, 3]),
    ("tuple[()]", []),
    ("list[()]", [1]),
    ("dict[str, int]", {"a": 1}),
    ("Mapping[str, Any]", {"a": [1]}),
    ("Literal['a', 'b']", "b"),
    ("Literal[-1, True]", -1),
    ("Annotated[int, 'a count']", 3),
    ("'int'", 3),
    ("Any", "abc"),
    ("Callable[..., int]", "abc"),
    ("np.int64", "abc"),
    ("timedelta", "abc"),
    ("not Python", "abc"),
]
UNFIT: list[tuple[str, Any]] = [
    ("int", "abc"),
    ("int", 2.5),
    ("int", True),
    ("int", None),
    ("int", [1]),
    ("float", "abc"),
    ("float", False),
    ("str", 3),
    ("bool", 1),
    ("bool", "yes"),
    ("int | None", "abc"),
    ("Optional[int]", "abc"),
    ("Union[int, float]", "abc"),
    ("list[int]", ["abc"]),
    ("list[int]", 3),
    ("Sequence[int]", "abc"),
    ("tuple[float, float]", [0.9]),
    ("tuple[float, float]", [0.9, "abc"]),
    ("tuple[int, ...]", ["abc"]),
    ("tuple[()]", [1]),
    ("Tuple[()]", "abc"),
    ("dict[str, int]", {"a": "abc"}),
    ("dict", [1]),
    ("Literal['a', 'b']", "c"),
    ("Literal[1]", True),
    ("Annotated[int, 'a count']", "abc"),
    ("'int'", "abc"),
]


@pytest.mark.parametrize(("annotation", "value"), FITTING)
def test_a_value_that_may_be_meant_fits(annotation: str, value: Any) -> None:
    assert fits(annotation, value)


@pytest.mark.parametrize(("annotation", "value"), UNFIT)
def test_a_value_of_another_kind_does_not_fit(annotation: str, value: Any) -> None:
    assert not fits(annotation, value)


def test_what_is_built_from_a_section_of_its_own_fits_anywhere() -> None:
    assert fits("int", {"_target_": "my_package.number"})
    assert fits("list[int]", [{"_target_": "my_package.number"}])


def written(size: int, scale: float = None) -> None:  # noqa: RUF013  # pyright: ignore[reportArgumentType]
    """A callable with a default that its annotation leaves out."""


@pytest.mark.parametrize("find", [signatures.read, signatures._imported])
def test_a_default_of_none_may_be_typed_whatever_the_annotation_says(find: Any) -> None:
    types = find("tests.unit.config.test_annotations.written").types
    assert fits(types["scale"], None)
    assert fits(types["scale"], 0.5)
    assert not fits(types["scale"], "abc")
    assert not fits(types["size"], None)
