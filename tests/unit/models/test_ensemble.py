"""An average of networks predicts the mean of their probabilities."""

import pytest
import torch
from torch import nn

from lockstep.models.ensemble import Ensemble
from tests.support.modules import classifier

IMAGES = torch.rand(5, 1, 3, 3)


@pytest.mark.parametrize("is_flipped", [False, True])
def test_mean_of_probabilities(is_flipped: bool) -> None:
    members = [classifier(nn.Sequential(nn.Flatten(), nn.Linear(9, 4))) for _ in range(3)]
    views = [IMAGES, IMAGES.flip(3)] if is_flipped else [IMAGES]
    probabilities = [
        member.net((view - member.mean) / member.std).softmax(1)
        for member in members
        for view in views
    ]
    average = Ensemble(members, is_flipped=is_flipped)(IMAGES).softmax(1)
    torch.testing.assert_close(average, torch.stack(probabilities).mean(0).to(average.dtype))


def test_flipped_maps_refused() -> None:
    average = Ensemble([classifier(nn.Conv2d(1, 4, 1))], is_flipped=True)
    with pytest.raises(ValueError, match="predictions of mirror images are maps: give one run"):
        average(IMAGES)
