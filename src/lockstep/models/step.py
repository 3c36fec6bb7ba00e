"""One optimizer step: backward, clipping, update and schedule, and the guard against a loss that is not finite."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lockstep.distributed.batch import Batch
from lockstep.distributed.collectives import gather_objects, is_distributed
from lockstep.distributed.partition import Shard
from lockstep.models.parameter_groups import ParameterGroups
from lockstep.runs.folder import FailedElsewhere
from lockstep.system import internals

MOST_PENDING = 8  # steps that the host may be ahead of the device
HINT = (
    "Try a new run with a lower optimizer.lr, a smaller trainer.gradient_clip_norm or trainer.precision=float32; "
    "init_from=... starts it from the last checkpoint of this run."
)


class OptimizerStep:
    """Runs the backward passes of micro-batches, and the step after the last one, for a module in a fit."""

    def __init__(self, module: L.LightningModule, groups: ParameterGroups, *, clip_norm: float | None) -> None:
        trainer = module.trainer
        self._groups = groups
        self._module = module
        self._clip_norm = clip_norm
        self.gradient_norm: Tensor | None = None  # of the last measured step, before clipping
        self._optimizer = trainer.optimizers[0]
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._scheduler: Any = trainer.lr_scheduler_configs[0].scheduler
        self._interval = trainer.lr_scheduler_configs[0].interval
        self._strategy: Any = trainer.strategy
        self._progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        self._callbacks: list[L.Callback] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]

    def backward(self, loss: Tensor, *, is_first: bool, is_last: bool) -> None:
        """Add the gradient of `loss`; ranks exchange their sums in the backward pass of the last micro-batch.

        The gradients of the last step are freed only here: a forward pass would fragment their memory, and a CPU then
        spends several percent of its time on new pages.
        """
        if is_first:
            self._call("on_before_zero_grad", self._optimizer)
            self._optimizer.zero_grad()
        if is_last:
            self._strategy.pre_backward(loss)  # DDP exchanges gradients only after this call
        self._call("on_before_backward", loss)
        loss.backward()
        self._call("on_after_backward")

    def step(self, *, is_measured: bool, factor: Tensor | None = None) -> None:
        """Update the weights and step the schedule; if `is_measured`, keep the norm of the whole gradient.

        `factor`, the same on all ranks, multiplies the gradient first.
        """
        self._groups.drop_frozen()
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if factor is not None:
            for gradient in gradients:
                gradient.mul_(factor)
        if self._clip_norm is not None:
            self.gradient_norm = clip_grad_norm_(self._parameters, self._clip_norm)
        elif is_measured:
            self.gradient_norm = get_total_norm(gradients)
        self._call("on_before_optimizer_step", self._optimizer)
        self._update()
        is_on_plateau = isinstance(self._scheduler, ReduceLROnPlateau)
        if not is_on_plateau and (self._interval == "step" or self._module.trainer.is_last_batch):
            self._scheduler.step()

    def validated(self, monitor: str, metrics: Mapping[str, Any]) -> None:
        """Step a ReduceLROnPlateau with rank 0's value of `monitor`, after a validation. Every rank must call it.

        Raises ValueError if there is no such value.
        """
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            return
        value = gather_objects(float(metrics[monitor]) if monitor in metrics else None)[0]
        if value is None:
            raise ValueError(f"The schedule needs {monitor}, which the validation has not measured.")
        self._scheduler.step(value)

    def _update(self) -> None:
        """Step the optimizer with each group's factor of the learning rate, counted as Lightning counts steps.

        The schedule does not see the factors: one that sets its own rates, such as OneCycleLR, is multiplied, too.
        """
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * group.get("lr_factor", 1)
        self._progress.increment_ready()
        self._optimizer.step()
        self._progress.increment_completed()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _call(self, hook: str, *values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self._module.trainer, self._module, *values)


class NonFiniteLoss(RuntimeError):
    """A loss of this rank is NaN or infinite; the message has the step and the samples."""


class _Samples(NamedTuple):
    indices: Tensor
    shard: Shard


class _Pending(NamedTuple):
    values: Tensor  # 1 if this rank's loss is bad, and 1 + a rank with a bad loss, else 0; valid after `copied`
    copied: Any  # a CUDA event, or None
    step: int
    samples: list[_Samples]


class LossGuard:
    """Ends a run whose loss is NaN or infinite, before that step changes the weights or a checkpoint.

    A rank with such a loss raises NonFiniteLoss, the others raise FailedElsewhere.

    On a CPU it raises before the backward pass. On a GPU, reading the loss would wait for the device in every step.
    There all ranks reduce a flag on the device, by which the fused optimizer skips the update (`found_inf`, made for
    torch's GradScaler). The host reads the flag some steps later, all ranks after the same step: a rank that exited
    earlier would block the others in a collective. `is_deferred` selects that way; None: on a GPU, if the optimizer
    can.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device, *, rank: int, is_deferred: bool | None = None
    ) -> None:
        can_skip = internals.can_skip_update(optimizer)
        self._is_deferred = can_skip and device.type == "cuda" if is_deferred is None else is_deferred
        self._optimizer: Any = optimizer
        self._rank = rank
        self._is_bad = torch.zeros((), device=device)
        self._samples: list[_Samples] = []  # no batches: their pixels would stay on the device
        self._pending: deque[_Pending] = deque()

    def check(self, loss: Tensor, batch: Batch, step: int) -> None:
        """Check the loss of a micro-batch of optimizer step `step`, counted from 1."""
        samples = _Samples(batch.indices, batch.shard)
        if self._is_deferred:
            is_bad = (~torch.isfinite(loss.detach())).to(self._is_bad.dtype)
            torch.maximum(self._is_bad, is_bad, out=self._is_bad)
            self._samples.append(samples)
        elif not math.isfinite(loss.item()):
            raise self._own_error(step, [samples])

    def protect(self, step: int) -> None:
        """Make the optimizer skip its next update if any rank's loss of this global batch is bad."""
        if not self._is_deferred:
            return
        bad_rank = self._is_bad * (self._rank + 1)  # 0: none
        if is_distributed():
            dist.all_reduce(bad_rank, dist.ReduceOp.MAX)
        self._optimizer.found_inf = bad_rank.clamp(max=1)
        self._pending.append(_Pending(*_to_host(torch.stack([self._is_bad, bad_rank])), step, self._samples))
        self._is_bad = torch.zeros_like(self._is_bad)
        self._samples = []
        if len(self._pending) > MOST_PENDING:
            self._read()

    def wait(self) -> None:
        """Read all pending flags, before a checkpoint is written. All ranks call it after the same step."""
        while self._pending:
            self._read()

    def _read(self) -> None:
        pending = self._pending.popleft()
        if pending.copied is not None:
            pending.copied.synchronize()
        is_own_bad, bad_rank = (int(value) for value in pending.values.tolist())
        if is_own_bad:
            raise self._own_error(pending.step, pending.samples)
        if bad_rank:
            raise FailedElsewhere(f"The loss is not finite in optimizer step {pending.step} on rank {bad_rank - 1}.")

    def _own_error(self, step: int, samples: list[_Samples]) -> NonFiniteLoss:
        first, last = samples[0].shard, samples[-1].shard
        several = f"es {first.micro_step + 1} to" if len(samples) > 1 else ""
        indices = [index for part in samples for index in part.indices.tolist()]
        return NonFiniteLoss(
            f"The loss is not finite in optimizer step {step} (epoch {first.epoch + 1}, micro-batch{several} "
            f"{last.micro_step + 1}) on rank {self._rank}. {HINT} Nothing of this step was applied. "
            f"Training samples of the shard: {indices}"
        )


def _to_host(value: Tensor) -> tuple[Tensor, Any]:
    """Copy a tensor to the host; return the copy, and the event after which it is complete, None on a CPU."""
    if value.device.type != "cuda":
        return value, None
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event
