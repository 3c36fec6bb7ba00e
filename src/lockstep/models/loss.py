"""Loss and hits of a share as sums over its samples, for plain labels and for mixed ones."""

from torch import Tensor
from torch.nn import functional as F

from lockstep.distributed.batch import Mix


def summed_loss(logits: Tensor, labels: Tensor, mix: Mix | None, label_smoothing: float) -> Tensor:
    """Sum over the samples of w CE(own label) + (1 - w) CE(partner's label); 0 with a gradient for an empty share."""
    if mix is None:
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    own, partner = (
        F.cross_entropy(logits, wanted, reduction="none", label_smoothing=label_smoothing)
        for wanted in (labels, mix.labels)
    )
    return (mix.weights * own + (1 - mix.weights) * partner).sum()


def num_hits(logits: Tensor, labels: Tensor, mix: Mix | None) -> Tensor:
    """Samples whose largest logit is that of their label, float64; a mixed one counts by the weight of its labels."""
    predicted = logits.argmax(1)
    hits = (predicted == labels).double()
    if mix is not None:
        weights = mix.weights.double()
        hits = weights * hits + (1 - weights) * (predicted == mix.labels)
    return hits.sum()
