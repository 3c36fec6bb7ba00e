"""Batch norm over the global batch, with the statistics of one process for any split.

It runs on CPU and GPU. The forward pass does one all-gather of (mean, variance, count). The rows
are merged by the pairwise formula of Chan, Golub & LeVeque (1979), "Updating formulae and a
pairwise algorithm for computing sample variances". The backward pass does one all-reduce of (sum
dy, sum dy * xhat), as in Ioffe & Szegedy (2015), section 3. A rank without samples has weight 0 and
takes part in both collectives. The host synchronizes with the GPU only if a shard has at most one
value per channel, to check that the global batch has more. torch.nn.SyncBatchNorm rejects CPU
tensors.

On a GPU, Triton kernels (norm_kernels.py) merge the statistics. In channels_last they also compute
the rest, including an addition and a ReLU that follow.
"""

import functools
import subprocess
import sys
import threading
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from typing_extensions import override

from lockstep.distributed.collectives import add_up, all_gather, world_size
from lockstep.system.internals import BatchNorm, InstanceNorm

# These timm layers normalize by the batch, but are not subclasses of a batch norm.
BY_BATCH = ("EvoNorm2dB0", "EvoNorm2dB1", "EvoNorm2dB2", "InplaceAbn")
# An input is widened in blocks of this many elements: 2 MiB, which stay in the cache.
_BLOCK_ELEMENTS = 1 << 19
_FUSED = (torch.bfloat16, torch.float16, torch.float32)
_building = threading.RLock()
_FIRST_FUSED = (8, 0)  # Compute capability of the first GPUs with bfloat16.


@functools.cache
def _build_kernels() -> ModuleType | None:
    try:
        from lockstep.distributed import norm_kernels

        norm_kernels.try_out()
    except (
        AssertionError,
        ImportError,
        OSError,
        RuntimeError,
        subprocess.SubprocessError,
    ) as error:
        if not dist.is_initialized() or dist.get_rank() == 0:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(
                "lockstep: batch norms use torch's slower kernels, because those of Triton cannot "
                f"be built: {reason}",
                file=sys.stderr,
                flush=True,
            )
        return None
    return norm_kernels


def _kernels(x: Tensor) -> ModuleType | None:
    """Return norm_kernels for a tensor of the current GPU, or None if torch's kernels compute."""
    if not x.is_cuda or x.dtype not in _FUSED or torch.compiler.is_compiling():
        return None
    is_current = x.get_device() == torch.cuda.current_device()
    with _building:  # With virtual shards, several threads come here.
        return (
            _build_kernels()
            if is_current and torch.cuda.get_device_capability() >= _FIRST_FUSED
            else None
        )


