"""Triton kernels of batch norm + residual + ReLU in training, for CUDA tensors.

Tensors are (B, C, H, W) in channels_last. The kernels read a tensor as a matrix x[i, j] of m rows
and c channels, where m = B * H * W. They read it in tiles of `rows` x `channels`, compute in
float32 and round once. Sums have a fixed order, without atomics, so the same input has the same
bits on every GPU. Statistics are rows (mean, variance, count) of 2 c + 1 numbers, as in
batch_norm.py. Nothing waits for the GPU.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOperatorIssue=false
# The kernels of Triton are not the functions they are written as.
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from lockstep.distributed.collectives import sum_over_ranks
from lockstep.system.internals import BatchNorm

# Elements and maximum number of channels of a tile, for kernels that map each value and for those
# that sum values.
EACH, REDUCED = (4096, 64), (2048, 32)
# A reduction uses at most this many programs. It is the same for every GPU, because bits depend on
# it.
NUM_PROGRAMS = 512
# Versions of Triton have different defaults.
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}


@triton.jit
def _affine(row, weight, bias, eps, j, is_channel, c):
    """Load mean, 1 / std, weight / std and bias of the channels j."""
    mean = tl.load(row + j, mask=is_channel, other=0.0)
    inverse_std = 1.0 / tl.sqrt(tl.load(row + c + j, mask=is_channel, other=0.0) + eps)
    scale, shift = inverse_std, tl.zeros_like(mean)
    if weight is not None:
        scale *= tl.load(weight + j, mask=is_channel, other=0.0).to(tl.float32)
    if bias is not None:
        shift += tl.load(bias + j, mask=is_channel, other=0.0).to(tl.float32)
    return mean, inverse_std, scale, shift


@triton.jit(do_not_specialize=["m"])
def _statistics(partials, m, c, x, rows: constexpr, channels: constexpr):
    """Write the statistics of every n-th tile of x, for n programs, into a row of `partials`.

    Sums are relative to one value of each channel.
    """
    j = tl.program_id(0) * channels + tl.arange(0, channels)
    is_channel = j < c
    first_row = tl.program_id(1) * rows
    step = tl.num_programs(1) * rows
    i = tl.arange(0, rows)[:, None]
    offset, at = first_row.to(tl.int64) * c, i * c + j
    pivot = tl.load(x + offset + j, mask=is_channel, other=0.0).to(tl.float32)
    sums = tl.zeros((rows, channels), tl.float32)
    squares = tl.zeros((rows, channels), tl.float32)
    for start in range(first_row, m, step):
        mask = (start + i < m) & is_channel
        deviation = tl.load(x + offset + at, mask=mask, other=0.0).to(tl.float32) - pivot
        deviation = tl.where(mask, deviation, 0.0)
        sums += deviation
        squares += deviation * deviation
        offset += step * c
    # The last tile may have fewer rows than those before it.
    num_before = (m - 1 - first_row) // step
    count = num_before * rows + tl.minimum(rows, m - first_row - num_before * step)
    mean = tl.sum(sums, 0) / count
    var = tl.maximum(
        tl.sum(squares, 0) / count - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL
    )
    partials += tl.program_id(1) * (2 * c + 1)
    tl.store(partials + j, pivot + mean, mask=is_channel)
    tl.store(partials + c + j, var, mask=is_channel)
    tl.store(partials + 2 * c, count.to(tl.float32), mask=tl.program_id(0) == 0)


@triton.jit(do_not_specialize=["n"])
def _merge(
    partials,
    row,
    running_mean,
    running_var,
    counter,
    momentum,
    n,
    c,
    rows: constexpr,
    channels: constexpr,
):
    """Merge n rows of statistics by Chan's formula, and update running ones if given."""
    j = tl.program_id(0) * channels + tl.arange(0, channels)
    is_channel, i = j < c, tl.arange(0, rows)
    pointers = partials + i[:, None] * (2 * c + 1) + j
    mask = (i < n)[:, None] & is_channel
    counts = tl.load(partials + i * (2 * c + 1) + 2 * c, mask=i < n, other=0.0)
    total = tl.sum(counts, 0)
    means = tl.load(pointers, mask=mask, other=0.0)
    mean = tl.sum(counts[:, None] * means, 0) / total
    deviation = means - mean
    var = (
        tl.sum(
            counts[:, None] * (tl.load(pointers + c, mask=mask, other=0.0) + deviation * deviation),
            0,
        )
        / total
    )
    tl.store(row + j, mean, mask=is_channel)
    tl.store(row + c + j, var, mask=is_channel)
    tl.store(row + 2 * c, total, mask=tl.program_id(0) == 0)
    if running_mean is not None:
        # Without a momentum it is the mean of all batches. The caller has counted this batch,
        # because all programs read the counter.
        if momentum is None:
            momentum = 1.0 / tl.load(counter).to(tl.float32)
        else:
            tl.store(counter, tl.load(counter) + 1, mask=tl.program_id(0) == 0)
        before = tl.load(running_mean + j, mask=is_channel, other=0.0).to(tl.float32)
        tl.store(running_mean + j, before + (mean - before) * momentum, mask=is_channel)
        before = tl.load(running_var + j, mask=is_channel, other=0.0).to(tl.float32)
        tl.store(
            running_var + j,
            before + (var * (total / (total - 1.0)) - before) * momentum,
            mask=is_channel,
        )


