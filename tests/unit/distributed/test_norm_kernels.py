"""Triton's kernels of batch norm + residual + ReLU against torch in float64.

Triton's interpreter runs them on CPU tensors.

float32 to a few of its roundings, bfloat16 within one rounding of each number. The interpreter must
be chosen before Triton is imported: all kernels run in processes of their own. For a GPU they are
compiled here, without one.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from lockstep import distributed
from lockstep.distributed import batch_norm
from lockstep.distributed.batch_norm import BatchNorm2d, ExactBatchNorm, SyncBatchNorm
from lockstep.distributed.partition import interval
from tests.support.processes import Ranks

NUM_PROGRAMS = 4  # in place of hundreds, for small tensors of several tiles each
LOADS = (5, 1, 0)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="torch for CPUs has no Triton"
)


@dataclass(frozen=True)
class Case:
    """A layer and its input."""

    shape: tuple[int, ...] = (7, 5, 4, 3)
    dtype: torch.dtype = torch.float32
    has_residual: bool = True
    relu: bool = True
    affine: bool = True
    momentum: float | None = 0.1
    offset: float = 2.0
    nan: str = ""
    worker_weights: tuple[int, ...] = (1,)

    def layer(self) -> BatchNorm2d:
        layer = BatchNorm2d(self.shape[1], affine=self.affine, momentum=self.momentum)
        source = torch.Generator().manual_seed(1)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=source)
        return layer

    def inputs(self) -> list[Tensor]:
        """x, residual and dy in numbers of `dtype`."""
        source = torch.Generator().manual_seed(2)
        x, residual, dy = torch.randn(3, *self.shape, generator=source)
        x = 0.5 * x + self.offset
        if self.nan:
            {"x": x, "residual": residual}[self.nan][1, 1, 1, 1] = torch.nan
        return [
            each.to(self.dtype).contiguous(memory_format=torch.channels_last)
            for each in (x, residual, dy)
        ]


Values = dict[str, Tensor]


class Result(NamedTuple):
    """Two steps: values along the batch, their gradients, and the rest."""

    values: Values
    gradients: Values
    buffers: Values
    num_launches: int


def trained(
    case: Case, layer: nn.Module, lo: int, hi: int, dtype: torch.dtype
) -> tuple[Values, Values, Values]:
    """Two steps of the samples [lo, hi)."""
    values = {}
    for _ in range(2):
        x, residual, dy = (each[lo:hi].to(dtype) for each in case.inputs())
        x, residual = x.detach().requires_grad_(), residual.detach().requires_grad_()
        y = layer(x, residual if case.has_residual else None, case.relu)
        y.backward(dy)
        assert y.dtype == dtype
        values = {
            "y": y.detach(),
            "dx": x.grad,
            **({"dresidual": residual.grad} if case.has_residual else {}),
        }
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return values, gradients, dict(layer.named_buffers())  # pyright: ignore[reportReturnType]


def interpreted() -> Any:
    """The kernels, interpreted in this process.

    It takes a tensor of the CPU for one of a GPU.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        os.environ["TRITON_INTERPRET"] = "1"
        for name in [
            name for name in sys.modules if name.startswith("triton") and "._C" not in name
        ]:
            del sys.modules[name]  # torch's compiler has imported it, and Triton decides then
    from lockstep.distributed import norm_kernels

    norm_kernels.NUM_PROGRAMS = NUM_PROGRAMS
    batch_norm._kernels = lambda x: norm_kernels if x.dtype in batch_norm._FUSED else None
    return norm_kernels


def computed(cases: list[Case]) -> list[Result]:
    """On one rank: every case, by the kernels."""
    kernels, results = interpreted(), []
    normalize = kernels.Normalize.apply
    for case in cases:
        layer, calls = case.layer(), []
        if len(case.worker_weights) > 1:
            layer = ExactBatchNorm().apply(layer)
        kernels.Normalize.apply = lambda *args, calls=calls: calls.append(args) or normalize(*args)
        lo, hi = interval(case.shape[0], list(case.worker_weights), dist.get_rank())
        results.append(Result(*trained(case, layer, lo, hi, case.dtype), num_launches=len(calls)))
    return results


SHAPES = ((7, 5, 4, 3), (2, 70, 7, 3), (2, 3, 1, 1))  # odd channels, several tiles, two rows
CASES = [
    *(Case(shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.bfloat16)),
    *(Case(has_residual=False), Case(relu=False)),
    *(Case(affine=False), Case(momentum=None), Case(offset=3000.0)),
    *(Case(nan="x"), Case(nan="residual")),
]
SPLIT = [
    Case(dtype=dtype, has_residual=has, momentum=momentum, worker_weights=LOADS)
    for dtype, has, momentum in ((torch.float32, True, 0.1), (torch.bfloat16, False, None))
]


@pytest.fixture(scope="module")
def results(ranks: Ranks) -> dict[Case, list[Result]]:
    found = dict[Case, list[Result]]()
    for num_ranks, cases in ((1, CASES), (len(LOADS), SPLIT)):
        by_case = zip(*ranks.run(num_ranks, computed, cases), strict=True)
        found |= dict(zip(cases, map(list, by_case), strict=True))
    return found


