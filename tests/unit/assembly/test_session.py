"""Simulated machines: the rank, device and precision that Lightning and torch get in a process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only

from lockstep.assembly import run_parts, session
from lockstep.assembly.process_group import JoinedEnvironment
from lockstep.assembly.session import Session
from lockstep.config import errors
from lockstep.data.splits import ImageError
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.tasks.scores import MetricError
from tests.support.composed import config_of


@pytest.mark.parametrize(
    ("gpus", "num_visible", "device"),
    [((0, 0), 1, "cuda:0"), ((0, 1), 2, "cuda:1"), ((3, 1), 4, "cuda:1")],
    ids=["of its own", "shared", "named"],
)
def test_root_device(
    gpus: tuple[int, ...],
    num_visible: int,
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 3 of two workers on each of two machines."""
    # which Lightning sets for the whole process: taken back after this
    monkeypatch.setattr(rank_zero_only, "rank", 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_visible)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    here = Session(
        config=config_of("strategy=cpu"),
        folder=RunFolder(tmp_path),
        rank=3,
        local_rank=1,
        world_size=4,
        num_local=len(gpus),
        device=torch.device("cuda", gpus[1]),
        gpus=gpus,
        precision="float32",
        precision_reason="",
        environment=JoinedEnvironment(World("srun", 3, 1, 1, 4)),
        exit_stack=contextlib.ExitStack(),
    )
    trainer = run_parts.lightning_trainer(
        here, L.LightningModule(), logger=False, enable_checkpointing=False
    )
    assert trainer.strategy.root_device == torch.device(device)
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank) == (4, 3, 1)


IMAGES = [f"image {number}.png cannot be read: replace or delete it." for number in range(15)]


@pytest.mark.parametrize(
    ("error", "lines"),
    [(ImageError(IMAGES), IMAGES), (MetricError("two\nlines"), ["two\nlines"])],
    ids=["images", "metric"],
)
def test_errors_listed(error: ValueError, lines: list[str]) -> None:
    with (
        pytest.raises(errors.ConfigError) as caught,
        session.open_session(RunFolder(Path()), config_of("strategy=cpu"), None),
    ):
        raise error
    assert list(map(str, caught.value.errors)) == lines


# -- precision -------------------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A simulated GPU, whose capability a test may change."""
    gpu = SimpleNamespace(capability=(9, 0))
    monkeypatch.setattr("lockstep.system.hardware.num_visible_gpus", lambda: 1)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.set_device", lambda number: None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A Card")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: gpu.capability)
    yield gpu
    # of a CPU: torch's state as other tests have it
    with session.open_session(RunFolder(Path()), config_of("strategy=cpu"), None):
        pass


def opened(*texts: str) -> tuple[str, str]:
    """Precision and reason of a session on the machine's GPU, if it has one."""
    with session.open_session(RunFolder(Path()), config_of(*texts), None) as here:
        return here.precision, here.precision_reason


def tf32() -> set[bool]:
    """Whether convolutions, recurrent layers and products take TF32.

    All flags that torch and Lightning read are included.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return {
        bool(cudnn.allow_tf32),
        cudnn.conv.fp32_precision == "tf32",
        cudnn.rnn.fp32_precision == "tf32",  # pyright: ignore[reportAttributeAccessIssue]
        bool(matmul.allow_tf32),
        matmul.fp32_precision == "tf32",
        torch.get_float32_matmul_precision() != "highest",
    }


@pytest.mark.parametrize(
    "before",
    [
        "pass",
        "torch.backends.fp32_precision = 'tf32'",
        "torch.backends.cudnn.conv.fp32_precision = 'tf32'",
        "torch.set_float32_matmul_precision('medium')",
    ],
)
@pytest.mark.usefixtures("card")
def test_tf32_off_in_float32(before: str) -> None:
    exec(before)
    opened("trainer.precision=float32")
    assert tf32() == {False}
    exec(before)
    opened("trainer.precision=tf32")
    assert tf32() == {True}
    for precision in ("float64", "bfloat16", "auto"):
        opened(f"trainer.precision={precision}")
        assert tf32() == {False}
        exec(before)


@pytest.mark.parametrize(
    ("capability", "texts", "precision"),
    [
        ((9, 0), ("trainer.precision=float16",), "float16"),
        ((7, 5), ("trainer.precision=auto",), "float32"),
        ((6, 1), ("trainer.precision=auto",), "float32"),
    ],
)
def test_precision_gpu_capability(
    card: SimpleNamespace, capability: tuple[int, int], texts: tuple[str, ...], precision: str
) -> None:
    card.capability = capability
    found, reason = opened(*texts)
    assert found == precision
    assert ("try trainer.precision=float16" in reason) == (capability == (7, 5))


@pytest.mark.parametrize(
    ("precision", "more"),
    [("tf32", ()), ("tf32", ("strategy=cpu",)), ("float16", ("strategy=cpu",))],
)
def test_precision_refused(card: SimpleNamespace, precision: str, more: tuple[str, ...]) -> None:
    card.capability = (7, 5)
    with pytest.raises(errors.ConfigError, match=f"trainer.precision={precision}.*: use float32"):
        opened(f"trainer.precision={precision}", *more)


def test_precision_mixed_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [
        ("bfloat16", "A Card has tensor cores"),
        ("float32", "An Old Card has no bfloat16 arithmetic"),
    ]
    monkeypatch.setattr(session, "gather_objects", lambda mine: choices)
    with session.open_session(RunFolder(tmp_path), config_of("strategy=cpu"), None) as here:
        assert (here.precision, here.precision_reason) == choices[1]
