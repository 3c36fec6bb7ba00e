"""Reading ahead by processes or a thread changes no batch, no order and no position."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep.data.loader import ShardLoader, read_ahead
from tests.support.harness import ROOT, environ, wait_until
from tests.support.image_files import write_folder
from tests.support.plans import Plan
from tests.support.trainings import is_alive

# -- a thread --------------------------------------------------------------------------------------


def numbers(count: int, made: list[int]) -> Iterator[int]:
    for number in range(count):
        made.append(number)
        yield number


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read ahead")]


def test_order() -> None:
    assert list(read_ahead(range(20), 5, lambda x: x * x)) == [x * x for x in range(20)]
    assert list(read_ahead([], 5, lambda x: x)) == []
    assert threads() == []


def test_exception_in_its_place() -> None:
    ahead = read_ahead([5, 1, 0], 2, lambda x: 5 // x)
    assert [next(ahead) for _ in range(2)] == [1, 5]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert threads() == []


def test_left_early() -> None:
    made: list[int] = []
    ahead = read_ahead(numbers(1000, made), 2, lambda x: x)
    assert [next(ahead) for _ in range(4)] == [0, 1, 2, 3]
    del ahead
    wait_until(lambda: threads() == [])
    assert len(made) <= 7


# -- the position ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stop_after", [1, 12, 13])
def test_thread_keeps_batches(stop_after: int) -> None:
    plan = Plan()
    plain = plan.loader()
    ahead = ShardLoader(plain.dataset, plan.of(), prepare=lambda batch: batch)
    for _, batch, other in zip(range(stop_after), plain, ahead, strict=False):
        assert batch.shard == other.shard
        assert all(map(torch.equal, batch[:3], other[:3]))
        assert ahead.state_dict() == plain.state_dict()


# -- what goes wrong -------------------------------------------------------------------------------


SCRIPT = """
import multiprocessing, signal, sys
from pathlib import Path
from tests.support.image_files import read
from tests.support.plans import Plan
from lockstep.data.loader import ShardDataset, ShardLoader
from lockstep.data.prefetch import worker_settings

signal.signal(signal.SIGINT, lambda number, frame: print("signal", flush=True))
images = read(Path(sys.argv[1]), memory="stream").train
plan = Plan(num_samples=len(images), micro_batch_size=7)
dataset = ShardDataset(images.pixels, images.targets)
batches = iter(ShardLoader(dataset, plan.of(), **worker_settings(2)))
next(batches)
print(*[process.pid for process in multiprocessing.active_children()], flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A script that streams, in a group of its own; its worker processes must not run it again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(write_folder(tmp_path / "images"))],
        cwd=ROOT,
        env={**environ(), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.processes
def test_workers_and_signals(reader: subprocess.Popen[str]) -> None:
    assert reader.stdout is not None
    pids = [int(word) for word in reader.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(reader.pid, signal.SIGINT)
    assert reader.stdout.readline() == "signal\n"
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    assert all(is_alive(pid) for pid in pids)
    reader.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "end of the workers")
