"""What every task is asked for: losses sample by sample, and what the outputs of the network say."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch


class Losses(NamedTuple):
    """The loss of every sample (B,), and what each counts (B,), None where each counts 1.

    The loss of any set of samples is the sum of `values` divided by the sum of `weights`.
    """

    values: Tensor
    weights: Tensor | None


class Task(nn.Module):
    """What a network is trained for; a task of one's own is a subclass that has `losses`.

    `outputs` are what the network gives for the inputs of a batch of B samples; B can be 0, because a worker's shard of
    a batch can be empty. A task never makes a mean over the batch: Lockstep sums over all workers and divides once. As
    a module a task may have buffers and parameters: they move to the device, and parameters are trained.
    """

    takes = (
        "any targets"  # what `fits` looks for; {count} and {last} stand for the number of outputs and the last of them
    )
    named = "outputs"  # what the class names of the data are names of
    scored: tuple[str, ...] = ()  # what `scores` gives of every sample, shown as train/<name>
    takes_mixed = False  # whether `losses` looks at `batch.mix`, which MixUp and CutMix leave there
    takes_flips = False  # whether mirrored images have the same target, and outputs of both can be averaged

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        """The loss of every sample, (B,); or the losses, already weighted, and their weights, (B,) each.

        The loss of the global batch is the sum of the first by the number of samples, or by the sum of the second. In
        evaluation mode this is the loss that is reported.
        """
        raise NotImplementedError(f"{type(self).__name__} has no losses(outputs, batch)")

    def scores(self, outputs: Tensor, batch: Batch) -> Sequence[Tensor]:
        """A number of every sample, (B,), for each name of `scored`: the training shows their means."""
        return ()

    def predictions(self, outputs: Tensor) -> Tensor:
        """What the outputs say, (B, ...): probabilities or numbers, as `lockstep predict` writes them."""
        return outputs

    def metric_inputs(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """What metrics are updated with: predictions and targets, B > 0 of each."""
        return self.predictions(outputs), batch.targets

    def metric_arguments(self, num_outputs: int) -> Mapping[str, Any]:
        """Parameters that metrics get where they have them and the configuration does not say them."""
        return {}

    def columns(self, class_names: Sequence[str]) -> Sequence[str]:
        """The heads of what `lockstep predict` writes of an image."""
        return class_names

    def cells(self, predictions: Tensor, class_names: Sequence[str]) -> list[list[str]]:
        """What `lockstep predict` writes of each of B images below the heads, of predictions (B, C)."""
        return [[f"{value:.6g}" for value in row] for row in predictions.tolist()]

    def fit_to(self, class_names: Sequence[str]) -> None:
        """Hear once of the names of the outputs, before the training. Raises ValueError where they do not fit."""

    def fits(self, targets: Tensor, outputs: Tensor) -> Tensor:
        """Whether each of N targets (N, ...) can be learned with outputs like these (B, ...), bool (N,).

        A training with others is refused.
        """
        return torch.ones(len(targets), dtype=torch.bool)

    def moved_targets(self, targets: Tensor, move: Callable[[Tensor], Tensor]) -> Tensor:
        """The targets of images that were cropped and mirrored: `move` does the same to any (B, C, H, W).

        Targets that do not lie in the image stay what they are.
        """
        return targets


def checked_losses(task: Task, outputs: Tensor, batch: Batch) -> Losses:
    """The losses of a task. Raises ValueError where they are not one for each sample."""
    given = task.losses(outputs, batch)
    values, weights = given if isinstance(given, tuple) else (given, None)
    wanted = (len(batch.indices),)
    for name, part in (("losses", values), ("weights", weights)):
        if part is not None and tuple(part.shape) != wanted:
            raise ValueError(
                f"{type(task).__name__}.losses gives {name} of shape {tuple(part.shape)} for {wanted[0]} samples: "
                'give one value for each, as torch\'s losses do with reduction="none", never their mean'
            )
    return Losses(values, weights)


class SupervisedTask(Task):
    """A task whose loss is a function of outputs and targets alone; what MixUp or CutMix mixed counts by its weights.

    `loss` takes (outputs, targets) and gives a value for each sample, (B,) or (B, ...), of which the mean is taken.
    """

    takes_mixed = True

    def __init__(
        self,
        *,
        loss: Annotated[Callable[[Tensor, Tensor], Tensor], Doc("a function (outputs, targets) -> (B, ...)")],
    ) -> None:
        super().__init__()
        self.loss = loss

    def targets(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The targets as `loss` takes them."""
        return targets

    @override
    def losses(self, outputs: Tensor, batch: Batch) -> Tensor | tuple[Tensor, Tensor]:
        if batch.mix is None:
            return self.loss_of(outputs, batch.targets)
        own = batch.mix.weights
        return own * self.loss_of(outputs, batch.targets) + (1 - own) * self.loss_of(outputs, batch.mix.targets)

    def loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of every sample for these targets, (B,)."""
        return mean_of_each(self.loss(outputs, self.targets(outputs, targets)))


def mean_of_each(values: Tensor) -> Tensor:
    """(B, ...) to (B,): the mean of what there is of each sample. A single number stays one, and is refused later."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values
