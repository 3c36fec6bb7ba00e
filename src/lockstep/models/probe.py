"""Train a linear probe, which solves the head of a frozen network for one L2 value per epoch."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Doc, override

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import sum_over_ranks
from lockstep.models.classifier import Classifier
from lockstep.system.output import print_error
from lockstep.system.types import Positive, PositiveFloat, PositiveFraction
from lockstep.tasks.task import Task, checked_losses

# A feature is nearly constant if its standard deviation is at most this fraction of its mean. Its
# values then differ only by rounding to float32.
NEARLY_CONSTANT = 1e-7
# A step must reach the first fraction of the expected decrease of the loss. The second is the
# rounding noise of a loss.
DECREASE, ROUNDING = 1e-4, 1e-13


class Newton(Optimizer):
    """Solves a linear layer by Newton's method with conjugate gradients.

    Each epoch has a smaller L2 value. torch's LBFGS is not used, because its line search compares
    losses, whose rounding ends it at gradients of 1e-9. Weights of 512 standardized features then
    differ by 1e-4 for another order of the sum, and here by 1e-10 (L2 of 1e-4, CPU, 2026-11-27).
    """

    def __init__(
        self,
        params: Any,
        *,
        first_l2: Annotated[
            PositiveFloat,
            Doc(
                "L2 of the first epoch, for weights of standardized features: loss + L2 / 2 * |W|^2"
            ),
        ],
        l2_factor: Annotated[
            PositiveFraction, Doc("L2 of an epoch, as a fraction of that of the epoch before")
        ],
        tolerance: Annotated[
            PositiveFloat,
            Doc("norm of the gradient at the end, as a fraction of that without weights"),
        ],
        max_iterations: Annotated[
            Positive, Doc("maximum number of conjugate-gradient iterations of an epoch")
        ],
    ) -> None:
        super().__init__(params, {"lr": 1.0})
        self._first_l2, self._l2_factor = first_l2, l2_factor
        self._tolerance, self._max_iterations = tolerance, max_iterations

    def l2_of(self, epoch: int) -> float:
        return self._first_l2 * self._l2_factor**epoch

    @override
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing, because the module has solved the head before."""

    @torch.no_grad()
    def minimize(
        self, loss: Callable[[Tensor], Tensor], features: Tensor, num_outputs: int, l2: float
    ) -> tuple[Tensor, Tensor, bool]:
        """Minimize the sum over ranks of loss(features @ W.T + b), plus l2 / 2 * |W|^2.

        It starts from W = 0 and b = 0. `features` float64 (n, D) are those of this rank, and `loss`
        takes its outputs (n, `num_outputs`). Every rank must call it, and gets the same result. The
        result is W and b (K, D + 1), the norm of the gradient there, and whether it is within the
        tolerance.
        """
        features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        decay = features.new_full(features.shape[1:], l2)
        decay[-1] = 0
        weights = features.new_zeros(num_outputs, len(decay))
        outputs = features.new_zeros(len(features), num_outputs)
        value, first_norm, num_left = sum_over_ranks(loss(outputs)), None, self._max_iterations
        while True:
            with torch.enable_grad():
                outputs.requires_grad_()
                (slopes,) = torch.autograd.grad(loss(outputs), outputs, create_graph=True)
            gradient = sum_over_ranks(slopes.detach().T @ features) + decay * weights
            norm = gradient.norm()
            first_norm = norm if first_norm is None else first_norm
            target_norm = self._tolerance * first_norm
            is_done = _any(~(norm > target_norm))  # This includes a norm that is not finite.
            if is_done or num_left <= 0:
                return weights, norm, is_done and bool(norm.isfinite())
            curvature = partial(_curvature, slopes, outputs, features, decay)
            precision = torch.maximum(
                norm * (norm / first_norm).sqrt().clamp(max=0.5), target_norm / 10
            )
            direction, num_used = _conjugate_gradients(curvature, gradient, precision, num_left)
            num_left -= num_used
            outputs = outputs.detach()
            change = features @ direction.T
            slope = (gradient * direction).sum()
            length = 2.0
            while True:
                length /= 2
                new_weights = weights + length * direction
                new_value = (
                    sum_over_ranks(loss(outputs + length * change))
                    + (decay * new_weights.square()).sum() / 2
                )
                limit = value + DECREASE * length * slope + ROUNDING * value.abs()
                if _any(new_value <= limit) or length < ROUNDING:
                    break
            weights, outputs, value = new_weights, outputs + length * change, new_value


