"""Measure how time and memory grow with the number of images, of runs and of trials.

    python -m benchmarks.scale data
    python -m benchmarks.scale trainings
    python -m benchmarks.scale runs
    python -m benchmarks.scale trainings --images 1000000
    python -m benchmarks.scale data --images 1000000

Images are random JPEGs of 32x32 in the folders of ten classes, and a list with groups of five. Each
way has processes of its own. Its time at the smallest size is the fixed cost, which is subtracted
before a time is divided by the number of images, runs or trials above that size. Memory is the
largest anonymous memory of one process, which excludes mapped files. A round takes three minutes
on two cores. With 1,000,000 images `trainings` takes 25 and `data` 30, and some minutes more to
write and remove the images.
"""

import csv
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, alternate, parser, progress, publish, ratio_row
from lockstep.assembly import data_record
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_table import ImageTable, list_classes
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import complete_splits
from lockstep.data.sources.lists import read_list
from tests.support import boards

NUM_CLASSES, GROUP_SIZE, NUM_CELLS = 10, 5, 8
IMAGE_COUNTS, RUN_COUNTS = (100, 10_000, 100_000), (10, 100, 1000)
MIN_GROWTH = 1.2  # by which the second size must exceed the fixed cost, to be compared
NOT_NEAR = "data.near_duplicates=0"
COMMAND = (sys.executable, "-m", "lockstep.cli.main")
SMALL = ("model.width=4", "strategy=cpu", "trainer.devices=1", "debug=fast")


class Cost(NamedTuple):
    """Seconds of a way, and the largest anonymous memory of one of its processes in MiB."""

    seconds: float
    memory_mib: float


Ways = Mapping[str, Callable[[Path], Cost]]


