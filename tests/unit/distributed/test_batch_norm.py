"""Batch norm over ranks against torch's on the whole batch: values, gradients, running statistics.

float64 to 1e-12. bfloat16 against float32 within one rounding of each number to its 8 bits (2^-8 of
it), against torch's own bfloat16 within two.
"""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from timm.layers import (
    BatchNormAct2d,  # pyright: ignore[reportPrivateImportUsage]
    EvoNorm2dB0,  # pyright: ignore[reportPrivateImportUsage]
    LayerNorm2d,  # pyright: ignore[reportPrivateImportUsage]
)
from torch import Tensor, nn
from torchvision.ops.misc import FrozenBatchNorm2d

from lockstep.distributed.batch_norm import ExactBatchNorm, SyncBatchNorm, refuse_inexact_norms
from lockstep.distributed.partition import interval
from lockstep.distributed.virtual_shards import VirtualShards

NUM_SAMPLES, NUM_CHANNELS, NUM_STEPS = 11, 3, 3
LOADS = ([1], [1, 0], [10, 1], [2, 0, 1])  # without samples, with a single sample
LAYERS = {
    "1d": (nn.BatchNorm1d, ()),
    "2d": (nn.BatchNorm2d, (4, 2)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
    "2d_timm": (BatchNormAct2d, (4, 2)),  # applies a ReLU, too
}
VARIANTS = {
    "plain": {},
    "cumulative": {"momentum": None},
    "not_affine": {"affine": False},
    "untracked": {"track_running_stats": False},
}


@dataclass(frozen=True)
class Case:
    """A layer, its input, and the worker weights."""

    kind: str
    worker_weights: tuple[int, ...]
    variant: str = "plain"
    dtype: torch.dtype = torch.float64
    is_channels_last: bool = False
    is_autocast: bool = False
    offset: float = 5.0

    def layer(self) -> nn.Module:
        make, _ = LAYERS[self.kind]
        layer = make(NUM_CHANNELS, dtype=self.dtype, **VARIANTS[self.variant])
        source = torch.Generator().manual_seed(1)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=source)
        return layer

    def inputs(self) -> list[tuple[Tensor, Tensor]]:
        """(x, dy) of every step.

        If the layer gets bfloat16, these numbers are exact in bfloat16.
        """
        source = torch.Generator().manual_seed(2)
        shape = (NUM_SAMPLES, NUM_CHANNELS, *LAYERS[self.kind][1])
        dtype = torch.bfloat16 if self.is_autocast else self.dtype
        layout = torch.channels_last if self.is_channels_last else torch.contiguous_format
        pairs = []
        for _ in range(NUM_STEPS):
            x, dy = (torch.randn(shape, generator=source, dtype=torch.float64) for _ in range(2))
            x, dy = (
                value.to(dtype).contiguous(memory_format=layout)
                for value in (3 * x + self.offset, dy)
            )
            pairs.append((x, dy))
        return pairs


class Result(NamedTuple):
    """A training of a few steps: `y` and `dx` of every step, the rest at the end."""

    y: list[Tensor]
    dx: list[Tensor]
    gradients: list[Tensor]
    buffers: list[Tensor]
    evaluated: Tensor


def trained(
    case: Case, layer: nn.Module, lo: int, hi: int, dtype: torch.dtype | None = None
) -> Result:
    """Train `layer` on the samples [lo, hi) of every step; `dtype` converts the input."""
    ys, dxs = [], []
    for x, dy in case.inputs():
        x, dy = (
            x.to(dtype or x.dtype)[lo:hi].detach().requires_grad_(),
            dy.to(dtype or dy.dtype)[lo:hi],
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=case.is_autocast and dtype is None):
            y = layer(x)
        y.backward(dy)
        assert x.grad is not None
        assert (y.dtype, x.grad.dtype) == (x.dtype, x.dtype)
        ys.append(y.detach())
        dxs.append(x.grad)
    gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
    buffers = [buffer.clone() for buffer in layer.buffers()]
    whole = case.inputs()[0][0]
    with torch.no_grad():
        evaluated = layer.eval()(whole.to(dtype or whole.dtype))
    return Result(ys, dxs, gradients, buffers, evaluated)


