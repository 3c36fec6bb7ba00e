"""What a process of a job tells Lightning and torch of its place and its device, on machines that are not here."""

import contextlib
from pathlib import Path

import pytest
import torch

from lockstep import config as configuration
from lockstep import session
from lockstep.environment import World
from lockstep.run_folder import RunFolder
from lockstep.schema import Config
from lockstep.session import JoinedEnvironment, Session


def config_of(*texts: str) -> Config:
    return configuration.checked(configuration.composed([*texts, "strategy=cpu"]))


def session_of(config: Config, place: World, gpus: tuple[int, ...], folder: Path) -> Session:
    return Session(
        config=config,
        folder=RunFolder(folder),
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        num_local=len(gpus),
        device=torch.device("cuda", gpus[place.local_rank]),
        gpus=gpus,
        precision="float32",
        precision_reason="",
        environment=JoinedEnvironment(place),
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
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_visible)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    here = session_of(config_of(), World("srun", 3, 1, 1, 4), gpus, tmp_path)
    trainer = session.lightning_trainer(here, logger=False, enable_checkpointing=False)
    assert trainer.strategy.root_device == torch.device(device)
    assert (trainer.world_size, trainer.global_rank, trainer.local_rank) == (4, 3, 1)