def write_images(folder: Path, num_images: int) -> None:
    """Write class folders of random JPEGs, and a list of them with groups."""
    draws = np.random.default_rng(0)
    for number in range(NUM_CLASSES):
        (folder / "images" / str(number)).mkdir(parents=True)
    with open(folder / "list.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "group"])
        for number in range(num_images):
            cells = draws.integers(0, 256, (NUM_CELLS, NUM_CELLS, 3), np.uint8)
            path = f"images/{number % NUM_CLASSES}/{number}.jpg"
            Image.fromarray(cells.repeat(4, 0).repeat(4, 1)).save(folder / path)
            rows.writerow([path, number % NUM_CLASSES, number // GROUP_SIZE])


def write_runs(folder: Path, num_runs: int) -> None:
    """Write finished runs of ten epochs."""
    for number in range(num_runs):
        run = boards.write_run(folder / str(number), "finished", monitor="val/loss", mode="min")
        run.note(overrides=[f"seed={number}"])
        boards.write_rows(run, 10)


def write_nothing(folder: Path, num_trials: int) -> None:
    """Make an empty folder, because a dry run reads nothing."""
    folder.mkdir()


def _table(folder: Path) -> ImageTable:
    file = str(folder / "list.csv")
    return read_list(file, None, "path", ["label"], "classes", None, None, "group", None)


def _split(table: ImageTable) -> ImageTable:
    return complete_splits(table, 0.1, 0.1, split_seed=0, test_after=None)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def scan_s(folder: Path) -> float:
    """Return the seconds to list class folders."""
    return _seconds(lambda: list_classes(str(folder / "images")))


def list_s(folder: Path) -> float:
    """Return the seconds to read a list."""
    return _seconds(lambda: _table(folder))


def split_s(folder: Path) -> float:
    """Return the seconds to split a list by its groups."""
    table = _table(folder)
    return _seconds(lambda: _split(table))


def record_s(folder: Path) -> float:
    """Return the seconds to make images.json.gz."""
    preprocessing = Preprocessing.from_keys(32, 1.0, "crop", "bilinear", "white")
    table = _split(_table(folder))
    images = Decoding(
        table=table, preprocessing=preprocessing, channels=3, cache=None
    ).list_splits()
    return _seconds(
        lambda: gzip.compress(json.dumps(data_record.record_of(images)).encode(), compresslevel=3)
    )


def board_s(folder: Path) -> float:
    """Return the seconds of the board's first answer."""
    client = boards.board(folder)
    return _seconds(lambda: client.get(f"{boards.BASE}/runs", base_url=boards.LOCAL))


def _processes_below(pid: int) -> Iterator[int]:
    """Yield the ids of the processes below a process."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in file.read_text().split():
            yield int(child)
            yield from _processes_below(int(child))


def _watch(is_done: Callable[[], bool]) -> float:
    """Return the largest anonymous memory in MiB of a process below this one, until `is_done`."""
    max_kib = 0
    while not is_done():
        with suppress(OSError):  # A process ended.
            for pid in _processes_below(os.getpid()):
                status = Path(f"/proc/{pid}/status").read_text()
                max_kib = max(max_kib, *map(int, re.findall(r"RssAnon:\s+(\d+)", status)), 0)
        time.sleep(0.05)
    return max_kib / 1024


def function(measured: Callable[[Path], float], folder: Path) -> Cost:
    """Return the cost of a function, which returns seconds, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        future = pool.submit(measured, folder)
        memory_mib = _watch(future.done)
        return Cost(future.result(), memory_mib)


def command(words: Sequence[str], folder: Path, codes: Sequence[int] = (0,)) -> Cost:
    """Return the cost of a command in a folder, which exits with one of `codes`."""
    environ = ENVIRON | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=output, stderr=output)
        memory_mib = _watch(lambda: process.poll() is not None)
        seconds = time.perf_counter() - started
        output.seek(0)
        assert process.returncode in codes, output.read()
    return Cost(seconds, memory_mib)


def check(folder: Path, overrides: Sequence[str] = ()) -> Cost:
    """Return the cost of a check. Random images may have near-duplicates."""
    return command([*COMMAND, "data", "check", "images", *overrides], folder, (0, 1))


FOLDERS = ("data=image_folder", "data.root=images")
LIST = ("data=list", "data.file=list.csv", "data.group_column=group")


def start(folder: Path, source: Sequence[str], *, is_first: bool) -> Cost:
    """Return the cost of a training, with the seconds to its first step.

    The cache of its images is empty if it `is_first`. The run stays in the folder.
    """
    cache, run, time_file = (folder / name for name in (source[0], "run", "time"))
    shutil.rmtree(run, ignore_errors=True)
    time_file.unlink(missing_ok=True)
    if is_first:
        shutil.rmtree(cache, ignore_errors=True)
    clock = f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {time_file}}}"
    folders = f"data.cache={cache}", f"hydra.run.dir={run}"
    started = time.time()
    memory_mib = command([*TRAIN, *source, *SMALL, *folders, clock], folder).memory_mib
    return Cost(float(time_file.read_text()) - started, memory_mib)


def predict(folder: Path) -> Cost:
    """Return the cost of predictions by the last run of the folder."""
    output = "--output", "rows.csv", "--trust"
    return command([*COMMAND, "predict", "run", "images", *output], folder)


def dry_run(folder: Path) -> Cost:
    """Return the cost of the dry run of a sweep. The name of the folder is its number of trials."""
    seeds = f"seed=range(0,{folder.name})"
    cluster = "cluster=slurm", "cluster.time_min=5", "dry_run=true"
    return command([*TRAIN, "-m", "data=digits", *SMALL, *cluster, seeds], folder)


DATA_WAYS: Ways = {
    "list class folders": partial(function, scan_s),
    "read a list": partial(function, list_s),
    "split a list by groups": partial(function, split_s),
    "make images.json.gz": partial(function, record_s),
    "lockstep data check": check,
    f"lockstep data check {NOT_NEAR}": partial(check, overrides=(NOT_NEAR,)),
}
TRAINING_WAYS: Ways = {
    "first start, class folders": partial(start, source=FOLDERS, is_first=True),
    "second start, class folders": partial(start, source=FOLDERS, is_first=False),
    "first start, a list with groups": partial(start, source=LIST, is_first=True),
    "second start, a list with groups": partial(start, source=LIST, is_first=False),
    "lockstep predict": predict,
}
RUN_WAYS: Ways = {
    "lockstep runs": lambda folder: command([*COMMAND, "runs", "."], folder),
    "first answer of the board": partial(function, board_s),
}
TRIAL_WAYS: Ways = {"dry run of a sweep": dry_run}


