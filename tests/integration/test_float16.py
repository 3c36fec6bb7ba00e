"""float16 on pretended GPUs: one scale and the same skipped steps on any number of workers.

The steps of one worker are those of torch's GradScaler: tests/unit/models/test_loss_scale.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import EXIT_STOPPED, RunFolder
from tests.support.gpus import PretendedGpus
from tests.support.harness import train_all, write_run

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("four_gpus_here")]

GROWTH_INTERVAL = 2
CUT = 6  # the stop takes effect after the next step, between two growths
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
)


def recipe(num_workers: int, *more: str, stop_after: int = 0) -> list[str]:
    follows = f"growth_interval:{GROWTH_INTERVAL},stop_after:{stop_after}"
    scales = f"+callbacks.scales={{_target_:tests.support.callbacks.Scales,{follows}}}"
    return [*RECIPE, f"trainer.devices={num_workers}", scales, *more]


def scales(folder: RunFolder) -> list[float]:
    return [float(line) for line in (folder.path / "scales").read_text().split()]


def net(folder: RunFolder) -> dict[str, torch.Tensor]:
    return torch.load(folder.last_checkpoint, map_location="cpu", weights_only=True)["state_dict"]


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    names = [name for name in other if name.startswith("net.")]
    return max((one[name].double() - other[name].double()).abs().max().item() for name in names)


@pytest.fixture(scope="module")
def alone(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("alone") / "run", recipe(1))
    train_all([folder], 1, **gpus.environ(1))
    assert folder.read_summary()["skipped_steps"] > 2
    return folder


@pytest.mark.full
@pytest.mark.parametrize(
    ("more", "stop_after"),
    [(("trainer.worker_weights=[2,0,1]",), 0), ((), CUT)],
    ids=["uneven worker_weights", "resumed"],
)
def test_skipped_steps_any_workers(
    alone: RunFolder,
    gpus: PretendedGpus,
    tmp_path: Path,
    figure: Any,
    more: tuple[str, ...],
    stop_after: int,
) -> None:
    """A resume on another number of workers continues the growth of the scale."""
    folder = write_run(
        tmp_path / "run", recipe(2 if stop_after else 3, *more, stop_after=stop_after)
    )
    if stop_after:
        train_all([folder], 2, EXIT_STOPPED, **gpus.environ(3))
        folder.config.write_text(folder.config.read_text().replace("devices: 2", "devices: 3"))
    train_all([folder], 3, **gpus.environ(3))
    assert scales(folder) == scales(alone)
    assert folder.read_summary()["skipped_steps"] == alone.read_summary()["skipped_steps"]
    worst = difference(net(folder), net(alone))
    figure(f"{worst:.1e}")
    assert worst <= 5e-3
