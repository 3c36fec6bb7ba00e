"""Loss and accuracy of a pass over a split, from any shares of it."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.aggregation import MeanMetric, SumMetric
from torchmetrics.classification.accuracy import MulticlassAccuracy


class Scores(nn.Module):
    """Accuracy and mean loss of one pass over a split, each sample counted once, reduced over the ranks at the end."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(num_classes, average="micro", validate_args=False)
        # not a number must show: torchmetrics would leave such losses out
        self.loss = MeanMetric(nan_strategy="disable")
        self.count = SumMetric(nan_strategy="disable")

    def start(self) -> None:
        """Count from zero, in float64: a module-wide change of precision makes torchmetrics round to float32."""
        for metric in (self.accuracy, self.loss, self.count):
            metric.reset()
        self.loss.set_dtype(torch.float64)
        self.count.set_dtype(torch.float64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Take in logits (B, num_classes) and labels (B,), B > 0: torchmetrics' accuracy cannot take an empty share."""
        losses = F.cross_entropy(logits, labels, reduction="none").double()
        ones = torch.ones_like(losses)  # of a number torchmetrics makes a tensor, and the copy to a GPU waits for it
        self.accuracy.update(logits, labels)
        self.loss.update(losses, ones)
        self.count.update(ones)

    def compute(self, split: str, num_expected: int) -> dict[str, Tensor]:
        """The global values. Every rank must call it.

        Raises RuntimeError when a sample was lost or counted twice.
        """
        num_seen = round(self.count.compute().item())
        if num_seen != num_expected:
            raise RuntimeError(f"The {split} split has {num_expected} samples, but {num_seen} were evaluated.")
        return {f"{split}/loss": self.loss.compute(), f"{split}/accuracy": self.accuracy.compute()}
