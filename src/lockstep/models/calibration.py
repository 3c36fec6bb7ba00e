"""Calibrated probabilities: outputs of a trained network, corrected by what its validation images were."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from lockstep.models.classifier import Classifier


class Calibration(nn.Module):
    """From outputs (B, C) to those of calibrated predictions: `slope` times them, plus `offset`, (1,) or (C,) each.

    The slope is positive. One for all classes is 1 / temperature (Guo et al. 2017, https://arxiv.org/abs/1706.04599);
    labels have their own (Platt 1999).
    """

    slope: Tensor
    offset: Tensor

    def __init__(self, slope: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("slope", slope, persistent=False)
        self.register_buffer("offset", offset, persistent=False)

    @override
    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.slope + self.offset


def restore(module: Classifier, checkpoint: Mapping[str, Any]) -> None:
    """Give a module the calibration that its checkpoint has, in the type of its weights; none if that has none."""
    saved = checkpoint.get("calibration")
    if saved is not None:
        module.calibration = Calibration(saved["slope"], saved["offset"]).to(module.mean)
