"""Define the interface of a task, with losses per sample and the meaning of the outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch

# The losses of samples (B,), or a pair of losses and weights (B,).
SampleLosses = Tensor | tuple[Tensor, Tensor]


class Losses(NamedTuple):
    """The losses (B,) and weights (B,) of samples. If weights are None, each sample has weight 1.

    The loss of any set of samples is the sum of `values` divided by the sum of `weights`.
    """

    values: Tensor
    weights: Tensor | None


class Task(nn.Module):
    """The loss, predictions and metrics of a training.

    A custom task is a subclass with `losses`. `outputs` are those of the network for a batch of B
    samples. B can be 0, because the shard of a worker can be empty. A task never averages over the
    batch, because Lockstep sums over all workers and divides once. A task may have buffers and
    parameters, as any module. They move to the device, and parameters are trained.
    """

    # This is printed if `fits` is False. {count} is the number of outputs, and {last} is one less.
    takes = "any targets"
    output_noun = "outputs"  # plural of what the class names of the data name
    scored: tuple[str, ...] = ()  # names of the `scores`, which are logged as train/<name>
    takes_mixed = False  # True if `losses` uses `batch.mix` of MixUp and CutMix

    def losses(self, outputs: Tensor, batch: Batch) -> SampleLosses:
        """Return the loss of every sample (B,), or a pair of losses and weights (B,).

        In a pair, the losses are already weighted. The loss of the global batch is the sum of the
        losses divided by the number of samples, or by the sum of the weights. In evaluation mode,
        this is the reported loss.
        """
        raise NotImplementedError(f"{type(self).__name__} has no losses(outputs, batch)")

    def scores(self, outputs: Tensor, batch: Batch) -> Sequence[Tensor]:
        """Return a number for every sample (B,), for each name of `scored`.

        The training logs their means.
        """
        return ()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return probabilities or numbers (B, ...), as `lockstep predict` writes them."""
        return outputs

    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return predictions and targets, B > 0 of each, as arguments of a metric's update."""
        return self.predictions(outputs), batch.targets

    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        """Return defaults for parameters of metrics that the configuration does not set."""
        return {}

    def columns(self, class_names: Sequence[str]) -> Sequence[str]:
        """Return the columns that `lockstep predict` writes after the file."""
        return class_names

    def cells(self, predictions: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        """Return what `lockstep predict` writes in these columns for each of B images.

        Predictions are (B, C).
        """
        return [[f"{value:.6g}" for value in row] for row in predictions.tolist()]

    def fit_to(self, class_names: Sequence[str]) -> None:
        """Check or use the class names of the data, once before the training.

        Raises ValueError.
        """

    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return bool (N,), True for targets (N, ...) that can be learned.

        The outputs are like `outputs` (B, ...). A training with other targets is rejected.
        """
        return torch.ones(len(targets), dtype=torch.bool)

    def moved_targets(self, targets: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the targets of images that were moved.

        `move` crops, flips and rotates any tensor (B, C, H, W) as it did the images.
        """
        return targets


def checked_losses(task: Task, outputs: Tensor, batch: Batch) -> Losses:
    """Return the losses of a task. Raises ValueError unless there is one for each sample."""
    losses = task.losses(outputs, batch)
    values, weights = losses if isinstance(losses, tuple) else (losses, None)
    count = len(batch.indices)
    for name, tensor in (("losses", values), ("weights", weights)):
        if tensor is not None and tuple(tensor.shape) != (count,):
            raise ValueError(
                f"{type(task).__name__}.losses returns {name} of shape {tuple(tensor.shape)} for "
                f'{count} samples: return one for each, as with reduction="none"'
            )
    return Losses(values, weights)


class SupervisedTask(Task):
    """A task whose loss is a function of only outputs and targets.

    Samples of MixUp or CutMix count by their weights. `loss` takes (outputs, targets) and returns
    (B,) or (B, ...), which is averaged for each sample.
    """

    takes_mixed = True

    def __init__(
        self,
        *,
        loss: Annotated[
            Callable[[Tensor, Tensor], Tensor], Doc("function (outputs, targets) -> (B, ...)")
        ],
    ) -> None:
        super().__init__()
        self.loss = loss

    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the targets as `loss` takes them."""
        return targets

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> SampleLosses:
        if batch.mix is None:
            return self.loss_of(outputs, batch.targets)
        weights = batch.mix.weights
        return weights * self.loss_of(outputs, batch.targets) + (1 - weights) * self.loss_of(
            outputs, batch.mix.targets
        )

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample (B,) for these targets."""
        return mean_of_each(self.loss(outputs, self.targets(outputs, targets)))


def mean_of_each(values: Tensor) -> Tensor:
    """Return the mean (B,) over each sample of (B, ...).

    A single number is returned unchanged, and is rejected later.
    """
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def every(is_good: Tensor) -> Tensor:
    """Return (B,) for (B, ...), which is True where all values of a sample are good."""
    return is_good.flatten(1).all(1) if is_good.dim() > 1 else is_good
