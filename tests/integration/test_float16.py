"""float16 on pretended GPUs: one scale and the same skipped steps on any number of workers.

The steps of one worker are those of torch's GradScaler: tests/unit/models/test_loss_scale.py.
"""

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
def runs(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """A training by one GPU, by three, and by one and then three."""
    root = tmp_path_factory.mktemp("float16")
    alone = write_run(root / "alone", [*RECIPE, "trainer.devices=1"])
    resumed = write_run(root / "resumed", [*RECIPE, "trainer.devices=1", CUT])
    uneven = write_run(
        root / "uneven", [*RECIPE, "trainer.devices=3", "trainer.worker_weights=[2,0,1]"]
    )
    train_all([alone, resumed], 1, EXIT_STOPPED, **gpus.environ(3))
    resumed.config.write_text(resumed.config.read_text().replace("devices: 1", "devices: 3"))
    train_all([resumed, uneven], 3, **gpus.environ(3))
    return {"alone": alone, "resumed": resumed, "uneven": uneven}


@pytest.mark.full
@pytest.mark.parametrize("name", ["uneven", "resumed"])
def test_skipped_steps_any_workers(runs: dict[str, RunFolder], figure: Any, name: str) -> None:
    """A resume on another number of workers continues the growth of the scale."""
    alone, folder = runs["alone"], runs[name]
    assert alone.read_summary()["skipped_steps"] > 2
    assert scales(folder) == scales(alone)
    assert folder.read_summary()["skipped_steps"] == alone.read_summary()["skipped_steps"]
    found, expected = net(folder), net(alone)
    worst = max((found[name].double() - expected[name]).abs().max().item() for name in expected)
    figure(f"{worst:.1e}")
    assert worst <= 5e-3
