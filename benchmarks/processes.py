"""Whole commands: how soon they answer, and one process of two threads against two of one."""

import csv
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.table import Row, alternate, ratios, row
from lockstep.system.hardware import num_cores

TRAIN = [sys.executable, str(ROOT / "train.py")]
QUIET = ["hydra.run.dir=."]


def _seconds(*command: str) -> float:
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=ENVIRON, capture_output=True, check=False)
    return time.perf_counter() - started


def import_torch() -> float:
    """Seconds from the command to the end of importing torch; leaving takes more than a second more."""
    code = "import torch, time; print(time.time())"
    started = time.time()
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True)
    return float(done.stdout) - started


def _first_step(num_workers: int) -> float:
    """Seconds from the command to the end of the first step of the default training."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "time"
        callback = f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {path}}}"
        started = time.time()
        done = subprocess.run(
            [
                *TRAIN,
                callback,
                f"trainer.devices={num_workers}",
                "strategy=cpu",
                "debug=fast",
                f"hydra.run.dir={folder}/run",
            ],
            cwd=ROOT,
            env=ENVIRON,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return float(path.read_text()) - started


def start_up(num_rounds: int = 7) -> list[Row]:
    """Help, an error, and the first step of one worker and of three, compared with importing only torch."""
    _first_step(1)  # Python compiles what it imports, where it has not yet
    times = alternate(
        num_rounds,
        torch=import_torch,
        help=lambda: _seconds(*TRAIN, "--help"),
        error=lambda: _seconds(*TRAIN, "optimizer.lrr=1"),
        one=lambda: _first_step(1),
        three=lambda: _first_step(3),
    )
    return [
        row("import torch", times["torch"], "{:.2f} s"),
        row("train.py --help", times["help"], "{:.2f} s"),
        row("train.py with an error", times["error"], "{:.2f} s"),
        row("first step of train.py debug=fast", times["one"], "{:.2f} s"),
        row("first step with trainer.devices=3", times["three"], "{:.2f} s"),
        row("--help : import torch", ratios(times["help"], times["torch"]), "{:.2f}"),
        row("an error : import torch", ratios(times["error"], times["torch"]), "{:.2f}"),
        row("first step : import torch", ratios(times["one"], times["torch"]), "{:.2f}"),
        row("first step of 3 workers : of 1", ratios(times["three"], times["one"]), "{:.2f}"),
    ]


def import_breakdown(count: int = 12) -> list[tuple[str, float]]:
    """(package, seconds) of what a training imports, each without what it imports from the others."""
    modules = "lockstep.training.train, lockstep.cli.main"
    code = f"from lockstep.system.libraries import lazy\nwith lazy():\n    import {modules}"
    line = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRON, capture_output=True, text=True)
    seconds_by_package: dict[str, float] = {}
    for microseconds, name in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE):
        package = name.split(".")[0]
        seconds_by_package[package] = seconds_by_package.get(package, 0.0) + int(microseconds) / 1e6
    return sorted(seconds_by_package.items(), key=lambda item: -item[1])[:count]


RESNET = (
    *("data=synthetic", "data.image_size=28", "data.train_size=1024", "data.val_size=10", "data.test_size=10"),
    *("global_batch_size=256", "eval_batch_size=10", "trainer.max_epochs=4"),
)
SMALL = ("data=digits", "model.width=16", "global_batch_size=64", "trainer.max_epochs=6")


def _images_per_s(num_workers: int, overrides: Sequence[str], num_trainings: int = 1) -> float:
    """Images per second of the last epoch of a training on all cores of the machine; of parallel ones, their sum."""
    environ = {name: value for name, value in ENVIRON.items() if name != "OMP_NUM_THREADS"}
    if num_trainings > 1:
        environ["OMP_NUM_THREADS"] = str(max(1, num_cores() // num_trainings))
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root, str(number)) for number in range(num_trainings)]
        words = [*TRAIN, *overrides, "strategy=cpu", f"trainer.devices={num_workers}"]
        started = [
            subprocess.Popen([*words, f"hydra.run.dir={folder}"], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL)
            for folder in folders
        ]
        assert [process.wait() for process in started] == [0] * num_trainings
        rows = [list(csv.DictReader((folder / "metrics.csv").open())) for folder in folders]
    return sum(float(of_one[-1]["images_per_s"]) for of_one in rows)


def _side_by_side(num_rounds: int, overrides: Sequence[str], counts: Sequence[int]) -> list[Row]:
    """One process against several, by their number; the launcher gives each its part of the cores as threads."""
    one = {"1": lambda: _images_per_s(1, overrides)}
    several = {str(count): lambda count=count: _images_per_s(count, overrides) for count in counts}
    rates = alternate(num_rounds, **one, **several)
    rows = [row(f"{name} process{'es' * (name != '1')}", values, "{:.0f} images/s") for name, values in rates.items()]
    return rows + [
        row(f"{count} processes : 1 process", ratios(rates[str(count)], rates["1"]), "{:.3f}") for count in counts
    ]


def workers(num_rounds: int = 7) -> list[Row]:
    """One process on all cores against two, the full ResNet-18 on 28x28 images, batch 256."""
    return _side_by_side(num_rounds, RESNET, [2])


def small_workers(num_rounds: int = 7) -> list[Row]:
    """One process on all cores against two and four, a ResNet-18 of width 16 on digits, batch 64."""
    return _side_by_side(num_rounds, SMALL, [2, 4])


def small_apart(num_rounds: int = 7) -> list[Row]:
    """Time as many independent trainings at the same time, each with the shard of a worker: an upper bound."""

    def together(count: int) -> float:
        return _images_per_s(1, [*SMALL, f"global_batch_size={64 // count}", "trainer.max_epochs=16"], count)

    rates = alternate(num_rounds, one=lambda: together(1), two=lambda: together(2), four=lambda: together(4))
    return [
        row("1 training", rates["one"], "{:.0f} images/s"),
        row("2 parallel trainings, of half the batch", rates["two"], "{:.0f} images/s"),
        row("4 parallel trainings, of a quarter", rates["four"], "{:.0f} images/s"),
        row("2 trainings : 1", ratios(rates["two"], rates["one"]), "{:.3f}"),
        row("4 trainings : 1", ratios(rates["four"], rates["one"]), "{:.3f}"),
    ]


def virtual_shards(num_rounds: int = 3) -> list[Row]:
    """Time virtual shards in one process on all cores, and in two: the full ResNet-18, batch 64."""
    aims = {"2 virtual shards": ">= 0.92", "4 virtual shards": ">= 0.85", "8 virtual shards": ">= 0.70"}
    of_two, rows = "2 processes, 2 virtual shards", []
    for size, num_images in ((28, 512), (64, 256)):
        recipe = [*RESNET, f"data.image_size={size}", f"data.train_size={num_images}", "global_batch_size=64"]
        recipe.append("trainer.max_epochs=2")
        ways = {"no virtual shards": (1, "null"), **{name: (1, name[0]) for name in aims}}
        ways |= {"2 processes": (2, "null"), of_two: (2, "2")} if size == 28 else {}

        def speed(num_workers: int, count: str, recipe: Sequence[str] = recipe) -> float:
            return _images_per_s(num_workers, [*recipe, f"trainer.virtual_shards={count}"])

        rates = alternate(num_rounds, **{name: lambda way=way: speed(*way) for name, way in ways.items()})
        rows += [row(f"{size}x{size}, {name}", rates[name], "{:.0f} images/s") for name in ways]
        for name, aim in {**aims, of_two: ">= 0.95"}.items():
            if name in rates:
                below = rates["2 processes" if name == of_two else "no virtual shards"]
                rows.append(row(f"{size}x{size}, {name} : none", ratios(rates[name], below), "{:.2f}", aim=aim))
    return rows


if __name__ == "__main__":
    print(json.dumps(import_breakdown(), indent=1))