def _statistics(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance (C,) of x (B, C, ...), in `dtype`.

    The unused running statistics have this dtype, so no wide copy of x is made.
    """
    if x.dtype == dtype and x.device.type == "cpu":
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    running_statistics = torch.zeros(2, x.shape[1], dtype=dtype, device=x.device)
    return torch.batch_norm_update_stats(x, running_statistics[0], running_statistics[1], 0.0)


def _normalize(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Call F.batch_norm in evaluation mode, without its checks.

    For a small x the checks cost more than the arithmetic.
    """
    return torch.batch_norm(
        x, weight, bias, mean, var, False, 0.0, eps, torch.backends.cudnn.enabled
    )


def _gather_rows(x: Tensor, row: Tensor) -> Tensor:
    """Gather the `row` (mean, variance, count) of every rank.

    Raises ValueError for one value per channel over all ranks, as torch does.
    """
    rows = all_gather(row)
    # No rank has more than one value in this case, so all ranks check.
    if x.numel() <= x.shape[1] and rows[:, -1].sum().item() == 1:
        raise ValueError(
            "Expected more than 1 value per channel when training, got input size "
            f"{torch.Size([1, *x.shape[1:]])}"
        )
    return rows


def _merge_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Merge the rows (mean, variance, count) of all ranks.

    Returns the mean (C,), the variance (C,) and the count (). `rows` is (world_size, 2 C + 1). A
    row whose count is zero contains zeros.
    """
    num_channels = rows.shape[1] // 2
    means, variances, counts = rows.split([num_channels, num_channels, 1], dim=1)
    total = counts.sum()
    weights = counts / total
    mean = (means * weights).sum(0)
    deviations = means - mean
    return mean, torch.addcmul(variances, deviations, deviations).mul_(weights).sum(0), total


def _input_gradient(
    dy: Tensor, x: Tensor, mean: Tensor, var: Tensor, factor: Tensor, expected: Tensor, eps: float
) -> Tensor:
    """Compute factor * (dy - E[dy] - xhat * E[dy * xhat]), rounded once to the dtype of x.

    `expected` (2, C) is E[dy] and E[dy * xhat]. On a CPU, a narrower x is widened a few samples at
    a time. Memory for a wide copy of all of x costs more than the arithmetic.
    """
    bias, weight = (expected * -factor).unbind()
    factor = factor.view([1, -1] + [1] * (x.dim() - 2))
    if x.dtype == mean.dtype or x.device.type != "cpu" or x.numel() <= _BLOCK_ELEMENTS:
        shift = _normalize(x.to(mean.dtype), mean, var, weight, bias, eps)
        return shift.addcmul_(dy.to(mean.dtype), factor).to(x.dtype)
    size = max(1, _BLOCK_ELEMENTS * len(x) // x.numel())
    dx = torch.empty_like(x)
    for dx_block, x_block, dy_block in zip(
        dx.split(size), x.split(size), dy.split(size), strict=True
    ):
        shift = _normalize(x_block.to(mean.dtype), mean, var, weight, bias, eps)
        dx_block.copy_(shift.addcmul_(dy_block.to(mean.dtype), factor))
    return dx


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: BatchNorm
    ) -> Tensor:
        num_channels = x.shape[1]
        count = x.numel() // num_channels
        dtype = torch.promote_types(x.dtype, torch.float32)
        if count:
            mean, var = _statistics(x, dtype)
        else:
            mean = var = torch.zeros(num_channels, dtype=dtype, device=x.device)
        rows = _gather_rows(x, torch.cat([mean, var, mean.new_full((1,), count)]))
        # Triton also merges for other layouts, so that ranks in channels_last have the same bits.
        if (kernels := _kernels(x)) is not None:
            mean, var, total = kernels.merge_statistics(rows, norm).split(
                [num_channels, num_channels, 1]
            )
        else:
            mean, var, total = _merge_rows(rows)
            _track(norm, mean, var, total)
        ctx.parameter_dtype = None if weight is None else weight.dtype
        # The parameters must be as wide as the statistics.
        if weight is not None and weight.dtype == x.dtype and x.dtype != dtype:
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        ctx.save_for_backward(x, weight, mean, var, total)
        ctx.eps = norm.eps
        return _normalize(x, mean, var, weight, bias, norm.eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Compute dx over the global batch, and dw and db of this rank.

        dx = w / std * (dy - E[dy] - xhat * E[dy * xhat]), where E is the mean over the global
        batch.
        """
        x, weight, mean, var, total = ctx.saved_tensors
        inverse_std = (var + ctx.eps).rsqrt()
        if x.numel():
            # The CUDA kernel needs the saved statistics in evaluation mode, too.
            _, dw, db = torch.ops.aten.native_batch_norm_backward(
                dy, x, weight, mean, var, mean, inverse_std, False, ctx.eps, [False, True, True]
            )
        else:
            dw, db = torch.zeros_like(mean), torch.zeros_like(mean)
        dx = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([db, dw]).to(mean.dtype)
            add_up(sums)
            factor = inverse_std if weight is None else inverse_std.mul_(weight)
            dx = _input_gradient(dy, x, mean, var, factor, sums.div_(total).view(2, -1), ctx.eps)
        return (
            dx,
            dw.to(ctx.parameter_dtype) if ctx.needs_input_grad[1] else None,
            db.to(ctx.parameter_dtype) if ctx.needs_input_grad[2] else None,
            None,
        )


def _move(statistic: Tensor, value: Tensor, factor: float | Tensor) -> None:
    """Move a running statistic by `factor` of the way to `value`, which may be wider."""
    if statistic.dtype == value.dtype:
        statistic.lerp_(value, factor)
    else:
        statistic.add_((value - statistic) * factor)


def _track(norm: BatchNorm, mean: Tensor, var: Tensor, total: Tensor) -> None:
    """Count a batch, and move the running statistics toward those of the batch."""
    if (
        norm.running_mean is not None
        and norm.running_var is not None
        and norm.num_batches_tracked is not None
    ):
        norm.num_batches_tracked.add_(1)
        factor = (
            norm.momentum
            if norm.momentum is not None
            else 1.0 / norm.num_batches_tracked.to(mean.dtype)
        )
        unbiased_var = var * (total / (total - 1))
        _move(norm.running_mean, mean, factor)
        _move(norm.running_var, unbiased_var, factor)


def _is_fused(
    norm: BatchNorm, x: Tensor, residual: Tensor | None, *, is_synchronized: bool
) -> bool:
    """Return True if Triton kernels compute this batch.

    torch computes or rejects all other batches.
    """
    if not norm.training or _kernels(x) is None:
        return False
    if x.dim() != 4 or x.shape[1] != norm.num_features:
        return False
    min_size = 0 if is_synchronized else x.shape[1]
    if x.numel() <= min_size or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    if residual is None:
        return True
    return (residual.shape, residual.dtype, residual.stride()) == (x.shape, x.dtype, x.stride())


def _forward(
    norm: BatchNorm, x: Tensor, residual: Tensor | None, relu: bool, is_synchronized: bool
) -> Tensor:
    if _is_fused(norm, x, residual, is_synchronized=is_synchronized):
        gather = _gather_rows if is_synchronized else None
        normalize = cast(Any, _kernels(x)).Normalize
        return normalize.apply(x, residual, norm.weight, norm.bias, norm, relu, gather)
    if is_synchronized:
        y = cast(Tensor, _Normalize.apply(x, norm.weight, norm.bias, norm))
    else:
        y = BatchNorm.forward(norm, x)
    y = y if residual is None else y + residual
    return F.relu(y) if relu else y


class BatchNorm2d(nn.BatchNorm2d):
    """torch's batch norm, which can also add a residual and apply a ReLU.

    On a GPU this takes one pass over the memory. Numerics, parameters and checkpoints are those of
    nn.BatchNorm2d. On a GPU in channels_last, 16-bit values are rounded once at the end, and
    gradients of gradients are rejected.
    """

    @override
    def forward(self, input: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        return _forward(self, input, residual, relu, is_synchronized=False)


class SyncBatchNorm(BatchNorm):
    """Batch norm of any dimension whose training statistics are those of all ranks together.

    In all other respects it is a BatchNorm2d. The input is (B, C, ...) with B >= 0 on each rank. If
    there is one value per channel over all ranks, all of them raise ValueError, as torch does in
    one process. Statistics are computed in float32 or wider.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm needs an input (B, C, ...), got the shape {tuple(input.shape)}."
            )

    @override
    def forward(self, input: Tensor, residual: Tensor | None = None, relu: bool = False) -> Tensor:
        """Normalize `input`, as a collective in training mode."""
        is_synchronized = self.training and world_size() > 1
        if is_synchronized:
            self._check_input_dim(input)
        return _forward(self, input, residual, relu, is_synchronized)


class SyncBatchNormAct(SyncBatchNorm):
    """timm's BatchNormAct2d: batch norm, dropout and activation."""

    drop: nn.Module
    act: nn.Module

    @override
    def forward(self, input: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.act(self.drop(super().forward(input)))


class ExactBatchNorm:
    """Makes every batch norm of a model a SyncBatchNorm.

    Call `apply(model)` before training, and `revert(model)` after it. The class is swapped in
    place, so that parameters, names, hooks and checkpoints stay the same.
    """

    def __init__(self) -> None:
        self._original: dict[nn.Module, type[nn.Module]] = {}

    def apply(self, model: nn.Module) -> nn.Module:
        """Swap the classes, and return the model.

        Call it before the model is wrapped for several processes.
        """
        for module in model.modules():
            if isinstance(module, BatchNorm) and not isinstance(module, SyncBatchNorm):
                exact = _exact_class(type(module))
                assert exact is not None, type(module)  # `refuse_inexact_norms` rejects others.
                self._original[module] = type(module)
                module.__class__ = exact
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        """Restore the original classes, and return the model."""
        for module, original in self._original.items():
            module.__class__ = original
        self._original.clear()
        return model


def _exact_class(norm: type[BatchNorm]) -> type[SyncBatchNorm] | None:
    """Return the synchronized class for a batch norm class, or None for custom arithmetic."""
    if issubclass(norm, SyncBatchNorm):
        return norm
    if norm.forward in (BatchNorm.forward, nn.SyncBatchNorm.forward, BatchNorm2d.forward):
        return SyncBatchNorm
    is_timms = norm.__module__.startswith("timm.") and norm.__name__ == "BatchNormAct2d"
    return SyncBatchNormAct if is_timms else None


def refuse_inexact_norms(net: nn.Module) -> None:
    """Raise ValueError for a norm whose statistics depend on the shard of the rank.

    Statistics in training and in evaluation both count.
    """
    for name, module in net.named_modules():
        kind, problem = type(module), ""
        if isinstance(module, BatchNorm) and not module.track_running_stats:
            problem = (
                "has track_running_stats=False, so its evaluation depends on the workers: "
                "use track_running_stats=True"
            )
        elif isinstance(module, BatchNorm) and _exact_class(type(module)) is None:
            problem = (
                "is a batch norm with a custom forward(), whose statistics would be those of one "
                "worker: use torch's"
            )
        elif isinstance(module, InstanceNorm) and module.track_running_stats:
            problem = (
                "has running statistics of one worker: use track_running_stats=False, "
                "or a batch norm"
            )
        elif kind.__name__ in BY_BATCH:
            problem = (
                "normalizes by the batch of one worker: use a batch norm of torch, or LayerNorm"
            )
        if problem:
            raise ValueError(f"The layer {name!r} ({kind.__name__}) {problem}.")
