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
def runs(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """A training, and the same one killed while checkpoints are written, and after one.

    Before that one, values that wait for the device are logged.
    """
    root = tmp_path_factory.mktemp("gpu")
    settings = {
        "uncut": (),
        "while written": (HOLDS, KILLED),
        "after": ("+callbacks.last.every_n_train_steps=7", KILLED),
    }
    found = {
        name: write_run(root / name, [*ON_GPU, "trainer.max_epochs=3", *more])
        for name, more in settings.items()
    }
    uncut, while_written, after = found.values()
    train_all([uncut, while_written], 1, -signal.SIGKILL, **gpus.environ(1))
    train_all([while_written, after], 1, -signal.SIGKILL, **gpus.environ(1))
    train_all([after], 1, **gpus.environ(1))
    return found


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
def test_logged_values_as_on_cpu(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    on_cpu = write_run(tmp_path / "cpu", [*RECIPE, "trainer.max_epochs=3"])
    train_all([on_cpu], 1)
    expected, found = rows(on_cpu), rows(runs["uncut"])
    assert [*found] == [*expected] == [*range(1, 3 * 18 + 1)]
    for step, values in found.items():
        assert values == pytest.approx(expected[step], rel=1e-6), step


@pytest.mark.full
def test_resume_after_kill(runs: dict[str, RunFolder]) -> None:
    uncut, while_written, after = runs.values()
    assert rows(while_written) == rows(after) == rows(uncut)
    # the last checkpoint of the other one is of step 49
    assert difference(uncut, while_written) == 0
