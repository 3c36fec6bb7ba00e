"""The names and values of a prediction, by the kind of its task."""

import pytest
import torch

from lockstep.python.prediction import Prediction, Predictions

NAMES = ("ape", "bee", "cat")


def prediction(kind: str, *values: float) -> Prediction:
    return Prediction(torch.tensor(values), NAMES, kind, None)


def test_a_class_is_the_most_probable_one() -> None:
    found = prediction("classes", 0.25, 0.625, 0.125)
    assert (found.class_name, found.probability) == ("bee", 0.625)
    assert found.probabilities == {"ape": 0.25, "bee": 0.625, "cat": 0.125}
    assert repr(found) == "Prediction('bee', probability 0.6250)"


def test_labels_are_those_that_hold() -> None:
    found = prediction("labels", 0.5, 0.75, 0.125)
    assert found.labels == ["ape", "bee"]
    assert found.probabilities == {"ape": 0.5, "bee": 0.75, "cat": 0.125}
    assert repr(found) == "Prediction('ape': 0.5, 'bee': 0.75, 'cat': 0.125)"


def test_numbers_have_names() -> None:
    assert prediction("numbers", 2.5, -1, 0).numbers == {"ape": 2.5, "bee": -1.0, "cat": 0.0}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("labels", "class_name"), ("labels", "probability"), ("classes", "labels"), ("numbers", "probabilities")],
)
def test_a_prediction_has_nothing_of_another_kind(kind: str, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"of {kind} of shape \(3,\) has no {name}: use its values"):
        getattr(prediction(kind, 0, 0, 1), name)


def test_values_for_every_pixel_are_left_to_the_user() -> None:
    found = Prediction(torch.zeros(3, 2, 2), NAMES, "classes", None)
    assert repr(found) == "Prediction(classes of shape (3, 2, 2))"
    with pytest.raises(AttributeError, match="use its values"):
        _ = found.class_name


def test_broken_file() -> None:
    values = torch.tensor([[0.25, 0.5, 0.25], [torch.nan] * 3])
    found = Predictions(values, NAMES, "classes", ("a", "b"), errors={"b": "b cannot be read"})
    assert [one.error for one in found] == [one.error for one in found[:]] == [None, "b cannot be read"]
    assert (found[0].class_name, repr(found[1])) == ("bee", "Prediction(error: b cannot be read)")
    for name in ("class_name", "probability", "probabilities"):
        with pytest.raises(ValueError, match="b cannot be read"):
            getattr(found[1], name)


def test_many_predictions_are_a_sequence() -> None:
    values = torch.eye(3)[[0, 1, 2, 0, 1, 2, 0]]
    found = Predictions(values, NAMES, "classes", tuple("abcdefg"))
    assert len(found) == 7
    assert [one.class_name for one in found] == ["ape", "bee", "cat", "ape", "bee", "cat", "ape"]
    assert (found[-1].class_name, found[1].file) == ("ape", "b")
    some = found[1:3]
    assert isinstance(some, Predictions)
    assert [one.file for one in some] == ["b", "c"]
    assert torch.equal(some.values, values[1:3])
    assert repr(some) == "Predictions([Prediction('bee', probability 1.0000), Prediction('cat', probability 1.0000)])"
    assert repr(found).endswith(", ... 2 more])")
    with pytest.raises(IndexError):
        _ = found[7]


def test_a_class_without_an_answer_is_unknown() -> None:
    found = Predictions(torch.tensor([[0.25, 0.625, 0.125], [0.125, 0.75, 0.125]]), NAMES, "classes", ("a", "b"), 0.625)
    assert [one.class_name for one in found] == ["unknown", "bee"]
    assert (found[0].probability, found[:1][0].class_name) == (0.625, "unknown")
    assert repr(found) == (
        "Predictions([Prediction('unknown', probability 0.6250), Prediction('bee', probability 0.7500)])"
    )
    assert prediction("classes", 0.25, 0.625, 0.125).class_name == "bee"