def measure(
    write: Callable[[Path, int], None],
    ways: Ways,
    counts: Sequence[int],
    noun: str,
    num_rounds: int,
    memory_aim: str = "",
) -> list[Row]:
    """Return the rows of each way in folders with these numbers of items.

    With an aim for it, there is a row for the growth of memory.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        calls: dict[str, Callable[[], Cost]] = {}
        for count in counts:
            progress(f"writing {count:,} {noun}s")
            write(Path(scratch, str(count)), count)
        for way, cost_of in ways.items():
            for count in counts:
                calls[f"{way}, {count:,}"] = partial(cost_of, Path(scratch, str(count)))
        costs = alternate(num_rounds, **calls)
        progress(f"removing the {noun}s")
    rows: list[Row] = []
    for way in ways:
        way_costs = [costs[f"{way}, {count:,}"] for count in counts]
        rows += _growth(way, counts, way_costs, noun, memory_aim)
    return rows


def _growth(
    way: str, counts: Sequence[int], costs: Sequence[Sequence[Cost]], noun: str, memory_aim: str
) -> list[Row]:
    """Return the rows of a way: its costs at each number of items, and how they grow."""
    num_rounds = len(costs[0])
    seconds = [median(cost.seconds for cost in costs_of_count) for costs_of_count in costs]
    memories_mib = [[cost.memory_mib for cost in costs_of_count] for costs_of_count in costs]
    times = ", ".join(f"{time_s:,.2f} s" for time_s in seconds)
    memory = ", ".join(f"{median(memory_mib):,.0f}" for memory_mib in memories_mib)
    sizes = ", ".join(f"{count:,}" for count in counts)
    rows = [Row(f"{way}: {sizes} {noun}s", f"{times}; {memory} MiB", "", num_rounds)]

    what = f"{way}: time per {noun}, {counts[-1]:,} : {counts[1]:,}"
    if seconds[1] > MIN_GROWTH * seconds[0]:
        small_us, large_us = (
            [
                1e6 * (cost.seconds - fixed.seconds) / (counts[number] - counts[0])
                for cost, fixed in zip(costs[number], costs[0], strict=True)
            ]
            for number in (1, -1)
        )
        rows.append(ratio_row(what, large_us, small_us, "{:,.0f} µs", aim="<= 1.3"))
    else:
        rows.append(
            Row(
                what,
                "not measurable: the second size took no longer than the first",
                "",
                num_rounds,
            )
        )
    if memory_aim:
        what = f"{way}: memory, {counts[-1]:,} : {counts[1]:,}"
        large_mib, small_mib = memories_mib[-1], memories_mib[1]
        rows.append(ratio_row(what, large_mib, small_mib, "{:,.0f} MiB", aim=memory_aim))
    return rows


def main() -> None:
    """Measure what the command line names."""
    command_line = parser(1)
    command_line.add_argument("what", choices=["data", "trainings", "runs"])
    command_line.add_argument("--images", type=int, default=100_000, help="largest number")
    arguments = command_line.parse_args()
    what, num_rounds, num_images = arguments.what, arguments.rounds, arguments.images
    counts = *(count for count in IMAGE_COUNTS if count < num_images), num_images
    if what == "runs":
        rows = measure(write_runs, RUN_WAYS, RUN_COUNTS, "run", num_rounds)
        rows += measure(write_nothing, TRIAL_WAYS, RUN_COUNTS, "trial", num_rounds)
    elif what == "data":
        rows = measure(write_images, DATA_WAYS, counts, "image", num_rounds)
    else:
        rows = measure(write_images, TRAINING_WAYS, counts, "image", num_rounds, "<= 1.1")
    publish("scale", rows, what if what == "runs" else f"{what} --images {num_images}")


if __name__ == "__main__":
    main()