def check(case: Case, found: list[Result]) -> None:
    values, gradients, buffers = trained(
        case, case.layer().double(), 0, case.shape[0], torch.float64
    )
    rounding = {torch.float32: 1e-6, torch.bfloat16: 2**-8}[case.dtype]
    far = max(1.0, case.offset / 10)  # float32 holds 3000 to 1e-4
    # two values of a channel are +1 and -1, whatever they are: their gradients cancel
    atol = {"dx": 1e-2 * (case.shape[0] * case.shape[2] * case.shape[3] == 2) + 3e-6 * far}
    for name, expected in values.items():
        together = torch.cat([part.values[name] for part in found]).double()
        tolerance = atol.get(name, 2e-6 * far)
        torch.testing.assert_close(
            together, expected, rtol=2 * rounding, atol=tolerance, equal_nan=True
        )
    for name, expected in gradients.items():
        total = torch.stack([part.gradients[name] for part in found]).double().sum(0)
        torch.testing.assert_close(total, expected, rtol=1e-5, atol=3e-5 * far, equal_nan=True)
    for part in found:
        for name, expected in buffers.items():
            tracked = part.buffers[name].double()
            torch.testing.assert_close(
                tracked, expected.double(), rtol=1e-5, atol=1e-6, equal_nan=True
            )


@needs_triton
@pytest.mark.processes
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_as_float64(case: Case, results: dict[Case, list[Result]]) -> None:
    check(case, results[case])
    assert results[case][0].num_launches == 2  # not torch's three calls


@needs_triton
@pytest.mark.processes
@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_any_shards(case: Case, results: dict[Case, list[Result]]) -> None:
    parts = results[case]
    check(case, parts)
    assert [part.num_launches > 0 for part in parts] == [load > 0 for load in case.worker_weights]
    for part in parts:
        assert all(
            torch.equal(part.buffers[name], value) for name, value in parts[0].buffers.items()
        )


def of_one_value(worker_weights: list[int]) -> bool:
    interpreted()
    layer = BatchNorm2d(3) if len(worker_weights) == 1 else SyncBatchNorm(3)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer(
            torch.ones(1, 3, 1, 1)[slice(*interval(1, worker_weights, dist.get_rank()))], relu=True
        )
    return torch.equal(layer.state_dict()["running_mean"], torch.zeros(3))


@needs_triton
@pytest.mark.processes
@pytest.mark.parametrize("worker_weights", [[1], [0, 1, 0]])
def test_single_value_per_channel_refused(ranks: Ranks, worker_weights: list[int]) -> None:
    assert ranks.run(len(worker_weights), of_one_value, worker_weights) == [True] * len(
        worker_weights
    )


# -- machine code ----------------------------------------------------------------------------------

BFLOAT16 = "*bf16"
SCALARS = {"m": "i32", "c": "i32", "n": "i32", "eps": "fp32", "momentum": "fp32", "counter": "*i64"}
COMPILED: dict[str, dict[str, Any]] = {
    "_statistics": {"x": BFLOAT16},
    "_merge": {},
    "_normalize": {"x": BFLOAT16, "residual": BFLOAT16, "y": BFLOAT16},
    "_gradient_sums": {"dy": BFLOAT16, "x": BFLOAT16, "y": BFLOAT16, "dz": BFLOAT16},
    "_input_gradient": {"dz": BFLOAT16, "x": BFLOAT16, "dx": BFLOAT16},
}


@pytest.mark.full
@needs_triton
@pytest.mark.parametrize("name", COMPILED)
def test_kernel_compiles(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an H100, without one."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lockstep.distributed import norm_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, given = getattr(norm_kernels, name), COMPILED[name]
    constants = {
        argument: value
        for argument, value in (("rows", 64), ("channels", 8))
        if argument in kernel.arg_names
    }
    types = {
        argument: given.get(argument, SCALARS.get(argument, "*fp32"))
        for argument in kernel.arg_names
    }
    types |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        kernel, types, {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options=norm_kernels.OPTIONS
    )
    assert compiled.asm["cubin"]


# -- without kernels -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_cpu_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(dtype=dtype)
    monkeypatch.setattr(
        batch_norm, "_build_kernels", lambda: pytest.fail("Triton is imported for a CPU")
    )
    ours, torchs = case.layer().to(dtype), nn.BatchNorm2d(case.shape[1]).to(dtype)
    torchs.load_state_dict(ours.state_dict())
    x, residual, _ = case.inputs()
    y = ours(x, residual, relu=True)
    assert torch.equal(y, F.relu(torchs(x) + residual))
    assert all(
        torch.equal(one, other) for one, other in zip(ours.buffers(), torchs.buffers(), strict=True)
    )
    assert torch.equal(ours.eval()(x), torchs.eval()(x))


def test_without_triton(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "lockstep.distributed.norm_kernels", raising=False)
    monkeypatch.delattr(distributed, "norm_kernels", raising=False)
    batch_norm._build_kernels.cache_clear()
    assert [batch_norm._build_kernels() for _ in range(2)] == [None, None]
    batch_norm._build_kernels.cache_clear()
    line = (
        "lockstep: batch norms use torch's slower kernels, because those of Triton cannot be "
        "built: import of triton halted"
    )
    assert capsys.readouterr().err.startswith(line)
