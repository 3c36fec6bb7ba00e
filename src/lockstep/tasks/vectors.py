"""Define tasks with a number for each output, which are labels or numbers to predict."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch
from lockstep.tasks.task import SupervisedTask, every

# Numbers are equal in float64 if their standard deviation is at most this fraction of the mean.
ROUNDING = 1e-12
# A subclass of Regression that overrides one of these methods gets unchanged targets.
STANDARDIZING = ("losses", "loss_of", "targets", "predictions", "metric_inputs")


class Multilabel(SupervisedTask):
    """The task to predict any number of labels for each image.

    Targets (B, C) are 0 or 1 for each label, and outputs are logits (B, C). `loss` takes logits and
    targets as floats, such as torch's binary cross-entropy with logits.
    """

    takes = "0 or 1 for each label ({count} of them)"
    output_noun = "labels"

    @override
    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        return every((targets == 0) | (targets == 1)) & _is_like(outputs, targets)

    @override
    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _like(outputs, targets)

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the probability of every label (B, C)."""
        return outputs.sigmoid()

    @override
    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.predictions(outputs.double()), batch.targets.long()

    @override
    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        return {"task": "multilabel", "num_labels": num_outputs}

    @override
    def cells(self, predictions: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        return [[f"{value:.6f}" for value in row] for row in predictions.tolist()]


class Regression(SupervisedTask):
    """The task to predict numbers for each image, with targets (B,) or (B, C) of outputs (B, C).

    `loss` takes both as floats of one shape, such as torch's squared error. The network learns
    standardized targets, from which `mean` is subtracted, and which are divided by `std`. These are
    computed for each number in the training images. Targets of more dimensions share a single mean
    and standard deviation. `loss` is computed on standardized targets, while predictions and
    metrics are in the units of the targets. A subclass with its own `losses`, `loss_of`, `targets`,
    `predictions` or `metric_inputs` learns unchanged targets.
    """

    takes = "a finite number for each output ({count} of them)"
    output_noun = "numbers"

    def __init__(
        self,
        *,
        loss: Annotated[
            Callable[[Tensor, Tensor], Tensor], Doc("function (outputs, targets) -> (B, ...)")
        ],
    ) -> None:
        super().__init__(loss=loss)
        self.mean: Tensor = nn.Buffer(torch.tensor(0.0))
        self.std: Tensor = nn.Buffer(torch.tensor(1.0))
        self.register_load_state_dict_pre_hook(_adapt_buffers)

    def standardize(self, targets: Tensor) -> None:
        """Set mean and standard deviation from targets (N, ...).

        They are computed in float64 and in one thread, so that they are the same on every rank.
        Targets that are not finite are left out, because the training refuses them.
        """
        if any(
            getattr(type(self), name) is not getattr(Regression, name) for name in STANDARDIZING
        ):
            return
        values = targets[every(targets.float().isfinite())].double().numpy()
        axis = 0 if values.ndim <= 2 else None
        mean, std = torch.as_tensor(values.mean(axis)), torch.as_tensor(values.std(axis))
        self.mean = mean.to(self.mean)
        self.std = torch.where(std > ROUNDING * mean.abs(), std, 1.0).to(self.std)

    @override
    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        return every(targets.to(outputs.dtype).isfinite()) & _is_like(outputs, targets)

    @override
    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = (_like(outputs.double(), targets) - self.mean) / self.std
        return values.to(outputs.dtype)

    @override
    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs * self.std + self.mean

    @override
    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return both in float64, as (B,) if there is one number, and as (B, C) otherwise."""
        predicted = self.predictions(outputs.double())
        targets = _like(outputs.double(), batch.targets)
        return (
            (predicted.squeeze(1), targets.squeeze(1))
            if predicted.dim() == 2
            else (predicted, targets)
        )


def _adapt_buffers(
    task: nn.Module, state: dict[str, Any], prefix: str, _: Any, is_complete: bool, *lists: Any
) -> None:
    """Give the buffers the shape that they have in a checkpoint.

    Version 0.2.0 did not save them, and learned unchanged targets.
    """
    for name, default in (("mean", 0.0), ("std", 1.0)):
        buffer = task.get_buffer(name)
        if is_complete:
            state.setdefault(f"{prefix}{name}", torch.full_like(buffer, default))
        saved_value = state.get(f"{prefix}{name}", buffer)
        if buffer.shape != saved_value.shape:
            setattr(task, name, buffer.new_empty(saved_value.shape))


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `targets` in the dtype and shape of `outputs`, also (B,) targets for (B, 1) outputs.

    Raises ValueError for other shapes.
    """
    if not _is_like(outputs, targets):  # torch would broadcast them silently.
        raise ValueError(
            f"The network gives {tuple(outputs.shape[1:])} numbers for each sample, "
            f"the data {tuple(targets.shape[1:])}"
        )
    return targets.reshape(outputs.shape).to(outputs.dtype)


def _is_like(outputs: Tensor, targets: Tensor) -> bool:
    sample_shape = outputs.shape[1:]
    return targets.shape[1:] == sample_shape or (
        sample_shape[:1] == (1,) and targets.shape[1:] == sample_shape[1:]
    )