@triton.jit(do_not_specialize=["m"])
def _normalize(
    m,
    c,
    x,
    residual,
    y,
    row,
    weight,
    bias,
    eps,
    relu: constexpr,
    rows: constexpr,
    channels: constexpr,
):
    # The last rows come first, because they are in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    blocks = tl.cdiv(c, channels)
    j = program % blocks * channels + tl.arange(0, channels)
    first_row, i = program // blocks * rows, tl.arange(0, rows)[:, None]
    is_channel = j < c
    mask, offset, at = (first_row + i < m) & is_channel, first_row.to(tl.int64) * c, i * c + j
    mean, _, scale, shift = _affine(row, weight, bias, eps, j, is_channel, c)
    value = (tl.load(x + offset + at, mask=mask, other=0.0).to(tl.float32) - mean) * scale + shift
    if residual is not None:
        value += tl.load(residual + offset + at, mask=mask, other=0.0).to(tl.float32)
    if relu:  # NaN stays NaN, for the loss guard.
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + offset + at, value, mask=mask)


@triton.jit(do_not_specialize=["m"])
def _gradient_sums(
    partials,
    m,
    c,
    dy,
    x,
    y,
    dz,
    row,
    weight,
    bias,
    eps,
    relu: constexpr,
    rows: constexpr,
    channels: constexpr,
):
    """Write the sums of dz and dz * xhat of every n-th tile into a row of `partials`.

    If `dz` is given, dz itself is written, too.
    """
    j = tl.program_id(0) * channels + tl.arange(0, channels)
    is_channel = j < c
    mean, inverse_std, scale, shift = _affine(row, weight, bias, eps, j, is_channel, c)
    first_row = tl.program_id(1) * rows
    step = tl.num_programs(1) * rows
    i = tl.arange(0, rows)[:, None]
    offset, at = first_row.to(tl.int64) * c, i * c + j
    sums = tl.zeros((rows, channels), tl.float32)
    products = tl.zeros((rows, channels), tl.float32)
    for start in range(first_row, m, step):
        mask = (start + i < m) & is_channel
        gradient = tl.load(dy + offset + at, mask=mask, other=0.0).to(tl.float32)
        deviation = tl.load(x + offset + at, mask=mask, other=0.0).to(tl.float32) - mean
        if relu:
            value = (
                deviation * scale + shift
                if y is None
                else tl.load(y + offset + at, mask=mask, other=0.0)
            )
            gradient = tl.where(value <= 0.0, 0.0, gradient)  # NaN passes, as in torch.
        if dz is not None:
            tl.store(dz + offset + at, gradient, mask=mask)
        sums += gradient
        products += tl.where(mask, gradient * deviation, 0.0)
        offset += step * c
    partials += tl.program_id(1) * 2 * c + j
    tl.store(partials, tl.sum(sums, 0), mask=is_channel)
    tl.store(partials + c, tl.sum(products, 0) * inverse_std, mask=is_channel)


@triton.jit(do_not_specialize=["m"])
def _input_gradient(
    m,
    c,
    dz,
    x,
    dx,
    sums,
    row,
    weight,
    bias,
    eps,
    relu: constexpr,
    rows: constexpr,
    channels: constexpr,
):
    # The last rows come first, because they are in the cache.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    blocks = tl.cdiv(c, channels)
    j = program % blocks * channels + tl.arange(0, channels)
    first_row, i = program // blocks * rows, tl.arange(0, rows)[:, None]
    is_channel = j < c
    mask, offset, at = (first_row + i < m) & is_channel, first_row.to(tl.int64) * c, i * c + j
    mean, inverse_std, scale, shift = _affine(row, weight, bias, eps, j, is_channel, c)
    total = tl.load(row + 2 * c)
    expected = tl.load(sums + j, mask=is_channel, other=0.0) / total
    slope = tl.load(sums + c + j, mask=is_channel, other=0.0) / total * inverse_std
    gradient = tl.load(dz + offset + at, mask=mask, other=0.0).to(tl.float32)
    deviation = tl.load(x + offset + at, mask=mask, other=0.0).to(tl.float32) - mean
    if relu:
        gradient = tl.where(deviation * scale + shift <= 0.0, 0.0, gradient)
    tl.store(dx + offset + at, scale * (gradient - expected - deviation * slope), mask=mask)


