"""The names and values of a prediction, by the kind of its task."""

import pytest
import torch

from lockstep.python.prediction import Prediction, Predictions

NAMES = ("ape", "bee", "cat")


def prediction(kind: str, *values: float) -> Prediction:
    return Prediction(torch.tensor(values), NAMES, kind, None)


@pytest.mark.parametrize(
    ("kind", "values", "name", "expected"),
    [
        ("classes", (0.25, 0.625, 0.125), "class_name", "bee"),
        ("classes", (0.25, 0.625, 0.125), "probability", 0.625),
        (
            "classes",
            (0.25, 0.625, 0.125),
            "probabilities",
            {"ape": 0.25, "bee": 0.625, "cat": 0.125},
        ),
        ("labels", (0.5, 0.75, 0.125), "labels", ["ape", "bee"]),
        ("labels", (0.5, 0.75, 0.125), "probabilities", {"ape": 0.5, "bee": 0.75, "cat": 0.125}),
        ("numbers", (2.5, -1, 0), "numbers", {"ape": 2.5, "bee": -1.0, "cat": 0.0}),
    ],
)
def test_prediction(kind: str, values: tuple[float, ...], name: str, expected: object) -> None:
    assert getattr(prediction(kind, *values), name) == expected


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("labels", "class_name"),
        ("labels", "probability"),
        ("classes", "labels"),
        ("numbers", "probabilities"),
    ],
)
def test_prediction_wrong_attribute(kind: str, name: str) -> None:
    of_pixels = Prediction(torch.zeros(3, 2, 2), NAMES, "classes", None)
    for found in (prediction(kind, 0, 0, 1), of_pixels):
        with pytest.raises(AttributeError, match=rf"has no {name}: use its values"):
            getattr(found, name)


def test_broken_file() -> None:
    values = torch.tensor([[0.25, 0.5, 0.25], [torch.nan] * 3])
    found = Predictions(values, NAMES, "classes", ("a", "b"), errors={"b": "b cannot be read"})
    assert (
        [one.error for one in found]
        == [one.error for one in found[:]]
        == [None, "b cannot be read"]
    )
    assert found[0].class_name == "bee"
    for name in ("class_name", "probability", "probabilities"):
        with pytest.raises(ValueError, match="b cannot be read"):
            getattr(found[1], name)


def test_class_below_threshold() -> None:
    found = Predictions(
        torch.tensor([[0.25, 0.625, 0.125], [0.125, 0.75, 0.125]]),
        NAMES,
        "classes",
        ("a", "b"),
        0.625,
    )
    assert [one.class_name for one in found] == ["unknown", "bee"]
    assert (found[0].probability, found[:1][0].class_name) == (0.625, "unknown")


def test_predictions_sliced() -> None:
    values = torch.eye(3)
    found = Predictions(values, NAMES, "classes", tuple("abc"))
    assert [one.class_name for one in found] == ["ape", "bee", "cat"]
    some = found[1:]
    assert [one.file for one in some] == ["b", "c"]
    assert torch.equal(some.values, values[1:])
