"""One optimizer step: backward, clipping, the update, the schedule, and a guard in front of the weights."""

import math
from collections import deque
from typing import Any, NamedTuple, Protocol

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch import distributed as dist
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer

from lockstep.parallel.partition import Share
from lockstep.parallel.reduce import is_distributed

AROUND_THE_STEP = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
MOST_PENDING = 8


class OptimizerStep:
    """Backward passes of micro-batches and the step after the last of them, on behalf of a module in a fit.

    Callbacks that have hooks around the step are called; asking all others, as Lightning does, costs more than the
    step of a small network.
    """

    def __init__(self, module: L.LightningModule, *, clip_norm: float | None) -> None:
        trainer = module.trainer
        self._module = module
        self._clip_norm = clip_norm
        self.gradient_norm: Tensor | None = None  # of the last measured step, before clipping
        self._optimizer = trainer.optimizers[0]
        self._parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._scheduler: Any = trainer.lr_scheduler_configs[0].scheduler
        self._strategy: Any = trainer.strategy
        # what counts trainer.global_step in Lightning's manual optimization
        self._progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        self._listeners = {
            hook: [
                callback
                for callback in trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
                if is_overridden(hook, callback, parent=L.Callback)
            ]
            for hook in AROUND_THE_STEP
        }

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

    def step(self, *, is_measured: bool) -> None:
        """Change the weights, and go on in the schedule; where `is_measured`, keep the norm of the whole gradient."""
        if self._clip_norm is not None:
            self.gradient_norm = clip_grad_norm_(self._parameters, self._clip_norm)
        elif is_measured:
            self.gradient_norm = get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        self._tell("on_before_optimizer_step", self._optimizer)
        self._progress.increment_ready()
        self._optimizer.step()
        self._progress.increment_completed()
        self._scheduler.step()

    def _tell(self, hook: str, *values: Any) -> None:
        for callback in self._listeners[hook]:
            getattr(callback, hook)(self._module.trainer, self._module, *values)


class NonFiniteLoss(RuntimeError):
    """Names the step and the samples: what a person needs to look for the cause."""


class Samples(Protocol):
    """What the guard tells of a batch."""

    @property
    def indices(self) -> Tensor:
        """Positions in the data set, int64 (B,)."""
        ...

    @property
    def share(self) -> Share:
        """Which part of the micro-batch these are."""
        ...


class _Look(NamedTuple):
    is_bad: Tensor  # (own loss, that of any rank): on the host once `copied` is over
    copied: Any
    step: int
    batches: list[Samples]


class LossGuard:
    """Raises NonFiniteLoss for a loss that is NaN or infinite; no rank applies that step, and checkpoints stay.

    On a CPU it raises before the backward pass: the other ranks cannot finish the step without this one. On a GPU
    asking for the loss would wait for the device in every step. There the answer stays on the device, all ranks take
    the worst one, the fused optimizer skips the update by it (`found_inf`, made for torch's GradScaler), and the host
    reads it some steps later. `is_deferred` chooses that way; None: on a GPU with an optimizer that can.
    """

    def __init__(
        self, optimizer: Optimizer, device: torch.device, *, rank: int, is_deferred: bool | None = None
    ) -> None:
        can_skip = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self._is_deferred = can_skip and device.type == "cuda" if is_deferred is None else is_deferred
        self._optimizer: Any = optimizer
        self._rank = rank
        self._is_bad = torch.zeros((), device=device)
        self._batches: list[Samples] = []
        self._pending: deque[_Look] = deque()

    def look_at(self, loss: Tensor, batch: Samples, step: int) -> None:
        """Look at the loss of a micro-batch of optimizer step `step`, counted from 1."""
        if self._is_deferred:
            is_bad = (~torch.isfinite(loss.detach())).to(self._is_bad.dtype)
            torch.maximum(self._is_bad, is_bad, out=self._is_bad)
            self._batches.append(batch)
        elif not math.isfinite(loss.item()):
            raise self._error(step, [batch])

    def protect(self, step: int) -> None:
        """Have the optimizer skip its next update if any rank's loss of this global batch is bad."""
        if not self._is_deferred:
            return
        of_any = self._is_bad.clone()
        if is_distributed():
            dist.all_reduce(of_any, dist.ReduceOp.MAX)
        self._optimizer.found_inf = of_any
        self._pending.append(_Look(*_to_host(torch.stack([self._is_bad, of_any])), step, self._batches))
        self._is_bad = torch.zeros_like(self._is_bad)
        self._batches = []
        while self._pending and (len(self._pending) > MOST_PENDING or _is_over(self._pending[0].copied)):
            self._read()

    def wait(self) -> None:
        """Read all answers: before a checkpoint is written."""
        while self._pending:
            self._read()

    def _read(self) -> None:
        look = self._pending.popleft()
        if look.copied is not None:
            look.copied.synchronize()
        is_own_bad, is_any_bad = look.is_bad.tolist()
        if is_any_bad:
            raise self._error(look.step, look.batches if is_own_bad else [])

    def _error(self, step: int, batches: list[Samples]) -> NonFiniteLoss:
        """`batches`: those of this rank that may have it, none where another rank has."""
        text = f"The loss is not finite in optimizer step {step} "
        if batches:
            parts = [f"epoch {batch.share.epoch + 1}, micro-batch {batch.share.micro_step + 1}" for batch in batches]
            samples = [index for batch in batches for index in batch.indices.tolist()]
            text += f"({'; '.join(parts)}) on rank {self._rank}. Training samples of the share: {samples}. "
        else:
            text += "on another rank. "
        return NonFiniteLoss(
            f"{text}Nothing of this step was applied. A lower optimizer.lr, trainer.gradient_clip_norm=1 or "
            "trainer.precision=float32 may help."
        )


def _to_host(value: Tensor) -> tuple[Tensor, Any]:
    """A copy on the host, and the event after which it is there; None: it is there."""
    if value.device.type != "cuda":
        return value, None
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return copy, event


def _is_over(event: Any) -> bool:
    return event is None or event.query()
