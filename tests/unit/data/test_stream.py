"""Reading ahead, by processes or a thread: batches, order and position are those of reading one by one."""

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

from lockstep.data.loader import ShardDataset, ShardLoader, read_ahead
from lockstep.data.prefetch import worker_settings
from lockstep.data.sampler import GlobalBatches
from lockstep.data.splits import ImageError, whole
from lockstep.distributed.batch import Batch
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until
from tests.support.image_files import read, write_folder, write_image
from tests.support.plans import Plan
from tests.support.trainings import is_alive

# -- a thread ----------------------------------------------------------------------------------------------------------


def numbers(count: int, made: list[int]) -> Iterator[int]:
    for number in range(count):
        made.append(number)
        yield number


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read ahead")]


@pytest.mark.parametrize("depth", [1, 5])
def test_items_are_prepared_in_order_by_a_thread_that_is_at_most_depth_ahead(depth: int) -> None:
    made: list[int] = []
    found = []
    for item in read_ahead(numbers(20, made), depth, lambda x: x * x):
        expected = min(20, len(found) + 1 + depth)
        wait_until(lambda expected=expected: len(made) >= expected)
        time.sleep(0.005)
        assert len(made) == expected
        found.append(item)
    assert found == [x * x for x in range(20)]
    assert list(read_ahead([], depth, lambda x: x)) == []
    assert threads() == []


def test_an_exception_comes_in_its_place() -> None:
    ahead = read_ahead([5, 1, 0], 2, lambda x: 5 // x)
    assert [next(ahead) for _ in range(2)] == [1, 5]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    ahead = read_ahead((5 // x for x in (1, 0)), 2, lambda x: x)
    assert next(ahead) == 5
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert threads() == []


def test_the_thread_ends_with_an_iteration_that_is_left_early() -> None:
    made: list[int] = []
    ahead = read_ahead(numbers(1000, made), 2, lambda x: x)
    assert [next(ahead) for _ in range(4)] == [0, 1, 2, 3]
    del ahead
    wait_until(lambda: threads() == [])
    assert len(made) <= 7


# -- the position ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> ShardDataset:
    root = write_folder(tmp_path_factory.mktemp("streamed") / "images", count=30)
    images = read(root, memory="stream").train
    return ShardDataset(images.pixels, images.targets)


def streaming(images: ShardDataset, rank: int = 0, loads: list[int] | None = None) -> ShardLoader:
    return ShardLoader(images, batches_of(images, rank, loads), **worker_settings(2))


def batches_of(images: ShardDataset, rank: int, loads: list[int] | None) -> GlobalBatches:
    return Plan(num_samples=len(images), micro_batch_size=7).of(rank, loads)


def assert_equal(one: list[Batch], other: list[Batch]) -> None:
    assert [batch.shard for batch in one] == [batch.shard for batch in other]
    for a, b in zip(one, other, strict=True):
        assert (a.inputs.dtype, a.targets.dtype) == (torch.uint8, torch.int64)
        assert all(torch.equal(x, y) for x, y in zip(a[:3], b[:3], strict=True))


@pytest.mark.parametrize("stop_after", [1, 12, 13])
def test_the_thread_changes_no_batch_and_no_position(stop_after: int) -> None:
    plan = Plan()

    def prefetching() -> ShardLoader:
        plain = plan.loader()
        return ShardLoader(plain.dataset, plain.batch_sampler, prepare=lambda batch: batch)

    plain, ahead = plan.loader(), prefetching()
    for _, batch, other in zip(range(stop_after), plain, ahead, strict=False):
        assert_equal([batch], [other])
        assert ahead.state_dict() == plain.state_dict()
    resumed = prefetching()
    resumed.load_state_dict(ahead.state_dict())
    expected = plan.loader()
    expected.load_state_dict(plain.state_dict())
    assert_equal(list(resumed), list(expected))
    assert resumed.state_dict() == expected.state_dict()


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(("rank", "loads"), [(1, [2, 1]), (1, [1, 0])])
def test_processes_change_no_batch_and_no_position_in_any_epoch(
    streamed: ShardDataset, rank: int, loads: list[int]
) -> None:
    plain = ShardLoader(streamed, batches_of(streamed, rank, loads))
    ahead = streaming(streamed, rank, loads)
    for epoch in (0, 1):
        plain.batch_sampler.set_epoch(epoch)
        ahead.batch_sampler.set_epoch(epoch)
        for batch, other in zip(plain, ahead, strict=True):
            assert_equal([batch], [other])
            assert ahead.state_dict() == plain.state_dict()


@pytest.mark.full
@pytest.mark.processes
def test_processes_resume_in_the_middle_and_after_being_left_early(streamed: ShardDataset) -> None:
    ahead = streaming(streamed)
    first = [batch for _, batch in zip(range(2), ahead, strict=False)]
    state = ahead.state_dict()
    plain = ShardLoader(streamed, batches_of(streamed, 0, None))
    expected = list(plain)
    assert_equal(first, expected[:2])
    for loader in (ahead, streaming(streamed)):  # its processes have read on; fresh ones have not
        loader.load_state_dict(state)
        assert_equal(list(loader), expected[2:])


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_streamed_images_of_two_sizes_need_an_image_size(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_folder(tmp_path / part, count=5)
    write_image(tmp_path / "val" / "red fox" / "zzz.png", height=7, width=9)
    images = read(tmp_path, memory="stream", image_size=None).val
    with pytest.raises(ImageError, match=r"10x12 .*zzz\.png 7x9: set data\.image_size"):
        whole(images.pixels)


SCRIPT = """
import multiprocessing, signal, sys
from pathlib import Path
from tests.support.image_files import read
from tests.unit.data.test_stream import streaming
from lockstep.data.loader import ShardDataset

signal.signal(signal.SIGINT, lambda number, frame: print("signal", flush=True))
images = read(Path(sys.argv[1]), memory="stream").train
batches = iter(streaming(ShardDataset(images.pixels, images.targets)))
next(batches)
print(*[process.pid for process in multiprocessing.active_children()], flush=True)
sys.stdin.readline()
print(1 + len(list(batches)), flush=True)
sys.stdin.readline()
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
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        process.kill()


@pytest.mark.processes
@pytest.mark.parametrize("is_killed", [True, False])
def test_workers_ignore_signals_and_exit_with_the_training(reader: subprocess.Popen[str], is_killed: bool) -> None:
    assert reader.stdin is not None
    assert reader.stdout is not None
    pids = [int(word) for word in reader.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(reader.pid, signal.SIGINT)
    assert reader.stdout.readline() == "signal\n"
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.2)
    assert all(is_alive(pid) for pid in pids)
    if is_killed:
        reader.kill()
    else:
        reader.stdin.write("\n\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "3\n"
        assert reader.wait(PATIENCE_S) == 0
    wait_until(lambda: not any(map(is_alive, pids)), "end of the workers")
