"""What a training on a GPU does not wait for, checkpoints and logged values, ends as if it had waited."""

import functools
import resource
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.runs.folder import EXIT_FAILED, RunFolder
from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, difference, environ, train_all, write_run

pytestmark = pytest.mark.processes

# 18 steps an epoch, of which the host is 8 ahead
RECIPE = (*SMALL, "global_batch_size=4", "model.dropout=0", "trainer.log_every_n_steps=1", "logger=tensorboard")
ON_GPU = tuple(override for override in RECIPE if override != "strategy=cpu")
HELD = 2 * 18  # the step after which checkpoints are held
HOLDS = f"+callbacks.holds={{_target_:tests.support.callbacks.HoldsCheckpoints,step:{HELD}}}"
KILL = f"hook:on_train_batch_end,step:{HELD + 10},flushes:false"
KILLED = f"+callbacks.killed={{_target_:tests.support.callbacks.Killed,{KILL}}}"
LIMIT_BYTES = 40 * 2**10  # of a file: every other file of a run is smaller, a checkpoint is not
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
weight = torch.arange(24.0, device="cuda").view(1, 4, 2, 3).contiguous(memory_format=torch.channels_last)
state = OrderedDict(weight=weight, step=torch.ones(()))
state._metadata = {"": {"version": 2}}
io = AtomicCheckpointIO(thread, (path,))
io.save_checkpoint({"global_step": 1, "state_dict": state}, path)
weight.zero_()
state["step"].zero_()
assert not path.exists()
gate.set()
io.teardown()
"""


@pytest.fixture(autouse=True, scope="module")
def a_gpu_in_this_process() -> Iterator[None]:
    """Configurations are checked here, where there is none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "num_visible_gpus", lambda: 1)
        yield


@pytest.fixture(scope="module")
def uncut(gpus: PretendedGpus, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("gpu") / "uncut", [*ON_GPU, "trainer.max_epochs=3"])
    train_all([folder], 1, **gpus.environ(1))
    return folder


def rows(folder: RunFolder) -> dict[int, dict[str, float]]:
    """The logged values of each step."""
    events = EventAccumulator(str(folder.curves("train"))).Reload()
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for tag in ("loss/step", "accuracy/step", "optimization/gradient_norm", "optimization/learning_rate"):
        for event in events.Scalars(tag):
            assert tag not in found[event.step]
            found[event.step][tag] = event.value
    return found


def test_a_file_holds_the_state_at_which_it_was_saved_in_memory_of_the_host(
    gpus: PretendedGpus, tmp_path: Path
) -> None:
    path = tmp_path / "last.ckpt"
    words = [sys.executable, "-c", SNAPSHOT, str(path)]
    subprocess.run(words, cwd=ROOT, env={**environ(), **gpus.environ(1)}, check=True)
    state = torch.load(path, weights_only=True)["state_dict"]
    assert state["weight"].device.type == "cpu"
    assert state["weight"].is_contiguous(memory_format=torch.channels_last)
    assert state["weight"].flatten().tolist() == [*range(24)]
    assert state["step"] == 1
    assert state._metadata == {"": {"version": 2}}


def test_the_values_of_a_step_are_logged_later_and_are_those_of_a_cpu(uncut: RunFolder, tmp_path: Path) -> None:
    on_cpu = write_run(tmp_path / "cpu", [*RECIPE, "trainer.max_epochs=3"])
    train_all([on_cpu], 1)
    expected, found = rows(on_cpu), rows(uncut)
    assert [*found] == [*expected] == [*range(1, 3 * 18 + 1)]
    for step, values in found.items():
        assert values == pytest.approx(expected[step], rel=1e-6), step


@pytest.mark.full
def test_a_kill_while_checkpoints_are_written_costs_one_epoch_and_a_resume_ends_like_the_uncut_run(
    gpus: PretendedGpus, uncut: RunFolder, tmp_path: Path
) -> None:
    folder = write_run(tmp_path / "run", [*ON_GPU, "trainer.max_epochs=3", HOLDS, KILLED])
    train_all([folder], 1, -signal.SIGKILL, **gpus.environ(1))
    files = (folder.last_checkpoint, folder.best_checkpoint)
    saved = [torch.load(file, weights_only=True)["global_step"] for file in files]
    assert saved == [HELD - 18] * 2, "the state before"
    train_all([folder], 1, **gpus.environ(1))
    assert difference(uncut, folder) == 0
    assert rows(folder) == rows(uncut)


@pytest.mark.full
def test_values_that_wait_for_the_device_are_logged_before_a_checkpoint(
    gpus: PretendedGpus, uncut: RunFolder, tmp_path: Path
) -> None:
    often = "+callbacks.last.every_n_train_steps=7"
    folder = write_run(tmp_path / "run", [*ON_GPU, "trainer.max_epochs=3", often, KILLED])
    for code in (-signal.SIGKILL, 0):
        train_all([folder], 1, code, **gpus.environ(1))
    assert rows(folder) == rows(uncut)


@pytest.mark.full
def test_a_checkpoint_that_finds_no_room_ends_a_run_with_the_line_of_a_cpu(gpus: PretendedGpus, tmp_path: Path) -> None:
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.RLIM_INFINITY))
    words = command(*ON_GPU, "trainer.max_epochs=1")
    ends = []
    for settings, more in ((["strategy=cpu"], {}), ([], gpus.environ(1, path=str(ROOT)))):
        cwd, env = tmp_path / str(len(settings)), {**environ(), **more}
        cwd.mkdir()
        done = subprocess.run(
            [*words, *settings], cwd=cwd, env=env, capture_output=True, text=True, preexec_fn=limit, timeout=PATIENCE_S
        )
        folder = RunFolder((cwd / "outputs" / "latest").resolve())
        line, _ = done.stderr.splitlines()
        assert "checkpoints/best.ckpt cannot be written: File too large. Fix that, then resume" in line
        status = folder.read_status()
        assert (done.returncode, status["state"], status["reason"]) == (EXIT_FAILED, "failed", line)
        ends.append([path.name for path in folder.checkpoints.iterdir()])
    assert ends == [[], []]
