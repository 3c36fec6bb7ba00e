"""The rank, device and precision that a process of a job gives to Lightning and torch, on simulated machines."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities import rank_zero_only

from lockstep.assembly import run_parts, session
from lockstep.assembly.process_group import JoinedEnvironment
from lockstep.assembly.session import Session
from lockstep.config import errors
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.schema.configuration import Config
from lockstep.data.splits import ImageError
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.tasks.scores import MetricError


def config_of(*texts: str) -> Config:
    return validation.check_config(compose.compose_config([*texts, "strategy=cpu"]))


def session_of(config: Config, world: World, gpus: tuple[int, ...], folder: Path) -> Session:
    return Session(
        config=config,
        folder=RunFolder(folder),
        rank=world.rank,
        local_rank=world.local_rank,
        world_size=world.world_size,
        num_local=len(gpus),
        device=torch.device("cuda", gpus[world.local_rank]),
        gpus=gpus,
        precision="float32",
        precision_reason="",
        environment=JoinedEnvironment(world),
        held=contextlib.ExitStack(),
    )


@pytest.mark.parametrize(
    ("gpus", "num_visible", "device"),
    [((0, 0), 1, "cuda:0"), ((0, 1), 2, "cuda:1"), ((3, 1), 4, "cuda:1")],
    ids=["of its own", "shared", "named"],
)
def test_lightning_trains_on_the_gpu_of_the_worker(
    gpus: tuple[int, ...], num_visible: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 3 of two workers on each of two machines."""
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # which Lightning sets for the whole process: taken back after this
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_visible)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    here = session_of(config_of(), World("srun", 3, 1, 1, 4), gpus, tmp_path)
    trainer = run_parts.lightning_trainer(here, L.LightningModule(), logger=False, enable_checkpointing=False)
    assert trainer.strategy.root_device == torch.device(device)
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank) == (4, 3, 1)


IMAGES = [f"image {number}.png cannot be read: replace or delete it." for number in range(15)]


@pytest.mark.parametrize(
    ("error", "lines"),
    [(ImageError(IMAGES), IMAGES), (MetricError("two\nlines"), ["two\nlines"])],
    ids=["images", "metric"],
)
def test_every_image_and_every_metric_that_cannot_be_used_is_an_error(error: ValueError, lines: list[str]) -> None:
    with pytest.raises(errors.ConfigError) as caught, session.open_session(RunFolder(Path()), config_of(), None):
        raise error
    assert list(map(str, caught.value.errors)) == lines


# -- precision ---------------------------------------------------------------------------------------------------------


class Card:
    """A simulated GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capability: tuple[int, int] = (9, 0)
        monkeypatch.setattr("lockstep.system.hardware.num_visible_gpus", lambda: 1)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        monkeypatch.setattr("torch.cuda.set_device", lambda number: None)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "A Card")
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: self.capability)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    yield Card(monkeypatch)
    with session.open_session(RunFolder(Path()), config_of(), None):  # of a CPU: torch's state as other tests have it
        pass


def opened(*texts: str) -> tuple[str, str]:
    """Precision and reason of a session on the machine's GPU, if it has one."""
    config = validation.check_config(compose.compose_config(texts))
    with session.open_session(RunFolder(Path()), config, None) as here:
        return here.precision, here.precision_reason


def tf32() -> set[bool]:
    """Whether convolutions, recurrent layers and products take TF32, by all that torch and Lightning read."""
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
def test_float32_is_float32_whatever_was_set_before(card: Card, before: str) -> None:
    exec(before)
    assert opened("trainer.precision=float32") == ("float32", "as set")
    assert tf32() == {False}
    exec(before)
    assert opened("trainer.precision=tf32") == ("tf32", "as set: float32, of which A Card multiplies 11 of 24 bits")
    assert tf32() == {True}
    for precision in ("float64", "bfloat16", "auto"):
        opened(f"trainer.precision={precision}")
        assert tf32() == {False}
        exec(before)


def test_tf32_needs_a_gpu_that_has_it(card: Card) -> None:
    card.capability = (7, 5)
    with pytest.raises(errors.ConfigError) as caught:
        opened("trainer.precision=tf32")
    assert str(caught.value) == "trainer.precision=tf32, but A Card has no TF32: use float32"
    assert opened("trainer.precision=auto") == (
        "float32",
        "A Card has no bfloat16 arithmetic; try trainer.precision=float16",
    )
    with pytest.raises(errors.ConfigError) as caught:
        opened("trainer.precision=tf32", "strategy=cpu")
    assert str(caught.value) == "trainer.precision=tf32 needs GPUs, and this run uses none: use float32"


def test_float16_is_for_gpus_and_named_where_they_have_it_and_no_bfloat16(card: Card) -> None:
    assert opened("trainer.precision=float16") == ("float16", "as set")
    card.capability = (6, 1)
    assert opened("trainer.precision=auto") == ("float32", "A Card has no bfloat16 arithmetic")
    with pytest.raises(errors.ConfigError) as caught:
        opened("trainer.precision=float16", "strategy=cpu")
    assert str(caught.value) == "trainer.precision=float16 needs GPUs, and this run uses none: use float32"


def test_a_worker_without_bfloat16_decides_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [("bfloat16", "A Card has tensor cores"), ("float32", "An Old Card has no bfloat16 arithmetic")]
    monkeypatch.setattr(session, "gather_objects", lambda mine: choices)
    with session.open_session(RunFolder(tmp_path), config_of(), None) as here:
        assert (here.precision, here.precision_reason) == choices[1]