def trained_shards(case: Case) -> list[Result]:
    """Train on every rank, in a thread for each."""

    def train(rank: int) -> Result:
        layer = ExactBatchNorm().apply(case.layer())
        return trained(case, layer, *interval(NUM_SAMPLES, case.worker_weights, rank))

    with VirtualShards(len(case.worker_weights), [1], 1) as ranks:
        return ranks.run(train)


EXACT = [
    *(Case(kind, tuple(worker_weights)) for kind in LAYERS for worker_weights in LOADS),
    *(
        Case("2d", tuple(worker_weights), variant)
        for variant in VARIANTS
        if variant != "plain"
        for worker_weights in LOADS
    ),
    *(Case("2d", tuple(worker_weights), is_channels_last=True) for worker_weights in LOADS),
]


def assert_values(parts: list[Result], whole: Result, rtol: float, atol: float) -> None:
    """Compare y and dx of `parts` along the batch."""
    for name in ("y", "dx"):
        steps = zip(*(getattr(part, name) for part in parts), strict=True)
        for tensors, expected in zip(steps, getattr(whole, name), strict=True):
            torch.testing.assert_close(
                torch.cat(tensors).double(), expected.double(), rtol=rtol, atol=atol
            )


def assert_gradients(parts: list[Result], whole: Result, atol: float) -> None:
    """Add up the gradients over the ranks, as DDP does."""
    by_parameter = zip(*(part.gradients for part in parts), strict=True)
    total = [torch.stack(tensors).double().sum(0) for tensors in by_parameter]
    assert difference(total, whole.gradients) <= atol


def assert_buffers(parts: list[Result], whole: Result, atol: float) -> None:
    for part in parts:
        assert difference(part.buffers, whole.buffers) <= atol
        assert difference(part.buffers, parts[0].buffers) == 0


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(((a.double() - b.double()).abs().max().item() for a, b in pairs), default=0.0)


# -- values and gradients --------------------------------------------------------------------------


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_any_shards(case: Case) -> None:
    parts = trained_shards(case)
    whole = trained(case, case.layer(), 0, NUM_SAMPLES)
    assert_values(parts, whole, 0, 1e-12)
    assert_gradients(parts, whole, 1e-12)
    assert_buffers(parts, whole, 1e-12)
    for part in parts:
        if case.variant != "untracked":  # then the batch norm of an evaluation is that of its batch
            assert difference([part.evaluated], [whole.evaluated]) <= 1e-12


@pytest.mark.parametrize(
    "case",
    [
        Case("2d", tuple(worker_weights), dtype=torch.float32, offset=3000.0)
        for worker_weights in LOADS
    ],
    ids=str,
)
def test_mean_far_from_zero(case: Case) -> None:
    """float32 holds 3000 to 1e-4: y is exact to that. E[x^2] - E[x]^2 would be off by about 1."""
    whole = trained(case, case.layer().double(), 0, NUM_SAMPLES, torch.float64)
    assert_values(trained_shards(case), whole, 0, 1e-3)


@pytest.mark.parametrize(
    "case",
    [
        Case(
            "2d",
            tuple(worker_weights),
            dtype=torch.float32,
            is_autocast=True,
            is_channels_last=is_channels_last,
        )
        for worker_weights in LOADS
        for is_channels_last in (False, True)
    ],
    ids=str,
)
def test_autocast(case: Case) -> None:
    parts = trained_shards(case)
    exact = trained(case, case.layer(), 0, NUM_SAMPLES, torch.float32)
    alone = trained(case, case.layer(), 0, NUM_SAMPLES)  # torch's own, in the same autocast
    for whole, num_roundings in ((exact, 1), (alone, 2)):
        assert_values(parts, whole, num_roundings * 2**-8, 1e-5)
        assert_gradients(parts, whole, 2e-4)
        assert_buffers(parts, whole, 2e-5)  # float32, whatever the input


# -- edge cases ------------------------------------------------------------------------------------


def refusal(layer: nn.Module, x: Tensor) -> str:
    """The error in training."""
    try:
        layer(x)
    except ValueError as error:
        return str(error)
    return "computed"


