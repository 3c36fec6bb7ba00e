"""Plots and figures of an evaluation equal scikit-learn's, from any split over ranks."""

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor

from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.inference.class_report import accuracy_interval
from lockstep.inference.reliability import report
from lockstep.models.calibration import Calibration
from lockstep.models.predictions import Findings, FindingsCollector
from tests.support.modules import classification

NUM_CLASSES = 5
ENTRY = {"slope": torch.tensor([0.7]), "offset": torch.tensor([0.0]), "num_images": 9, "note": ""}
CALIBRATION = Calibration(ENTRY)


def made_up(count: int = 400) -> tuple[Tensor, Tensor]:
    """Logits (N, C) that are right more often than not, and labels (N,)."""
    made = torch.Generator().manual_seed(3)
    labels = torch.randint(NUM_CLASSES, (count,), generator=made)
    logits = 1.5 * torch.randn(count, NUM_CLASSES, generator=made, dtype=torch.float64)
    logits[torch.arange(count), labels] += 1.2
    return logits, labels


def findings_of(logits: Tensor, labels: Tensor, parts: list[Tensor]) -> Findings:
    outcomes = FindingsCollector(classification(), CALIBRATION, NUM_CLASSES)
    for positions in parts:
        if len(positions):
            outcomes.update(logits[positions], labels[positions], positions)
    found = outcomes.findings()
    assert found is not None
    return found


def test_confusion() -> None:
    logits, labels = made_up()
    found = findings_of(logits, labels, list(torch.arange(400).split(150)))
    assert (found.confusion == metrics.confusion_matrix(labels, logits.argmax(1))).all()


def test_worst_mistakes() -> None:
    logits, labels = made_up()
    found = findings_of(logits, labels, [torch.arange(400)])
    rows = found.worst(7)
    wrong = (logits.argmax(1) != labels).numpy()
    assert wrong[rows].all()
    assert sorted(found.probabilities[wrong], reverse=True)[:7] == list(found.probabilities[rows])
    assert len(found.worst(1000)) == wrong.sum()


def test_probabilities_as_predicted() -> None:
    """A rounded float64 number would be another one.

    Near 1, many images are a bit from the threshold.
    """
    logits, labels = (3 * made_up()[0]).float(), made_up()[1]
    expected = classification().predictions(CALIBRATION(logits)).amax(1)
    found = findings_of(logits, labels, [torch.arange(400)])
    assert np.array_equal(found.probabilities, expected.numpy())


@pytest.mark.parametrize("cuts", [[0, 0, 128], [0, 100, 100, 128]])
def test_any_ranks(cuts: list[int]) -> None:
    logits, labels = made_up()
    alone = findings_of(logits, labels, [torch.arange(400)])
    groups = [str(position % 17) for position in range(400)]

    def on_rank(rank: int) -> Findings:
        return findings_of(
            logits,
            labels,
            [batch[cuts[rank] : cuts[rank + 1]] for batch in torch.arange(400).split(128)],
        )

    with VirtualShards(len(cuts) - 1, [1], 1) as ranks:
        results = ranks.run(on_rank)
    for found in results:
        for one, other in (
            *zip(alone, found, strict=True),
            *zip(alone.raw, found.raw, strict=True),
        ):
            assert np.array_equal(np.asarray(one), np.asarray(other))
        assert accuracy_interval(found, groups) == accuracy_interval(alone, groups)
        # a NaN is not equal
        assert str(report(found, groups, ENTRY)) == str(report(alone, groups, ENTRY))
