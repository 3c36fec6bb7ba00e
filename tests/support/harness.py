"""Small runs for tests, many of them in one group of worker processes."""

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from lockstep.config.overrides import plan
from lockstep.config.saved import config_file
from lockstep.launch import child
from lockstep.launch import worker as training
from lockstep.launch.worker import Job, run_here
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import outer_world
from lockstep.system.process import leave

ROOT = Path(__file__).parents[2]
# longest wait for an event, far more than a busy machine needs, and less than the limit of pytest
# (pyproject.toml), so that the wait fails first and names the event
PATIENCE_S = 600.0
SMALL = (
    "data=synthetic",
    "data.train_size=70",
    "data.val_size=23",
    "data.test_size=31",
    "data.image_size=16",
    "model.width=4",
    "model.dropout=0.2",
    "trainer.precision=float64",
    "trainer.max_epochs=2",
    "trainer.gradient_clip_norm=0.5",
    "trainer.log_every_n_steps=2",
    "global_batch_size=16",
    "eval_batch_size=10",
    "augment.crop_padding=2",
    "augment.flip=true",
    "augment.cutout=4",
    "strategy=cpu",
    f"strategy.timeout_s={PATIENCE_S / 2:.0f}",
    "callbacks.pictures=null",
)
# micro-batches with an incomplete last group whose last micro-batch takes in the last sample; every
# augmentation that is drawn for the batch
ACCUMULATE_AUGMENT = (
    "global_batch_size=24",
    "trainer.accumulate_grad_batches=4",
    "data.train_size=67",
    "data.channels=3",
    "augment.trivial=true",
    "augment.flip=alternating",
    "augment.erasing=0.5",
    "augment.mixup=0.4",
    "augment.cutmix=1.0",
)
# every augmentation that is drawn by the index of a sample
PHOTOGRAPH_AUGMENT = (
    "data.channels=3",
    "augment.rand_augment.num_ops=2",
    "augment.color_jitter={brightness:0.4,contrast:0.4,saturation:0.4,hue:0.1}",
    "augment.rotation=20",
    "augment.crop_border=reflect",
    "augment.vertical_flip=true",
    "augment.cutout_inside=true",
)
# what SMALL leaves out for speed
WATCHED = ("callbacks.pictures={_target_:lockstep.callbacks.Pictures,num_images:8}",)


def without_network() -> list[str]:
    """SMALL without the keys of its network, for another one."""
    return [override for override in SMALL if not override.startswith("model.")]


def own_network(name: str) -> list[str]:
    """SMALL with a network of tests/support/networks.py."""
    return [*without_network(), f"model._target_=tests.support.networks.{name}", "+model.hidden=4"]


def environ(num_threads: int = 1) -> dict[str, str]:
    """Variables of a child process: few threads, and none of a launcher."""
    leaked = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in leaked}
    return {**kept, "OMP_NUM_THREADS": str(num_threads), "PYTHONUNBUFFERED": "1"}


def command(*overrides: str) -> list[str]:
    """Command line of a training."""
    return [sys.executable, str(ROOT / "train.py"), *overrides]


def write_run(path: Path, overrides: Sequence[str]) -> RunFolder:
    """Write a run folder that can be trained."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    config_file.save(plan(overrides).configs[0], folder.config)
    folder.claim()
    return folder


def train_all(
    folders: Sequence[RunFolder], num_workers: int, code: int = 0, /, **more: str
) -> list[str]:
    """Train the runs one after the other with the same processes.

    Returns the output of each process.

    The processes are forks, with `more` variables new interpreters. Each must end with the exit
    code `code`.
    """
    paths = [str(folder.path) for folder in folders]
    # a store for each run: process groups that come after each other in one store can wait for each
    # other's keys
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in paths]
    text = json.dumps([(path, store.port) for path, store in zip(paths, stores, strict=True)])
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as started:
        logs = [Path(scratch, f"rank{rank}.log") for rank in range(num_workers)]
        workers: list[BaseProcess | subprocess.Popen[bytes]] = []
        for rank, log in enumerate(logs):
            ids = {"RANK": rank, "LOCAL_RANK": rank} if num_workers > 1 else {}
            ids |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), num_workers) if ids else {}
            environment = {
                **environ(),
                **variables,
                **{name: str(value) for name, value in ids.items()},
                **more,
            }
            workers.append(
                _fresh(text, environment, log)
                if more
                else child.start(partial(_work, text), environment, log=log)
            )
            started.callback(workers[-1].kill)
        codes = [_code(worker) for worker in workers]
        outputs = [log.read_text() for log in logs]
    for rank, found in enumerate(codes):
        assert found == code, f"rank {rank}:\n{outputs[rank]}"
    del stores
    return outputs


def _code(worker: BaseProcess | subprocess.Popen[bytes]) -> int | None:
    if isinstance(worker, BaseProcess):
        worker.join(PATIENCE_S)
        return worker.exitcode
    return worker.wait(PATIENCE_S)


def _fresh(text: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        words = [sys.executable, "-m", "tests.support.harness", text]
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )


def state(folder: RunFolder) -> dict[str, torch.Tensor]:
    """Weights, batch-norm statistics and momentum at the end of a run."""
    saved = torch.load(folder.last_checkpoint, map_location="cpu", weights_only=True)
    found = {f"net {name}": value for name, value in saved["state_dict"].items()}
    # with averaged weights these are others
    found |= {
        f"trained {name}": value for name, value in saved.get("current_model_state", {}).items()
    }
    for which, optimizer in enumerate(saved["optimizer_states"]):
        for number, slots in optimizer["state"].items():
            tensors = {
                name: value for name, value in slots.items() if isinstance(value, torch.Tensor)
            }
            found |= {
                f"optimizer {which} {number} {name}": value for name, value in tensors.items()
            }
    return found


def difference(one: RunFolder, other: RunFolder) -> float:
    """Largest difference in state and metrics of two runs; NaN where one of them is NaN."""
    a, b = state(one), state(other)
    assert a.keys() == b.keys()
    found = [(a[name].double() - b[name].double()).abs().max().item() for name in a]
    rows, others = one.read_metrics(), other.read_metrics()
    assert [row["epoch"] for row in rows] == [row["epoch"] for row in others]
    for row, other_row in zip(rows, others, strict=True):
        assert row.keys() == other_row.keys()
        for name in row.keys() - {"epoch", "seconds", "images_per_s"}:
            found.append(abs(float(row[name]) - float(other_row[name])))
    return math.nan if any(map(math.isnan, found)) else max(found)


def wait_until(
    condition: Any,
    what: str = "condition",
    log: Callable[[], str] = str,
    *,
    every_s: float = 0.02,
) -> None:
    """Poll until `condition()` holds; fail after PATIENCE_S, with what `log` returns then."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s\n{log()}"
        time.sleep(every_s)


def _work(text: str) -> int:
    os.chdir(ROOT)
    for path, port in json.loads(text):
        os.environ["MASTER_PORT"] = str(port)
        job = Job(training.train, RunFolder(Path(path)), {"command": "none", "has_test": True})
        code = run_here(job, outer_world(os.environ))
        if code:
            return code
    return 0


if __name__ == "__main__":
    # as a command does: threads of gloo can abort an interpreter that exits
    leave(partial(_work, sys.argv[1]))
