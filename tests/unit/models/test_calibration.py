"""The calibration is scikit-learn's, on any number of ranks.

Where there is no optimum, there is no calibration, and a message has the reason.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.models import calibration


def drawn_classes(
    count: int = 600, num_classes: int = 5, factor: float = 3.0
) -> tuple[Tensor, Tensor]:
    """Logits that are too large by a factor, and classes drawn by the right ones."""
    source = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, num_classes, dtype=torch.float64, generator=source)
    classes = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    return factor * logits, classes


def drawn_labels(count: int = 900) -> tuple[Tensor, Tensor]:
    """Return logits that are wrong in their own ways, and labels drawn by the right ones.

    The logits are float32.
    """
    source = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(count, 3, dtype=torch.float64, generator=source)
    labels = torch.bernoulli((logits - torch.tensor([0.0, 1.0, -1.0])).sigmoid(), generator=source)
    return (
        logits * torch.tensor([0.01, 3.0, 1.0]) + torch.tensor([50.0, 0.0, 2.0])
    ).float(), labels


def fit(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    return calibration.fit(outputs, targets, ("bird", "cat", "dog"), torch.device("cpu"))


@pytest.mark.parametrize("factor", [0.02, 1.0, 30.0])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_classes_as_scikit_learn(num_classes: int, factor: float) -> None:
    outputs, classes = drawn_classes(num_classes=num_classes, factor=factor)
    # whose decisions are the outputs; of two classes it has one, and takes -x and x
    model: Any = LogisticRegression()
    model.coef_ = np.eye(num_classes) if num_classes > 2 else np.array([[-0.5, 0.5]])
    model.intercept_, model.classes_ = np.zeros(len(model.coef_)), np.arange(num_classes)
    oracle: Any = CalibratedClassifierCV(FrozenEstimator(model), method="temperature")
    oracle.fit(outputs.numpy(), classes.numpy())
    found = fit(outputs, classes)
    expected = oracle.calibrated_classifiers_[0].calibrators[0].beta_
    assert found["slope"].item() == pytest.approx(expected, rel=1e-6)
    assert (found["offset"].tolist(), found["num_images"], found["note"]) == ([0.0], 600, "")


def test_labels_as_scikit_learn() -> None:
    outputs, labels = drawn_labels()
    found = fit(outputs, labels)
    for number, (slope, offset) in enumerate(
        zip(found["slope"].tolist(), found["offset"].tolist(), strict=True)
    ):
        values = outputs[:, number].double().numpy()
        mean, deviation = values.mean(), values.std()  # of which its solvers depend
        oracle: Any = LogisticRegression(
            C=np.inf, tol=1e-12, max_iter=1000, solver="newton-cholesky"
        )
        oracle.fit(((values - mean) / deviation)[:, None], labels[:, number].numpy())
        expected = oracle.coef_.item() / deviation
        assert slope == pytest.approx(expected, rel=1e-6)
        assert offset == pytest.approx(oracle.intercept_.item() - expected * mean, rel=1e-6)
    assert (found["num_images"], found["note"]) == (900, "")


@pytest.mark.parametrize("drawn", [drawn_classes, drawn_labels])
@pytest.mark.parametrize("fractions", [[0.5, 0.5], [0.1, 0.0, 0.9]])
def test_any_ranks(drawn: Any, fractions: Sequence[float]) -> None:
    outputs, targets = drawn()
    counts = [round(fraction * len(outputs)) for fraction in fractions]
    shards = list(zip(outputs.split(counts), targets.split(counts), strict=True))
    alone = fit(outputs, targets)
    with VirtualShards(len(counts), (1,), 1) as ranks:
        found, *others = ranks.run(lambda rank: fit(*shards[rank]))
    for name in ("slope", "offset"):
        assert all(torch.equal(other[name], found[name]) for other in others)
        torch.testing.assert_close(found[name], alone[name], rtol=1e-12, atol=1e-12)
    assert (found["num_images"], found["note"]) == (alone["num_images"], alone["note"])


def test_classes_without_optimum() -> None:
    outputs, classes = drawn_classes()
    wrong = outputs.clone()
    wrong[7, 2] = float("inf")
    right = outputs.argmax(1)
    one_wrong = torch.where(torch.arange(len(right)) == 5, outputs.argmin(1), right)
    for given, expected, note in (
        (outputs[:99], classes[:99], "99 validation images, and 100 are needed"),
        (outputs[:1], classes[:1], "1 validation image, and 100 are needed"),
        (outputs[:0], classes[:0], "0 validation images, and 100 are needed"),
        (outputs, right, f"0 of {len(outputs)} validation images wrong, and 2 are needed"),
        (outputs, one_wrong, f"1 of {len(outputs)} validation images wrong, and 2 are needed"),
        (-outputs, classes, "no better than chance on the validation images"),
        (torch.ones_like(outputs), classes, "no better than chance on the validation images"),
        (wrong, classes, "outputs that are not finite"),
    ):
        found = fit(given, expected)
        assert (found["slope"].tolist(), found["offset"].tolist(), found["note"]) == (
            [1.0],
            [0.0],
            note,
        )
    assert fit(outputs[:100], classes[:100])["note"] == ""


def test_label_without_optimum() -> None:
    outputs, labels = drawn_labels()
    fitted = fit(outputs, labels)

    def changed(values: Tensor, ones: Tensor) -> tuple[list[float], list[float], str]:
        both = outputs.clone(), labels.clone()
        both[0][:, 1], both[1][:, 1] = values, ones
        found = fit(*both)
        assert (found["slope"][[0, 2]] == fitted["slope"][[0, 2]]).all()  # others are as before
        assert (found["offset"][[0, 2]] == fitted["offset"][[0, 2]]).all()
        return found["slope"][1].item(), found["offset"][1].item(), found["note"]

    values, ones = outputs[:, 1], labels[:, 1]
    few = torch.zeros(900).index_fill(0, torch.arange(99), 1)
    needed = "fewer than 100 validation images with it, or without it"
    chance = "no better than chance on the validation images"
    for given, expected, note in (
        (values, few, needed),
        (values, 1 - few, needed),
        (values, torch.zeros(900), needed),
        (values, (values > 0.3).float(), "no validation image is wrong"),
        (values.round(), (values.round() > 0).float(), "no validation image is wrong"),
        (-values, ones, chance),
        (values, (values < 0.3).float(), chance),
        (torch.ones(900), ones, chance),
        (torch.full((900,), float("nan")), ones, "outputs that are not finite"),
    ):
        assert changed(given, expected) == (1.0, 0.0, f"cat: {note}")
