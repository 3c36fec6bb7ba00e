"""A training on a GPU does not wait for checkpoints and logged values.

It ends as if it had waited.
"""

import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.runs.folder import RunFolder
from tests.support.callbacks import ends_after
from tests.support.gpus import PretendedGpus
from tests.support.harness import ROOT, SMALL, difference, environ, train_all, write_run

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("four_gpus_here")]

# 18 steps an epoch, of which the host is 8 ahead
RECIPE = (
    *SMALL,
    "global_batch_size=4",
    "model.dropout=0",
    "trainer.log_every_n_steps=1",
    "logger=tensorboard",
)
ON_GPU = (*(override for override in RECIPE if override != "strategy=cpu"), "trainer.devices=1")
HELD = 2 * 18  # the step after which checkpoints are held
HOLDS = f"+callbacks.holds={{_target_:tests.support.callbacks.HoldsCheckpoints,step:{HELD}}}"
KILLED = ends_after(HELD + 10, "SIGKILL")
# the thread is held until the weights have changed
SNAPSHOT = """
import sys, threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from lockstep.assembly.checkpoint_io import AtomicCheckpointIO

path, gate, thread = Path(sys.argv[1]), threading.Event(), ThreadPoolExecutor(1)
thread.submit(gate.wait)
weight = torch.arange(24.0, device="cuda").view(1, 4, 2, 3)
weight = weight.contiguous(memory_format=torch.channels_last)
state = OrderedDict(weight=weight, step=torch.ones(()))
io = AtomicCheckpointIO(thread, (path,))
io.save_checkpoint({"global_step": 1, "state_dict": state}, path)
weight.zero_()
state["step"].zero_()
assert not path.exists()
gate.set()
io.teardown()
"""


@pytest.fixture(scope="module")
def uncut(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("gpu") / "uncut", [*ON_GPU, "trainer.max_epochs=3"])
    train_all([folder], 1, **gpus.environ(1))
    return folder


def rows(folder: RunFolder) -> dict[int, dict[str, float]]:
    """The logged values of each step."""
    events = EventAccumulator(str(folder.curves("train"))).Reload()
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for tag in (
        "loss/step",
        "accuracy/step",
        "optimization/gradient_norm",
        "optimization/learning_rate",
    ):
        for event in events.Scalars(tag):
            assert tag not in found[event.step]
            found[event.step][tag] = event.value
    return found


@pytest.mark.full
def test_snapshot_of_checkpoint(gpus: PretendedGpus, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    words = [sys.executable, "-c", SNAPSHOT, str(path)]
    subprocess.run(words, cwd=ROOT, env={**environ(), **gpus.environ(1)}, check=True)
    state = torch.load(path, weights_only=True)["state_dict"]
    assert state["weight"].is_contiguous(memory_format=torch.channels_last)
    assert state["weight"].flatten().tolist() == [*range(24)]
    assert state["step"] == 1


@pytest.mark.full
def test_logged_values_as_on_cpu(uncut: RunFolder, tmp_path: Path) -> None:
    on_cpu = write_run(tmp_path / "cpu", [*RECIPE, "trainer.max_epochs=3"])
    train_all([on_cpu], 1)
    expected, found = rows(on_cpu), rows(uncut)
    assert [*found] == [*expected] == [*range(1, 3 * 18 + 1)]
    for step, values in found.items():
        assert values == pytest.approx(expected[step], rel=1e-6), step


@pytest.mark.full
@pytest.mark.parametrize(
    "more", [HOLDS, "+callbacks.last.every_n_train_steps=7"], ids=["while written", "before"]
)
def test_resume_after_kill(
    gpus: PretendedGpus, uncut: RunFolder, tmp_path: Path, more: str
) -> None:
    """The process is killed while checkpoints are written, or after one.

    Before that one, values that wait for the device are logged.
    """
    folder = write_run(tmp_path / "run", [*ON_GPU, "trainer.max_epochs=3", more, KILLED])
    for code in (-signal.SIGKILL, 0):
        train_all([folder], 1, code, **gpus.environ(1))
    assert rows(folder) == rows(uncut)
    if more == HOLDS:  # the last checkpoint of the other one is of step 49
        assert difference(uncut, folder) == 0