def try_out() -> None:
    """Build the launcher of Triton kernels, which requires a C compiler."""
    triton.runtime.driver.active.get_current_device()


def _tiles(x: Tensor, size: int, max_channels: int) -> tuple[int, int, dict[str, Any]]:
    """Return the number of tiles of `size` elements along rows and channels of x.

    The third result contains the options of their kernel.
    """
    channels = min(max_channels, triton.next_power_of_2(x.shape[1]))
    rows = size // channels
    options = {"rows": rows, "channels": channels, **OPTIONS}
    return triton.cdiv(x.numel() // x.shape[1], rows), triton.cdiv(x.shape[1], channels), options


def _run_elementwise(kernel: Any, x: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel that computes each element of a tensor with the shape of x."""
    num_tiles, num_blocks, options = _tiles(x, *EACH)
    kernel[(num_tiles * num_blocks,)](
        x.numel() // x.shape[1], x.shape[1], *arguments, **constants, **options
    )


def _run_reduction(kernel: Any, x: Tensor, width: int, *arguments: Any, **constants: Any) -> Tensor:
    """Return `width` sums for each of several parts of x."""
    num_tiles, num_blocks, options = _tiles(x, *REDUCED)
    partials = x.new_empty(
        min(num_tiles, max(1, NUM_PROGRAMS // num_blocks)), width, dtype=torch.float32
    )
    sizes = x.numel() // x.shape[1], x.shape[1]
    kernel[(num_blocks, len(partials))](partials, *sizes, *arguments, **constants, **options)
    return partials


def merge_statistics(partials: Tensor, norm: BatchNorm | None = None) -> Tensor:
    """Merge several rows of statistics into one, and update the running ones of `norm`."""
    n, c = len(partials), partials.shape[1] // 2
    running_statistics: Any = (None, None, None, None)
    if norm is not None and norm.num_batches_tracked is not None:
        running_statistics = (
            norm.running_mean,
            norm.running_var,
            norm.num_batches_tracked,
            norm.momentum,
        )
        if norm.momentum is None:
            norm.num_batches_tracked.add_(1)
    row = partials.new_empty(2 * c + 1)
    rows = triton.next_power_of_2(n)
    channels = min(triton.next_power_of_2(c), max(1, EACH[0] // rows))
    _merge[(triton.cdiv(c, channels),)](
        partials.contiguous(),
        row,
        *running_statistics,
        n,
        c,
        rows=rows,
        channels=channels,
        **OPTIONS,
    )
    return row


class Normalize(torch.autograd.Function):
    """relu(xhat * weight + bias + residual), without the terms that are None or false.

    `gather` takes x and the row of this rank, and returns the rows of all ranks. Without it, the
    statistics are those of x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Any,
        weight: Any,
        bias: Any,
        norm: BatchNorm,
        relu: bool,
        gather: Any,
    ) -> Tensor:
        partials = _run_reduction(_statistics, x, 2 * x.shape[1] + 1, x)
        row = merge_statistics(
            partials if gather is None else gather(x, merge_statistics(partials)), norm
        )
        y = torch.empty_like(x)
        _run_elementwise(_normalize, x, x, residual, y, row, weight, bias, norm.eps, relu=relu)
        ctx.save_for_backward(x, y if relu and residual is not None else None, row, weight, bias)
        ctx.eps = norm.eps
        ctx.relu = relu
        ctx.has_residual = residual is not None
        ctx.is_alone = gather is None
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients as in batch_norm.py.

        The ReLU uses y if y is saved, else its input is computed again.
        """
        x, y, row, weight, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dz = None if y is None else torch.empty_like(dy)
        affine = row, weight, bias, ctx.eps
        sums = _run_reduction(
            _gradient_sums, x, 2 * x.shape[1], dy, x, y, dz, *affine, relu=ctx.relu
        ).sum(0)
        db, dw = sums.split(x.shape[1])
        relu, dz = ctx.relu and dz is None, dy if dz is None else dz
        dx = None
        if ctx.needs_input_grad[0]:
            sums, dx = sums if ctx.is_alone else sum_over_ranks(sums), torch.empty_like(x)
            _run_elementwise(_input_gradient, x, dz, x, dx, sums, *affine, relu=relu)
        dw, db = (
            None if parameter is None else sums.to(parameter.dtype)
            for parameter, sums in ((weight, dw), (bias, db))
        )
        return dx, dz if ctx.has_residual else None, dw, db, None, None, None
