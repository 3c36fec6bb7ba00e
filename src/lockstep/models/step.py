"""One optimizer step: backward, clipping, the update, the schedule, and a guard in front of the weights."""

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
    "In a new run a lower optimizer.lr, a smaller trainer.gradient_clip_norm or trainer.precision=float32 may help; "
    "init_from=... lets it start with the weights of this one's last checkpoint."
)


class OptimizerStep:
    """Backward passes of micro-batches and the step after the last of them, on behalf of a module in a fit.

    Callbacks are called without the records of a profiler, which with Lightning's wrapper of the optimizer cost more
    than the step of a small network.
    """

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

        Before the first one the gradients of the last step go, and not sooner: a forward pass in their memory leaves
        it in pieces, and a CPU then spends several percent of its time on new pages.
        """
        if is_first:
            self._tell("on_before_zero_grad", self._optimizer)
            for parameter in self._parameters:  # what zero_grad() does, without its records for profilers
                parameter.grad = None
        if is_last:
            self._strategy.pre_backward(loss)  # DDP listens to the gradients only after this
        self._tell("on_before_backward", loss)
        loss.backward()
        self._tell("on_after_backward")

    def step(self, *, is_measured: bool, factor: Tensor | None = None) -> None:
        """Change the weights, and go on in the schedule; where `is_measured`, keep the norm of the whole gradient.

        `factor`, the same on all ranks, multiplies the gradient first.
        """
        self._groups.drop_frozen()
        if factor is not None:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        if self._clip_norm is not None:
            self.gradient_norm = clip_grad_norm_(self._parameters, self._clip_norm)
        elif is_measured:
            self.gradient_norm = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        self._tell("on_before_optimizer_step", self._optimizer)
        self._update()
        is_by_value = isinstance(self._scheduler, ReduceLROnPlateau)
        if not is_by_value and (self._interval == "step" or self._module.trainer.is_last_batch):
            self._scheduler.step()

    def validated(self, monitor: str, metrics: Mapping[str, Any]) -> None:
        """Go on in a schedule that asks for the value of `monitor`, after a validation. Every rank must call it.

        All ranks take the value of rank 0. Raises ValueError where there is none.
        """
        if not isinstance(self._scheduler, ReduceLROnPlateau):
            return
        value = gather_objects(float(metrics[monitor]) if monitor in metrics else None)[0]
        if value is None:
            raise ValueError(f"The schedule goes by {monitor}, which the validation has not measured.")
        self._scheduler.step(value)

    def _update(self) -> None:
        """The update, for which each group has its part of the learning rate, counted as Lightning counts steps.

        The schedule does not see the factors: also one that sets its own rates, such as OneCycleLR, is multiplied.
        """
        rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * group.get("lr_factor", 1)
        self._progress.increment_ready()
        self._optimizer.step()
        self._progress.increment_completed()
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _tell(self, hook: str, *values: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self._module.trainer, self._module, *values)


class NonFiniteLoss(RuntimeError):
    """Names the step and the samples: what a person needs to look for the cause."""


class _Seen(NamedTuple):
    indices: Tensor
    shard: Shard


class _Answer(NamedTuple):
    values: Tensor  # whether this rank's loss is bad, and 1 + rank of a culprit, else 0; there once `copied` is over
    copied: Any
    step: int
    samples: list[_Seen]


class LossGuard:
    """Ends a run whose loss is NaN or infinite; no rank applies that step, and checkpoints stay.

    A rank with such a loss raises NonFiniteLoss, the others FailedElsewhere.

    On a CPU it raises before the backward pass: the other ranks cannot finish the step without this one. On a GPU
    asking for the loss would wait for the device in every step. There the answer stays on the device, all ranks learn
    of a culprit, the fused optimizer skips the update by it (`found_inf`, made for torch's GradScaler), and the host
    reads the answer some steps later: all ranks after the same step, because a rank that left earlier would let the
    others wait for it in a collective. `is_deferred` chooses that way; None: on a GPU with an optimizer that can.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device, *, rank: int, is_deferred: bool | None = None
    ) -> None:
        can_skip = internals.can_skip_update(optimizer)
        self._is_deferred = can_skip and device.type == "cuda" if is_deferred is None else is_deferred
        self._optimizer: Any = optimizer
        self._rank = rank
        self._is_bad = torch.zeros((), device=device)
        self._samples: list[_Seen] = []  # not batches: their pixels would stay on the device until an answer is read
        self._pending: deque[_Answer] = deque()

    def look_at(self, loss: Tensor, batch: Batch, step: int) -> None:
        """Look at the loss of a micro-batch of optimizer step `step`, counted from 1."""
        samples = _Seen(batch.indices, batch.shard)
        if self._is_deferred:
            is_bad = (~torch.isfinite(loss.detach())).to(self._is_bad.dtype)
            torch.maximum(self._is_bad, is_bad, out=self._is_bad)
            self._samples.append(samples)
        elif not math.isfinite(loss.item()):
            raise self._own_error(step, [samples])

    def protect(self, step: int) -> None:
        """Have the optimizer skip its next update if any rank's loss of this global batch is bad."""
        if not self._is_deferred:
            return
        culprit = self._is_bad * (self._rank + 1)  # 0 is nobody
        if is_distributed():
            dist.all_reduce(culprit, dist.ReduceOp.MAX)
        self._optimizer.found_inf = culprit.clamp(max=1)
        self._pending.append(_Answer(*_to_host(torch.stack([self._is_bad, culprit])), step, self._samples))
        self._is_bad = torch.zeros_like(self._is_bad)
        self._samples = []
        if len(self._pending) > MOST_PENDING:
            self._read()

    def wait(self) -> None:
        """Read all answers: before a checkpoint is written. All ranks call it after the same step."""
        while self._pending:
            self._read()

    def _read(self) -> None:
        answer = self._pending.popleft()
        if answer.copied is not None:
            answer.copied.synchronize()
        is_own_bad, culprit = (int(value) for value in answer.values.tolist())
        if is_own_bad:
            raise self._own_error(answer.step, answer.samples)
        if culprit:
            raise FailedElsewhere(f"The loss is not finite in optimizer step {answer.step} on rank {culprit - 1}.")

    def _own_error(self, step: int, samples: list[_Seen]) -> NonFiniteLoss:
        """`samples` are those of this rank's micro-batches."""
        first, last = samples[0].shard, samples[-1].shard
        several = f"es {first.micro_step + 1} to" if len(samples) > 1 else ""
        indices = [index for seen in samples for index in seen.indices.tolist()]
        return NonFiniteLoss(
            f"The loss is not finite in optimizer step {step} (epoch {first.epoch + 1}, micro-batch{several} "
            f"{last.micro_step + 1}) on rank {self._rank}. {HINT} Nothing of this step was applied. "
            f"Training samples of the shard: {indices}"
        )


def _to_host(value: Tensor) -> tuple[Tensor, Any]:
    """A copy on the host, and the event after which it is there; None: it is there."""
    if value.device.type != "cuda":
        return value, None
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event
