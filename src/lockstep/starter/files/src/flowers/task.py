"""The task: one class of several, by a focal loss. Metrics are in conf/task/focal.yaml."""

from functools import partial

from torch import Tensor
from torch.nn import functional as F

from lockstep.tasks import Classification


def focal(outputs: Tensor, targets: Tensor, *, gamma: float) -> Tensor:
    """Return the loss of every sample (B,) from logits (B, C); Lockstep computes the mean.

    Confident samples count less: Lin et al., Focal Loss for Dense Object Detection, equation 4.
    """
    log_likelihood = -F.cross_entropy(outputs, targets, reduction="none")
    return -((1 - log_likelihood.exp()) ** gamma) * log_likelihood


class Focal(Classification):
    """A classification by `focal`."""

    def __init__(self, *, gamma: float) -> None:
        super().__init__(loss=partial(focal, gamma=gamma), label_smoothing=0.0, class_weights=None)
