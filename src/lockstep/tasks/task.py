"""The interface of a task: losses sample by sample, and the meaning of the outputs of the network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch


class Losses(NamedTuple):
    """Losses (B,) and weights (B,) of samples; None: each has weight 1.

    The loss of any set of samples is the sum of `values` divided by the sum of `weights`.
    """

    values: Tensor
    weights: Tensor | None


class Task(nn.Module):
    """The loss, predictions and metrics of a training; a custom task is a subclass with `losses`.

    `outputs` are those of the network for a batch of B samples; B can be 0, because a worker's
    shard can be empty. A task never averages over the batch: Lockstep sums over all workers and
    divides once. A task may have buffers and parameters, as any module: they move to the device,
    and parameters are trained.
    """

    # printed if `fits` is False; {count} and {last}: the number of outputs, and that minus 1
    takes = "any targets"
    named = "outputs"  # plural of the things that the class names of the data name
    scored: tuple[str, ...] = ()  # names of the `scores`, logged as train/<name>
    takes_mixed = False  # True if `losses` uses `batch.mix` of MixUp and CutMix

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """Return the loss of every sample, (B,); or the losses, already weighted, and their weights, (B,) each.

        The loss of the global batch is the sum of the losses divided by the number of samples, or
        by the sum of the weights. In evaluation mode this is the reported loss.
        """
        raise NotImplementedError(f"{type(self).__name__} has no losses(outputs, batch)")

    def scores(self, outputs: Tensor, batch: Batch) -> Sequence[Tensor]:
        """Return a number of every sample, (B,), for each name of `scored`: the training logs their means."""
        return ()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return probabilities or numbers (B, ...), as `lockstep predict` writes them."""
        return outputs

    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the arguments of a metric's update: predictions and targets, B > 0 of each."""
        return self.predictions(outputs), batch.targets

    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        """Return defaults for those parameters of metrics that the configuration does not set."""
        return {}

    def columns(self, class_names: Sequence[str]) -> Sequence[str]:
        """Return the columns that `lockstep predict` writes after the file."""
        return class_names

    def cells(self, predictions: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        """Return what `lockstep predict` writes in these columns for each of B images, of predictions (B, C)."""
        return [[f"{value:.6g}" for value in row] for row in predictions.tolist()]

    def fit_to(self, class_names: Sequence[str]) -> None:
        """Check or use the class names of the data, once, before the training. Raises ValueError."""

    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Return bool (N,): True for targets (N, ...) that can be learned with outputs like these (B, ...).

        A training with others is rejected.
        """
        return torch.ones(len(targets), dtype=torch.bool)

    def moved_targets(self, targets: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the targets of images that were moved: `move` crops, mirrors and turns any (B, C, H, W) like these."""
        return targets


def checked_losses(task: Task, outputs: Tensor, batch: Batch) -> Losses:
    """Return the losses of a task. Raises ValueError unless there is one for each sample."""
    losses = task.losses(outputs, batch)
    values, weights = losses if isinstance(losses, tuple) else (losses, None)
    count = len(batch.indices)
    for name, part in (("losses", values), ("weights", weights)):
        if part is not None and tuple(part.shape) != (count,):
            problem = f"losses returns {name} of shape {tuple(part.shape)} for {count} samples"
            raise ValueError(
                f'{type(task).__name__}.{problem}: return one for each, as with reduction="none"'
            )
    return Losses(values, weights)


class SupervisedTask(Task):
    """A task whose loss is a function of only outputs and targets; samples of MixUp or CutMix by their weights.

    `loss` takes (outputs, targets) and returns (B,) or (B, ...), which is averaged for each sample.
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
    def losses(self, outputs: Tensor, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        if batch.mix is None:
            return self.loss_of(outputs, batch.targets)
        own = batch.mix.weights
        return own * self.loss_of(outputs, batch.targets) + (1 - own) * self.loss_of(
            outputs, batch.mix.targets
        )

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample for these targets, (B,)."""
        return mean_of_each(self.loss(outputs, self.targets(outputs, targets)))


def mean_of_each(values: Tensor) -> Tensor:
    """Return the mean (B,) over each sample of (B, ...). A single number stays one, and is rejected later."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def all_or_none(is_good: bool, targets: Tensor) -> Tensor:
    return torch.full((len(targets),), is_good)


def every(good: Tensor) -> Tensor:
    """Return (B,) of (B, ...): True where all of a sample are good."""
    return good.flatten(1).all(1) if good.dim() > 1 else good
