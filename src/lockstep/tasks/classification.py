"""Define the task of most trainings, which selects one of several classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch
from lockstep.system.types import Fraction, NonNegative
from lockstep.tasks.task import SampleLosses, SupervisedTask, every, mean_of_each


class Classification(SupervisedTask):
    """The task to select one of several classes.

    Targets are class numbers int64 (B,), or (B, H, W) for outputs (B, C, H, W). The default loss is
    cross-entropy of logits (B, C, ...), with `label_smoothing` in training. `class_weights` has C
    numbers. With it, a sample, including its smoothed part, counts as much as its class, and the
    mean divides by the weights. A custom `loss` replaces all three.
    """

    takes = "class numbers int64 from 0 to {last}"
    output_noun = "classes"
    scored: tuple[str, ...] = ("accuracy",)
    class_weights: Tensor | None

    def __init__(
        self,
        *,
        loss: Annotated[
            Callable[[Tensor, Tensor], Tensor] | None,
            Doc("function (outputs, targets) -> (B,); null = cross-entropy"),
        ],
        label_smoothing: Annotated[Fraction, Doc("label smoothing of the training loss")],
        class_weights: Annotated[
            Sequence[NonNegative] | Literal["balanced"] | None,
            Doc(
                "weight of each class; balanced = n / (K n_k) for n_k of n training images; "
                "null = all equal"
            ),
        ],
    ) -> None:
        super().__init__(loss=loss or F.cross_entropy)
        self._has_custom_loss = loss is not None
        self.label_smoothing = label_smoothing
        if isinstance(class_weights, str):
            raise ValueError(
                "class_weights=balanced is for a training, which counts its images: use numbers"
            )
        weights = (
            None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
        )
        self.register_buffer("class_weights", weights, persistent=False)

    @override
    def fit_to(self, class_names: Sequence[str]) -> None:
        weights = self.class_weights
        if weights is not None and len(weights) != len(class_names):
            raise ValueError(
                f"task.class_weights has {len(weights)} numbers, the data {len(class_names)} "
                "classes: use one for each"
            )

    @override
    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        is_alike = targets.shape[1:] == outputs.shape[2:]
        # A custom loss may ignore some class numbers.
        if not is_alike or self._has_custom_loss:
            return torch.full((len(targets),), is_alike)
        is_class = (targets >= 0) & (targets < outputs.shape[1])
        return every(is_class) & (targets.dtype == torch.int64)

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> SampleLosses:
        if self.class_weights is None:
            return super().losses(outputs, batch)
        values, weights = self._weighted_losses(outputs, batch.targets)
        if batch.mix is not None:
            mix_weights = batch.mix.weights
            other_values, other_weights = self._weighted_losses(outputs, batch.mix.targets)
            values = mix_weights * values + (1 - mix_weights) * other_values
            weights = mix_weights * weights + (1 - mix_weights) * other_weights
        return values, weights

    @override
    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._has_custom_loss:
            return super().loss_of(outputs, targets)
        return mean_of_each(self._cross_entropy(outputs, targets))

    def _weighted_losses(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        assert self.class_weights is not None
        # The `weight` of torch is not used, because it gives the smoothed part of a sample the
        # weights of the other classes.
        weights = self.class_weights.to(outputs.dtype)[targets]
        return _sum_of_each(weights * self._cross_entropy(outputs, targets)), _sum_of_each(weights)

    def _cross_entropy(self, outputs: Tensor, targets: Tensor) -> Tensor:
        smoothing = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=smoothing)

    @override
    def scores(self, outputs: Tensor, batch: Batch) -> Sequence[Tensor]:
        """Return whether the largest logit is that of the class, as 1 or 0 in float64.

        Mixed images count by their weights.
        """
        predicted = outputs.argmax(1)
        hits = (predicted == batch.targets).double()
        if batch.mix is not None:
            mix_weights = batch.mix.weights.double()
            hits = mix_weights * hits + (1 - mix_weights) * (predicted == batch.mix.targets)
        return (mean_of_each(hits),)

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the probability of every class (B, C, ...)."""
        return outputs.softmax(1)

    @override
    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return probabilities in float64, and the targets.

        torchmetrics would decide for each batch whether numbers are logits. In float64, two
        different logits do not become equal.
        """
        return self.predictions(outputs.double()), batch.targets

    @override
    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        return {"task": "multiclass", "num_classes": num_outputs}

    @override
    def columns(self, class_names: Sequence[str], top_k: int = 1) -> Sequence[str]:
        ends = ["", *(f"_{rank}" for rank in range(2, top_k + 1))]
        return [f"{name}{end}" for end in ends for name in ("class", "probability")]

    @override
    def cells(
        self, predictions: Tensor, class_names: Sequence[str], top_k: int = 1
    ) -> list[list[str]]:
        """Return the `top_k` most probable classes with their probabilities.

        Equally probable classes are in their order.
        """
        order = predictions.argsort(dim=1, descending=True, stable=True)[:, :top_k]
        rows = zip(order.tolist(), predictions.gather(1, order).tolist(), strict=True)
        return [
            [
                cell
                for number, value in zip(*row, strict=True)
                for cell in (str(class_names[number]), f"{value:.6f}")
            ]
            for row in rows
        ]


def _sum_of_each(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1) if values.dim() > 1 else values