def _curvature(
    slopes: Tensor, outputs: Tensor, features: Tensor, decay: Tensor, direction: Tensor
) -> Tensor:
    """Return the product of the Hessian matrix over all ranks and a direction."""
    change = features @ direction.T
    (slope_changes,) = torch.autograd.grad(
        slopes, outputs, change, retain_graph=True, materialize_grads=True
    )
    return sum_over_ranks(slope_changes.T @ features) + decay * direction


def _conjugate_gradients(
    curvature: Callable[[Tensor], Tensor], gradient: Tensor, precision: Tensor, max_iterations: int
) -> tuple[Tensor, int]:
    """Return the step to the minimum of the quadratic model, and the number of iterations.

    It ends when the gradient of the model is at most `precision`, or when its curvature is not
    positive.
    """
    step, residual, iteration = torch.zeros_like(gradient), -gradient, 0
    direction, square = residual, residual.square().sum()
    for iteration in range(1, max_iterations + 1):
        product = curvature(direction)
        bend = (direction * product).sum()
        if _any(~(bend > 0)):
            return (step if iteration > 1 else direction), iteration
        step = step + square / bend * direction
        residual = residual - square / bend * product
        before, square = square, residual.square().sum()
        if _any(square.sqrt() <= precision):
            break
        direction = residual + square / before * direction
    return step, iteration


def _any(condition: Tensor) -> bool:
    """Return whether a condition is true on any rank.

    Processors of different types may round it differently.
    """
    return bool(sum_over_ranks(condition.double()) > 0)


class Probe(Classifier):
    """Solves the head of a frozen network for the L2 value of each epoch.

    The optimizer must be a `Newton`. An epoch has one batch, with the features of all training
    images. They are standardized by their mean and standard deviation over all ranks. The solution
    is converted to features that are not standardized.
    """

    chosen_l2: float | None = None  # L2 of the best epoch, once the training has ended
    _has_warned = False

    @property
    def _head(self) -> nn.Linear:
        head = self.net.get_submodule(str(self.net.feature_head))
        assert isinstance(head, nn.Linear), "checked by the network"
        return head

    @override
    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Solve the head for the L2 value of the epoch, and count the samples with it.

        Every rank must call it.
        """
        assert self._step
        assert self._guard
        newton: Any = self.trainer.optimizers[0]
        l2 = newton.l2_of(batch.shard.epoch)
        self._step.gradient_norm, is_converged = fit_head(self._head, self.task, batch, newton, l2)
        if not is_converged and not self._has_warned and self.global_rank == 0:
            self._has_warned = True
            print_error(
                f"The head has not converged for an L2 of {l2:g}: raise optimizer.max_iterations "
                "or optimizer.tolerance, or train fewer epochs."
            )
        self._step.step(is_measured=False)
        with torch.no_grad():
            self._guard.check(self.scaled_loss(batch), batch, self.global_step)
        self.metrics["l2"] = l2
        self.training_log.send({"l2": l2})

    @override
    def on_fit_end(self) -> None:
        epoch = getattr(self.trainer.checkpoint_callback, "best_epoch", None)
        optimizer: Any = self.trainer.optimizers[0]
        self.chosen_l2 = optimizer.l2_of(self.trainer.current_epoch - 1 if epoch is None else epoch)


@torch.no_grad()
def fit_head(
    head: nn.Linear, task: Task, batch: Batch, newton: Newton, l2: float
) -> tuple[Tensor, bool]:
    """Solve `head` for features (B, D) and targets of this rank. Every rank must call it.

    The L2 value applies to the weights of features that are standardized over all ranks, while
    `head` takes features that are not standardized. Returns the norm of the gradient at the end,
    and whether it is within the tolerance.
    """
    features = batch.inputs.double()
    count = features.new_tensor(len(features))
    num_samples = sum_over_ranks(count)
    mean = sum_over_ranks(features.sum(0)) / num_samples
    std = (sum_over_ranks((features - mean).square().sum(0)) / num_samples).sqrt()
    std = torch.where(std > NEARLY_CONSTANT * mean.abs(), std, 1.0)
    weights = checked_losses(
        task, features.new_zeros(len(features), head.out_features), batch
    ).weights
    weight_sum = sum_over_ranks(count if weights is None else weights.sum(dtype=torch.float64))

    def loss(outputs: Tensor) -> Tensor:
        return checked_losses(task, outputs, batch).values.sum() / weight_sum

    solution, norm, is_converged = newton.minimize(
        loss, (features - mean) / std, head.out_features, l2
    )
    weight = solution[:, :-1] / std
    head.weight.copy_(weight)
    head.bias.copy_(solution[:, -1] - weight @ mean)
    return norm, is_converged
