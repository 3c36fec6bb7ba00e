"""Seconds of `lockstep predict` for photographs of a phone, by one worker and by two.

One worker uses all cores by its threads, so on one machine a second one gains only over a worker of one thread.
"""

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.photographs import generate, photograph
from benchmarks.processes import TRAIN
from benchmarks.table import Row, alternate, ratios, row

SIZE = (3000, 4000)
NUM_DIFFERENT = 24
PREDICT = [sys.executable, "-m", "lockstep", "predict"]


def _run(*command: str, **variables: str) -> float:
    started = time.perf_counter()
    kept = {name: value for name, value in ENVIRON.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(command, cwd=ROOT, env=kept | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - started


def _train(scratch: Path) -> None:
    """Train for an epoch at 224 pixels."""
    generate(scratch / "training", 40)
    small = ("data=image_folder", "data.image_size=224", "data.cache=null", "trainer.max_epochs=1", "model.width=8")
    folders = (f"data.root={scratch / 'training'}", f"hydra.run.dir={scratch / 'run'}")
    _run(*TRAIN, *small, *folders, "trainer.devices=1", "strategy=cpu")


def predict(num_images: int = 400, num_rounds: int = 5) -> list[Row]:
    """Return the seconds and images/s of one and two workers, with all threads and with one each, and their ratios."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        scratch, noise = Path(name), np.random.default_rng(0)
        _train(scratch)
        photos, single = scratch / "photos", scratch / "one"
        photos.mkdir()
        single.mkdir()
        for number in range(num_images):
            path = photos / f"{number}.jpg"
            if number < NUM_DIFFERENT:
                photograph(noise, *SIZE).save(path, quality=90)
            else:
                path.write_bytes((photos / f"{number % NUM_DIFFERENT}.jpg").read_bytes())
        (single / "0.jpg").write_bytes((photos / "0.jpg").read_bytes())

        def seconds(folder: Path, num_workers: int, **variables: str) -> float:
            options = ("--output", str(scratch / "out.csv"), "--devices", str(num_workers), "--strategy", "cpu")
            return _run(*PREDICT, str(scratch / "run"), str(folder), *options, **variables)

        times = alternate(
            num_rounds,
            start=partial(seconds, single, 1),
            one=partial(seconds, photos, 1),
            two=partial(seconds, photos, 2),
            one_thread=partial(seconds, photos, 1, OMP_NUM_THREADS="1"),
        )
    what = f"{num_images} photographs of {SIZE[0]}x{SIZE[1]}"
    later = {name: [whole - start for whole, start in zip(times[name], times["start"], strict=True)] for name in times}
    return [
        row("lockstep predict, one photograph", times["start"], "{:.2f} s"),
        row(f"{what}: 1 worker of all threads", times["one"], "{:.2f} s"),
        row(f"{what}: 1 worker of 1 thread", times["one_thread"], "{:.2f} s"),
        row(f"{what}: 2 workers", times["two"], "{:.2f} s"),
        row("1 worker of all threads : 2 workers", ratios(times["one"], times["two"]), "{:.2f}", aim=">= 1.8"),
        row("1 worker of 1 thread : 2 workers", ratios(times["one_thread"], times["two"]), "{:.2f}", aim=">= 1.8"),
        row("the same without the start", ratios(later["one_thread"], later["two"]), "{:.2f}"),
    ]
