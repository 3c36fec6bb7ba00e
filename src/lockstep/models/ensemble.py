"""Average the calibrated probabilities of several networks, and of images and their mirror images.

The average takes the place of the network of a `Classifier`, so that losses, metrics, predictions
and exports use it like any network.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep.models.classifier import Classifier
from lockstep.tasks.vectors import Multilabel


class Ensemble(nn.Module):
    """Maps pixel values (B, C, H, W) to logits (B, ...) of the average probabilities of members.

    The members have the same task, class names and image shape. Each normalizes pixel values by its
    own statistics. Floats of custom sources are not normalized. If the average `is_flipped`, each
    member also predicts the mirror image of each image.
    """

    def __init__(self, members: list[Classifier], *, is_flipped: bool) -> None:
        super().__init__()
        self.nets = nn.ModuleList(member.net for member in members)
        self.calibrations = nn.ModuleList(member.calibration for member in members)
        self.means = nn.Buffer(torch.stack([member.mean for member in members]))
        self.stds = nn.Buffer(torch.stack([member.std for member in members]))
        self.is_float: bool = members[0].image_format.is_float
        self.is_multilabel: bool = isinstance(members[0].task, Multilabel)
        self.is_flipped = is_flipped

    @override
    def forward(self, images: Tensor) -> Tensor:
        views = [images, images.flip(3)] if self.is_flipped else [images]
        outputs = torch.stack(
            [self._outputs(member, view) for member in range(len(self.nets)) for view in views]
        )
        if self.is_flipped and outputs.dim() > 3:
            raise ValueError("the predictions of mirror images are maps: give one run, not flipped")
        # Sums of logarithms keep small probabilities. Their factor 1/n is none of a softmax.
        if self.is_multilabel:
            logs, others = map(nn.functional.logsigmoid, (outputs, -outputs))
            return logs.logsumexp(0) - others.logsumexp(0)
        return outputs.log_softmax(2).logsumexp(0)

    def _outputs(self, number: int, images: Tensor) -> Tensor:
        """Return the calibrated outputs of a member, in the dtype of its calibration."""
        inputs = images if self.is_float else (images - self.means[number]) / self.stds[number]
        return self.calibrations[number](self.nets[number](inputs).to(self.means.dtype))
