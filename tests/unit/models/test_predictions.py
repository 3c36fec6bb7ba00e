"""Plots and figures of an evaluation equal scikit-learn's, from any split over ranks."""

import numpy as np
import pytest
import torch
from sklearn import metrics

from lockstep.distributed.virtual_shards import VirtualShards
from lockstep.inference.class_report import accuracy_interval
from lockstep.inference.reliability import report
from lockstep.models.calibration import Calibration
from lockstep.models.predictions import Findings
from tests.support.findings import findings_of, made_up
from tests.support.modules import classification

NUM_CLASSES = 5
ENTRY = {"slope": torch.tensor([0.7]), "offset": torch.tensor([0.0]), "num_images": 9, "note": ""}
CALIBRATION = Calibration(ENTRY)


def test_confusion() -> None:
    logits, labels = made_up(400, NUM_CLASSES)
    found = findings_of(classification(), CALIBRATION, logits, labels, torch.arange(400).split(150))
    assert (found.confusion == metrics.confusion_matrix(labels, logits.argmax(1))).all()


def test_worst_mistakes() -> None:
    logits, labels = made_up(400, NUM_CLASSES)
    found = findings_of(classification(), CALIBRATION, logits, labels, [torch.arange(400)])
    rows = found.worst(7)
    wrong = (logits.argmax(1) != labels).numpy()
    assert wrong[rows].all()
    assert sorted(found.probabilities[wrong], reverse=True)[:7] == list(found.probabilities[rows])
    assert len(found.worst(1000)) == wrong.sum()


def test_probabilities_as_predicted() -> None:
    """A rounded float64 number would be another one.

    Near 1, many images are a bit from the threshold.
    """
    logits, labels = made_up(400, NUM_CLASSES)
    logits = (3 * logits).float()
    expected = classification().predictions(CALIBRATION(logits)).amax(1)
    found = findings_of(classification(), CALIBRATION, logits, labels, [torch.arange(400)])
    assert np.array_equal(found.probabilities, expected.numpy())


@pytest.mark.parametrize("cuts", [[0, 0, 128], [0, 100, 100, 128]])
def test_any_ranks(cuts: list[int]) -> None:
    logits, labels = made_up(400, NUM_CLASSES)
    alone = findings_of(classification(), CALIBRATION, logits, labels, [torch.arange(400)])
    groups = [str(position % 17) for position in range(400)]

    def on_rank(rank: int) -> Findings:
        parts = [batch[cuts[rank] : cuts[rank + 1]] for batch in torch.arange(400).split(128)]
        return findings_of(classification(), CALIBRATION, logits, labels, parts)

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
