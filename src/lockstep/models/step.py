"""Run an optimizer step, and guard against a loss that is not finite."""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import FailedElsewhere, gather_objects, is_distributed
from lockstep.distributed.partition import Shard
from lockstep.models.loss_scale import LossScale
from lockstep.models.parameter_groups import ParameterGroups
from lockstep.system import internals

MAX_PENDING_STEPS = 8  # steps that the host may be ahead of the device
# Below this scale, float16 represents even fewer small gradients than without a scale.
MIN_LOSS_SCALE = 1.0


class OptimizerStep:
    """Runs the backward passes of micro-batches, and the optimizer step after the last one.

    `loss_scale` is None without float16. It multiplies the loss of every micro-batch of a step. A
    step whose gradients overflow is a step of the schedule, as in torch and Lightning, but does not
    update anything.
    """

    def __init__(
        self,
        module: LightningModule,
        groups: ParameterGroups,
        *,
        clip_norm: float | None,
        loss_scale: LossScale | None = None,
    ) -> None:
        trainer = module.trainer
        self._groups = groups
        self._module = module
        self._clip_norm = clip_norm
        self._loss_scale = loss_scale
        # This is the norm of the last measured step, before clipping.
        self.gradient_norm: Tensor | None = None
        self._optimizer = trainer.optimizers[0]
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        # As far as this session knows, the optimizer has no state of these parameters yet.
        self._new = set(self._parameters)
        self._scheduler: Any = trainer.lr_scheduler_configs[0].scheduler
        self._interval = trainer.lr_scheduler_configs[0].interval
        self._strategy: Any = trainer.strategy
        self._world_size = trainer.world_size
        self._progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        self._callbacks: list[Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]

    def backward(self, loss: Tensor, *, is_first: bool, is_last: bool) -> None:
        """Add the gradient of `loss`, which is all-reduced with that of the last micro-batch.

        The gradients of the last step are freed only here. A forward pass would fragment their
        memory, and a CPU would then spend several percent of its time on new pages.
        """
        if is_first:
            self._call("on_before_zero_grad", self._optimizer)
            self._optimizer.zero_grad()
        if is_last:
            self._strategy.pre_backward(loss)  # DDP all-reduces gradients only after this call.
        if self._loss_scale is not None:
            # Without the factor for DDP's mean, the gradients of samples are as large as on one
            # rank.
            loss = self._loss_scale.scale(loss / self._world_size)
        self._call("on_before_backward", loss)
        loss.backward()
        if is_last:
            self.finish_backward(loss)
        self._call("on_after_backward")

    def finish_backward(self, loss: Tensor) -> None:
        self._strategy.post_backward(loss)

    def finish_gradient(self, factor: Tensor | float | None = None) -> None:
        """Drop the gradients of frozen parameters, unscale the others, and multiply by `factor`.

        `factor` is the same on all ranks.
        """
        self._groups.drop_frozen()
        gradients = self._gradients()
        if self._loss_scale is not None and gradients:
            self._loss_scale.unscale(self._optimizer)
            if self._world_size > 1:
                factor = self._world_size * (1.0 if factor is None else factor)
        if factor is not None:
            for gradient in gradients:
                gradient.mul_(factor)

    def step(self, *, is_measured: bool) -> None:
        """Update the weights and step the schedule.

        If `is_measured`, the norm of the complete gradient is stored.
        """
        if self._clip_norm is not None:
            self.gradient_norm = clip_grad_norm_(self._parameters, self._clip_norm)
        elif is_measured:
            self.gradient_norm = get_total_norm(self._gradients())
        self._call("on_before_optimizer_step", self._optimizer)
        self._update()
        is_on_plateau = isinstance(self._scheduler, ReduceLROnPlateau)
        if not is_on_plateau and (self._interval == "step" or self._module.trainer.is_last_batch):
            self._scheduler.step()

    def step_plateau(self, monitor: str, metrics: Mapping[str, Any]) -> None:
        """Step a ReduceLROnPlateau with rank 0's value of `monitor`, after a validation.

        Every rank must call it. Raises ValueError if there is no such value.
        """
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            return
        value = gather_objects(float(metrics[monitor]) if monitor in metrics else None)[0]
        if value is None:
            raise ValueError(
                f"The schedule needs {monitor}, which the validation has not measured."
            )
        self._scheduler.step(value)

    def _update(self) -> None:
        """Step the optimizer with the learning-rate factor of each group.

        Steps are counted as Lightning does. The schedule does not see the factors. A schedule that
        sets its own rates, such as OneCycleLR, is multiplied, too.
        """
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * group.get("lr_factor", 1)
        self._progress.increment_ready()
        new_parameters = {parameter for parameter in self._new if parameter.grad is not None}
        if not self._is_skipped(new_parameters):
            self._start_momentum(new_parameters)
            internals.step_in_memory_order(self._optimizer)
            self._new -= new_parameters
        self._progress.increment_completed()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _start_momentum(self, new_parameters: set[Tensor]) -> None:
        """Give a momentum of zeros to parameters whose first gradient comes late.

        Without it, the fused SGD fails.
        """
        optimizer_state = self._optimizer.state
        for group in self._optimizer.param_groups if new_parameters else ():
            late_parameters = new_parameters.intersection(group["params"])
            states = [optimizer_state[p] for p in group["params"] if p in optimizer_state]
            has_momentum = any(state.get("momentum_buffer") is not None for state in states)
            if group.get("fused") and has_momentum:
                for parameter in late_parameters - optimizer_state.keys():
                    optimizer_state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def _is_skipped(self, new_parameters: set[Tensor]) -> bool:
        """Return whether gradients overflowed and the optimizer cannot skip its update.

        Finding out waits for the GPU. A fused optimizer can skip an update, but not the first one
        of a parameter. torch's SGD (2.15) would then store uninitialized memory as momentum.
        """
        if self._loss_scale is None or (
            internals.can_skip_update(self._optimizer) and not new_parameters
        ):
            return False
        return bool(self._loss_scale.overflowed.item())

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    def _call(self, hook: str, *values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self._module.trainer, self._module, *values)


