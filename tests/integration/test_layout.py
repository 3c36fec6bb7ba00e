"""No network is trained in a layout that oneDNN cannot compute on this CPU.

All other networks keep the fast layout.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.composing.compose import groups
from lockstep.models.layout import AVX2_NUMBERS, AVX512_NUMBERS, faulty_convolution
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.compiler import needs_compiler
from tests.support.exact import cut_after, train, trained
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    SMALL,
    difference,
    environ,
    state,
    train_all,
    write_run,
)

pytestmark = [pytest.mark.full, pytest.mark.processes]
WITHOUT_AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
INSTRUCTIONS = {
    "widest": {},
    # a gradient that two threads get wrong need not crash
    "avx2": {**WITHOUT_AVX512, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
    "narrowest": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}
# dropout draws other masks in float64
ONE_EPOCH = (*SMALL, "trainer.max_epochs=1", "model.dropout=0")
FLOAT32 = (*ONE_EPOCH, "trainer.precision=float32")
MODELS = [option for option in groups(compose.CONF)["model"] if option.startswith("resnet18")]


def network(option: str, *changes: str) -> nn.Module:
    config = validation.check_config(compose.compose_config([f"model={option}", *changes]))
    return build.build(config.model, in_channels=1, num_classes=10)


# -- which networks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.Conv2d(channels, 8, 1, stride=2) for channels in (1, 7)),
        nn.Conv2d(4, 64, 1, stride=(1, 3), bias=False),
        nn.ConvTranspose2d(64, 7, 1, stride=2, output_padding=1),
    ],
    ids=str,
)
def test_faulty_convolution_found(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), layer))
    assert faulty_convolution(net, "float32", AVX2_NUMBERS) == "1.1"
    assert faulty_convolution(net, "bfloat16", AVX2_NUMBERS) is None
    assert faulty_convolution(net, "bfloat16", AVX512_NUMBERS) == "1.1"
    assert faulty_convolution(net, "float64", AVX512_NUMBERS) is None


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 4, 1, stride=2),
        nn.Conv2d(4, 8, 1),
        nn.Conv2d(4, 8, 2, stride=2),
        nn.Conv2d(4, 8, (1, 3), stride=2),
        nn.Conv2d(4, 8, 1, stride=2, groups=2),
        nn.ConvTranspose2d(4, 8, 1, stride=2),
    ],
    ids=str,
)
def test_faulty_convolution_none(layer: nn.Module) -> None:
    assert faulty_convolution(layer, "float32", AVX2_NUMBERS) is None


@pytest.mark.parametrize("option", MODELS)
def test_faulty_convolution_by_width(option: str) -> None:
    for num_written in (AVX2_NUMBERS, AVX512_NUMBERS):
        as_many, narrow = (
            network(option, f"model.width={width}") for width in (num_written, num_written - 1)
        )
        assert faulty_convolution(as_many, "float32", num_written) is None
        assert faulty_convolution(narrow, "float32", num_written) == "layer2.0.downsample.0"


def run(cwd: Path, arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={**environ(), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def test_unsafe_layout_refused(tmp_path: Path) -> None:
    settings = (*FLOAT32, "data.train_size=16")
    forced = write_run(tmp_path / "forced", [*settings, "trainer.memory_format=channels_last"])
    train_all([forced], 1, EXIT_CONFIG, **WITHOUT_AVX512)
    assert "the gradient of layer2.0.downsample.0 on this CPU" in forced.failure.read_text()
    saved = trained(tmp_path / "run", settings).config
    saved.write_text(
        saved.read_text().replace("memory_format: auto", "memory_format: channels_last")
    )
    evaluated = run(
        tmp_path, [sys.executable, "-m", "lockstep.cli.main", "eval", "run"], **WITHOUT_AVX512
    )
    assert evaluated.returncode == 0, evaluated.stderr


# -- the error itself, and the compiler ------------------------------------------------------------


COMPILED = """
import torch
from torch import nn
from lockstep.models import layout
from tests.support.modules import classifier

def gradient(how, is_compiled):
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 1, stride=2)
    net = nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(net, nn.Flatten(), nn.Linear(8, 4)).to(dtype)
    compiler = layout.CompiledNetwork if is_compiled else None
    module = classifier(net, layout=layout.choose_layout(how, None), compiler=compiler).to(dtype)
    images = torch.arange(16 * 784).remainder(251).to(torch.uint8).view(16, 1, 28, 28)
    module(images).square().sum().backward()
    return net[0][1].weight.grad.double()

dtype = torch.float64
expected = gradient("contiguous", False)
dtype = torch.float32
print(((gradient("contiguous", True) - expected).abs().max() / expected.abs().max()).item())
"""


@needs_compiler
def test_compiler_keeps_layout(tmp_path: Path) -> None:
    compiled = run(ROOT, [sys.executable, "-c", COMPILED], **WITHOUT_AVX512)
    assert compiled.returncode == 0, compiled.stderr
    assert float(compiled.stdout) < 1e-4


# -- whole trainings -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_float32_any_instructions(name: str, tmp_path: Path, float64: dict[int, RunFolder]) -> None:
    folders = {
        width: write_run(tmp_path / str(width), [*FLOAT32, f"model.width={width}"])
        for width in float64
    }
    train_all(list(folders.values()), 1, **INSTRUCTIONS[name])
    for width, folder in folders.items():
        expected = state(float64[width])
        # 1e-6 by rounding, 4e-4 where a value rounds to the other side of a ReLU; wrong gradients:
        # 0.02 and more
        worst = max(
            (value.double() - expected[key]).abs().max().item()
            for key, value in state(folder).items()
        )
        assert worst < 2e-3, f"model.width={width}"


@pytest.fixture(scope="module")
def float64(tmp_path_factory: pytest.TempPathFactory) -> dict[int, RunFolder]:
    """One training of each width in a precision that oneDNN does not compute."""
    path = tmp_path_factory.mktemp("float64")
    folders = {
        width: write_run(path / str(width), [*ONE_EPOCH, f"model.width={width}"])
        for width in (1, 7, 8)
    }
    train_all(list(folders.values()), 1)
    return folders


def test_resume_other_layout(tmp_path: Path) -> None:
    recipe = [*SMALL, "trainer.memory_format=channels_last"]
    alone, resumed = trained(tmp_path / "alone", recipe), write_run(tmp_path / "resumed", recipe)
    cut_after(resumed, 2)
    resumed.config.write_text(
        resumed.config.read_text().replace(
            "memory_format: channels_last", "memory_format: contiguous"
        )
    )
    assert train(resumed) == 0
    assert difference(alone, resumed) < 1e-12
    assert all(value.is_contiguous() for value in state(resumed).values())
