"""float16 on pretended GPUs: one scale and the same skipped steps on any number of workers.

The steps of one worker are those of torch's GradScaler: tests/unit/models/test_loss_scale.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from tests.support.callbacks import ends_after
from tests.support.gpus import PretendedGpus
from tests.support.harness import train_all, write_run

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("four_gpus_here")]

CUT = ends_after(6, "SIGTERM")  # the stop takes effect after the next step, between two growths
# each of the marked samples overflows float16 on the one rank that has it
RECIPE = (
    "data._target_=tests.support.sources.overflowing",
    "+data.marked=[3,17]",
    "model._target_=tests.support.networks.HasOverflows",
    "+model.hidden=8",
    "trainer.precision=float16",
    "trainer.max_epochs=3",
    "trainer.gradient_clip_norm=1.6",  # above some norms and below others
    "trainer.accumulate_grad_batches=2",
    "trainer.log_every_n_steps=1",
    "global_batch_size=16",
    "optimizer.lr=0.05",
    "task.label_smoothing=0",
    "scheduler=constant",
    "logger=none",
    "callbacks.pictures=null",
    "+callbacks.scales={_target_:tests.support.callbacks.Scales,growth_interval:2}",
)


def scales(folder: RunFolder) -> list[float]:
    return [float(line) for line in (folder.path / "scales").read_text().split()]


def net(folder: RunFolder) -> dict[str, torch.Tensor]:
    saved = torch.load(folder.last_checkpoint, map_location="cpu", weights_only=True)
    return {name: value for name, value in saved["state_dict"].items() if name.startswith("net.")}


@pytest.fixture(scope="module")
def alone(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("alone") / "run", [*RECIPE, "trainer.devices=1"])
    train_all([folder], 1, **gpus.environ(1))
    assert folder.read_summary()["skipped_steps"] > 2
    return folder


@pytest.mark.full
@pytest.mark.parametrize(
    "more", ["trainer.worker_weights=[2,0,1]", CUT], ids=["uneven worker_weights", "resumed"]
)
def test_skipped_steps_any_workers(
    alone: RunFolder, gpus: PretendedGpus, tmp_path: Path, figure: Any, more: str
) -> None:
    """A resume on another number of workers continues the growth of the scale."""
    devices = 2 if more == CUT else 3
    folder = write_run(tmp_path / "run", [*RECIPE, f"trainer.devices={devices}", more])
    if more == CUT:
        train_all([folder], 2, EXIT_STOPPED, **gpus.environ(3))
        folder.config.write_text(folder.config.read_text().replace("devices: 2", "devices: 3"))
    train_all([folder], 3, **gpus.environ(3))
    assert scales(folder) == scales(alone)
    assert folder.read_summary()["skipped_steps"] == alone.read_summary()["skipped_steps"]
    found, expected = net(folder), net(alone)
    worst = max((found[name].double() - expected[name]).abs().max().item() for name in expected)
    figure(f"{worst:.1e}")
    assert worst <= 5e-3
