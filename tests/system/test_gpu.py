"""On a real GPU: `pytest -m gpu`."""

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lockstep.distributed.batch_norm import BatchNorm2d
from lockstep.runs.folder import EXIT_FAILED, RunFolder
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    SMALL,
    command,
    difference,
    environ,
    own_network,
    train_all,
    write_run,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
ON_GPU = [override for override in SMALL if override != "strategy=cpu"] + ["trainer.devices=1"]


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    line = command(*overrides, f"hydra.run.dir={folder}")
    return subprocess.run(
        line, cwd=ROOT, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_gpu_as_cpu(tmp_path: Path, figure: Any) -> None:
    """Without dropout, whose mask depends on the kind of device."""
    cpu = write_run(tmp_path / "cpu", [*SMALL, "model.dropout=0"])
    gpu = write_run(tmp_path / "gpu", [*ON_GPU, "model.dropout=0"])
    train_all([cpu, gpu], 1)
    worst = difference(cpu, gpu)
    figure(f"float64, GPU against CPU: largest difference {worst:.1e}")
    assert worst <= 1e-12


def test_deterministic(tmp_path: Path) -> None:
    overrides = [override for override in ON_GPU if not override.startswith("trainer.precision")]
    runs = [
        write_run(tmp_path / name, [*overrides, "trainer.deterministic=true"])
        for name in ("first", "second")
    ]
    train_all(runs, 1)
    assert difference(*runs) == 0.0


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_graphs_as_eager(tmp_path: Path, precision: str, parts: int) -> None:
    """The recipe has dropout, clipping, and a last batch of six images.

    That batch has graphs from the third epoch on.
    """
    recipe = [*ON_GPU, f"trainer.precision={precision}", f"trainer.accumulate_grad_batches={parts}"]
    recipe += ["trainer.deterministic=true", "trainer.max_epochs=4"]
    notes = "+callbacks.graphs={_target_:tests.support.callbacks.NotesGraphs}"
    graphed, eager = (
        write_run(tmp_path / mode, [*recipe, notes, f"trainer.graph={mode}"])
        for mode in ("auto", "false")
    )
    train_all([graphed, eager], 1)
    assert int((graphed.path / "graphs").read_text().split()[-1]) == (2 if parts == 1 else 3)
    assert difference(graphed, eager) == 0.0


def test_nan_loss_failed_run(tmp_path: Path) -> None:
    network = [text for text in own_network("BecomesNan") if text != "strategy=cpu"]
    done = train(tmp_path / "run", *network, "trainer.max_epochs=10", "trainer.devices=1")
    assert done.returncode == EXIT_FAILED
    assert "The loss is not finite in optimizer step 30 " in done.stderr
    saved = torch.load(
        RunFolder(tmp_path / "run").last_checkpoint, map_location="cpu", weights_only=True
    )
    assert all(value.isfinite().all() for value in saved["state_dict"].values())


@pytest.mark.parametrize(
    ("optimizer", "callbacks", "precision"),
    [
        ("sgd", "default", "auto"),
        ("sgd", "ema", "auto"),
        ("adamw", "default", "auto"),
        ("adamw", "ema", "auto"),
        ("sgd", "ema", "float16"),
    ],
)
def test_never_waits(tmp_path: Path, optimizer: str, callbacks: str, precision: str) -> None:
    waits = "+callbacks.waits={_target_:tests.support.callbacks.NeverWaits}"
    parts = (f"optimizer={optimizer}", f"callbacks={callbacks}", f"trainer.precision={precision}")
    sizes = ("trainer.log_every_n_steps=8", "data.train_size=700")
    done = train(tmp_path / "run", *ON_GPU, *parts, *sizes, waits)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("has_residual", [False, True], ids=["plain", "residual"])
def test_fused_batch_norm(dtype: torch.dtype, has_residual: bool, figure: Any) -> None:
    """Each number is rounded once, with the same bits every time, and from a CUDA graph.

    Torch's kernels are for comparison.
    """
    draws = torch.Generator("cuda").manual_seed(0)
    x, residual, dy = torch.randn(3, 64, 96, 28, 28, device="cuda", generator=draws)
    x, residual, dy = (
        each.to(dtype).contiguous(memory_format=torch.channels_last)
        for each in (3 * x + 2, residual, dy)
    )
    ours, torchs, exact = (
        BatchNorm2d(96).cuda(),
        nn.BatchNorm2d(96).cuda(),
        nn.BatchNorm2d(96).cuda().double(),
    )
    nn.init.uniform_(ours.weight, 0.5, 2.0)

    def fused(layer: Any, *values: torch.Tensor) -> torch.Tensor:
        return layer(values[0], values[1] if has_residual else None, relu=True)

    def plain(layer: Any, *values: torch.Tensor) -> torch.Tensor:
        return F.relu(layer(values[0]) + values[1] if has_residual else layer(values[0]))

    def computed(network: Any, layer: nn.Module, *tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs = [each.detach().requires_grad_() for each in tensors[: 1 + has_residual]]
        y = network(layer, *inputs)
        gradients = torch.autograd.grad(y, [*inputs, *layer.parameters()], tensors[2])
        return [y.detach(), *gradients, *(buffer.clone() for buffer in layer.buffers())]

    state = {name: value.clone() for name, value in ours.state_dict().items()}
    torchs.load_state_dict(state)
    exact.load_state_dict(state)
    before_relu = copy.deepcopy(exact)(x.double()) + (residual if has_residual else 0)
    # where rounding decides whether the ReLU is on
    dy = torch.where(before_relu.abs() < 1e-3, 0, dy)
    found = computed(fused, ours, x, residual, dy)
    expected = computed(plain, exact, x.double(), residual.double(), dy.double())
    ours.load_state_dict(state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = computed(fused, ours, x, residual, dy)
    ours.load_state_dict(state)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(found, captured, strict=True))

    def errors(values: list[torch.Tensor]) -> list[float]:
        pairs = zip(values, expected, strict=True)
        return [
            ((one.double() - other).norm() / other.double().norm()).item() for one, other in pairs
        ]

    ours_off, torchs_off = errors(found), errors(computed(plain, torchs, x, residual, dy))
    figure(
        f"batch norm in {dtype}: off by {max(ours_off):.1e}, "
        f"torch's kernels by {max(torchs_off):.1e}"
    )
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 3e-6}[dtype]
    assert found[0].dtype == dtype
    assert max(ours_off) <= rounding
    assert "Normalize" in str(fused(ours, x.requires_grad_(), residual).grad_fn), (
        "torch's kernels computed it"
    )