@pytest.mark.parametrize(("shape", "is_refused"), [((1, 1), True), ((), True), ((1, 2), False)])
def test_single_value_per_channel_refused(shape: tuple[int, ...], is_refused: bool) -> None:
    make = nn.BatchNorm2d if shape else nn.BatchNorm1d
    expected = refusal(make(NUM_CHANNELS), torch.ones(1, NUM_CHANNELS, *shape))
    assert ("more than 1 value" in expected) == is_refused

    def refuse(rank: int) -> str:
        x = torch.ones(int(rank == 1), NUM_CHANNELS, *shape)
        return refusal(ExactBatchNorm().apply(make(NUM_CHANNELS)), x)

    with VirtualShards(3, [1], 1) as ranks:
        assert ranks.run(refuse) == [expected] * 3


# -- the plugin ------------------------------------------------------------------------------------


class OwnBatchNorm(nn.BatchNorm2d):
    """A custom class without a custom forward()."""


def nested() -> nn.Sequential:
    inner = nn.Sequential(
        nn.BatchNorm1d(4), nn.ModuleDict({"deep": nn.Sequential(nn.BatchNorm3d(2), nn.ReLU())})
    )
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), OwnBatchNorm(4), inner, nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)
    )


def test_swap_and_revert() -> None:
    """A swapped layer is the same object with the same tensors."""
    net, plugin = nested(), ExactBatchNorm()
    layer = net[1]
    tensors = {name: id(value) for name, value in net.state_dict(keep_vars=True).items()}
    before = {name: type(module) for name, module in net.named_modules()}
    assert plugin.apply(net) is plugin.apply(net) is net  # Lightning may prepare a model twice
    after = {name: type(module) for name, module in net.named_modules()}
    changed = {name: after[name] for name in before if after[name] is not before[name]}
    assert changed == dict.fromkeys(["1", "2.0", "2.1.deep.0"], SyncBatchNorm)
    assert {name: id(value) for name, value in net.state_dict(keep_vars=True).items()} == tensors
    assert net[1] is layer
    assert plugin.revert(net) is net
    assert {name: type(module) for name, module in net.named_modules()} == before


class Scaled(nn.BatchNorm2d):
    """A batch norm with a custom forward()."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (
            nn.BatchNorm2d(2, track_running_stats=False),
            r"'1' \(BatchNorm2d\) has track_running_stats=False",
        ),
        (Scaled(2), r"'1' \(Scaled\) is a batch norm with a custom forward\(\)"),
        (
            nn.InstanceNorm2d(2, track_running_stats=True),
            r"'1' \(InstanceNorm2d\) has running statistics of one",
        ),
        (EvoNorm2dB0(2), r"'1' \(EvoNorm2dB0\) normalizes by the batch of one worker"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_inexact_norms_refused(layer: nn.Module, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        refuse_inexact_norms(nn.Sequential(nn.Conv2d(1, 2, 3), layer))


def test_other_norms_pass() -> None:
    refuse_inexact_norms(
        nn.Sequential(
            nn.InstanceNorm2d(2),
            nn.GroupNorm(1, 2),
            LayerNorm2d(2),
            FrozenBatchNorm2d(2),
            SyncBatchNorm(2),
        )
    )


def test_large_bfloat16_input() -> None:
    """It is widened in blocks."""
    torch.manual_seed(0)
    x, dy = (torch.randn(12, 3, 256, 192).bfloat16() for _ in range(2))
    whole = x.float().requires_grad_()
    nn.BatchNorm2d(3)(whole).backward(dy.float())
    assert whole.grad is not None

    def input_gradient(rank: int) -> Tensor:
        part = x[6 * rank : 6 * rank + 6].clone().requires_grad_()
        SyncBatchNorm(3)(part).backward(dy[6 * rank : 6 * rank + 6])
        assert part.grad is not None
        return part.grad

    with VirtualShards(2, [1], 1) as ranks:
        found = torch.cat(ranks.run(input_gradient))
    torch.testing.assert_close(found.float(), whole.grad, rtol=2**-8, atol=1e-6)