class _Samples(NamedTuple):
    indices: Tensor
    shard: Shard


class NonFiniteLoss(RuntimeError):
    """An error for a loss of this rank that is NaN or infinite. The second line has the samples."""

    def __init__(self, step: int, rank: int, samples: list[_Samples]) -> None:
        first_shard, last_shard = samples[0].shard, samples[-1].shard
        several = f"es {first_shard.micro_step + 1} to" if len(samples) > 1 else ""
        position = (
            f"epoch {first_shard.epoch + 1}, micro-batch{several} {last_shard.micro_step + 1}"
        )
        indices = [index for micro_batch in samples for index in micro_batch.indices.tolist()]
        message = f"The loss is not finite in optimizer step {step} ({position}) on rank {rank}."
        super().__init__(f"{message}\nTraining samples of the shard: {indices}")


class NonFiniteGradient(RuntimeError):
    """An error for gradients that overflow float16 at every scale of the loss."""


class _Pending(NamedTuple):
    step: int
    values: Tensor  # valid after `copied`
    copied: Any  # a CUDA event, or None on a CPU
    use: Callable[[list[float]], None]


class LossGuard:
    """Ends a run whose loss is NaN or infinite, before that step changes weights or a checkpoint.

    A rank with such a loss raises NonFiniteLoss, and the others raise FailedElsewhere.

    On a CPU, the error is raised before the backward pass. On a GPU, reading the loss would wait
    for the device in every step. Instead, all ranks reduce a flag on the device, by which the fused
    optimizer skips the update (`found_inf`, made for torch's GradScaler). The host reads the flag
    some steps later. All ranks do so after the same step, because a rank that exited earlier would
    block the others in a collective. `is_deferred` selects this way. If it is None, this way is
    used on a GPU if the optimizer supports it. Other values of a step are read in the same way, by
    `defer`.

    Steps that `loss_scale` skips are not bad losses. The host reads their number in the same way.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        device: torch.device,
        *,
        rank: int,
        is_deferred: bool | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        self._can_skip = internals.can_skip_update(optimizer)
        self._is_deferred = (
            self._can_skip and device.type == "cuda" if is_deferred is None else is_deferred
        )
        self._optimizer: Any = optimizer
        self._rank = rank
        self._loss_scale = loss_scale
        self._is_bad = torch.zeros((), device=device)
        # Batches are not stored, because their pixels would stay on the device.
        self._samples: list[_Samples] = []
        self._pending: deque[_Pending] = deque()
        self._rows = (
            _host_rows(2 if loss_scale is None else 4)
            if device.type == "cuda"
            else itertools.repeat(None)
        )

    def check(self, loss: Tensor, batch: Batch, step: int) -> None:
        """Check the loss of a micro-batch of optimizer step `step`, counted from 1.

        Raises NonFiniteLoss at once if the check is not deferred.
        """
        samples = _Samples(batch.indices, batch.shard)
        if self._is_deferred:
            is_bad = (~torch.isfinite(loss.detach())).to(self._is_bad.dtype)
            torch.maximum(self._is_bad, is_bad, out=self._is_bad)
            self._samples.append(samples)
        elif not math.isfinite(loss.item()):
            raise NonFiniteLoss(step, self._rank, [samples])

    def protect(self, step: int) -> None:
        """Make the optimizer skip its next update if a loss of any rank is bad.

        It is also skipped if gradients overflow.
        """
        scale = self._loss_scale
        if not self._is_deferred and scale is None:
            return
        bad_rank = self._is_bad * (self._rank + 1)  # 0 means that no rank has a bad loss.
        if is_distributed():
            dist.all_reduce(bad_rank, dist.ReduceOp.MAX)
        if self._can_skip:
            is_bad = bad_rank.clamp(max=1)
            self._optimizer.found_inf = (
                is_bad if scale is None else torch.maximum(is_bad, scale.overflowed)
            )
        flags = torch.stack([self._is_bad, bad_rank, *(() if scale is None else scale.facts())])
        judge = partial(self._judge, step, self._samples)
        self._pending.append(_Pending(step, *_copy_to_host(flags, next(self._rows)), judge))
        self._is_bad = torch.zeros_like(self._is_bad)
        self._samples = []
        self._read(step - MAX_PENDING_STEPS)

    def defer(self, step: int, values: Tensor, use: Callable[[list[float]], None]) -> None:
        """Call `use` with `values` of `step`, once its loss is known to be good.

        All ranks call it after the same step. `use` is called at once if nothing is deferred.
        `values` must not change later.
        """
        self._pending.append(_Pending(step, *_copy_to_host(values), use))
        if not self._is_deferred:
            self.wait()

    def wait(self) -> None:
        """Read everything that is pending, before a checkpoint is written.

        All ranks call it after the same step.
        """
        self._read(math.inf)

    def _read(self, last_step: float) -> None:
        while self._pending and self._pending[0].step <= last_step:
            pending = self._pending.popleft()
            if pending.copied is not None:
                pending.copied.synchronize()
            pending.use(pending.values.tolist())

    def _judge(self, step: int, samples: list[_Samples], flags: list[float]) -> None:
        """Raise the error of a bad step.

        The first of `flags` is 1 if this rank's loss is bad. The second is 1 + a rank with a bad
        loss, or 0. The others are facts of the loss scale.
        """
        is_own_bad, bad_rank, *facts = flags
        if is_own_bad:
            raise NonFiniteLoss(step, self._rank, samples)
        if bad_rank:
            raise FailedElsewhere(
                f"The loss is not finite in optimizer step {step} on rank {bad_rank - 1:.0f}."
            )
        if self._loss_scale is not None:
            self._loss_scale.read(*facts)
            if self._loss_scale.value < MIN_LOSS_SCALE:
                # Rank 0 reports for all ranks, which read the same scale after the same step.
                kind = FailedElsewhere if self._rank else NonFiniteGradient
                raise kind(
                    f"Gradients overflow float16 in optimizer step {step} though the scale of the "
                    "loss has fallen below 1. Use trainer.precision=float32 in a new run, or "
                    "bfloat16."
                )


# A row is page-locked memory, and the CUDA event after which a copy into it is complete.
_Row = tuple[Tensor, Any]


def _host_rows(size: int) -> Iterator[_Row | None]:
    """Cycle through as many rows as can be pending, because allocating costs more than a copy."""
    rows = torch.empty(MAX_PENDING_STEPS + 1, size, pin_memory=True)
    return itertools.cycle([(row, torch.cuda.Event()) for row in rows])


def _copy_to_host(values: Tensor, row: _Row | None = None) -> _Row:
    """Copy a tensor from a GPU to the host, into `row` or into new memory.

    The event is None on a CPU.
    """
    if values.device.type != "cuda":
        return values, None
    copy, event = row or (
        torch.empty(values.shape, dtype=values.dtype, pin_memory=True),
        torch.cuda.Event(),
    )
    copy.copy_(values, non_blocking=True)
    event.record()
    return copy, event
