"""A training step has a budget of launches.

Each costs the host some 30 us on one H100, where a step lasts 5 ms.

A call of the dispatcher counts as one. For 270 of them CUDA launches about 390: four for a batch
norm, three for its gradient, two for that of a convolution.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import train_all, write_run

pytestmark = pytest.mark.processes

# the default training of narrow layers, which has as many launches as that of wide ones
DEFAULT = (
    "data=synthetic", "data.train_size=224", "data.val_size=16", "data.test_size=16",
    "data.image_size=8", "model.width=2", "global_batch_size=16", "trainer.max_epochs=1",
    "trainer.devices=1", "callbacks.pictures=null",
    "+callbacks.launches={_target_:tests.support.callbacks.CountsLaunches}",
)  # fmt: skip


@pytest.mark.full
def test_step_launch_budget(
    gpus: PretendedGpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 1)
    eager = write_run(tmp_path / "eager", [*DEFAULT, "trainer.graph=false"])
    graphed = write_run(tmp_path / "graphed", DEFAULT)
    train_all([eager, graphed], 1, **gpus.environ(1))
    for folder, budget in ((eager, 280), (graphed, 60)):
        steps = json.loads((folder.path / "launches.json").read_text())
        found = statistics.median(steps[5:])  # after the first steps, which make states and graphs
        figure(f"{folder.path.name}: {found:.0f} launches")
        assert found <= budget
