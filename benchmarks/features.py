"""Features of a frozen network: whole commands on 300 photographs, and a sweep of four networks over five folds.

    python -m benchmarks features                 # 25 minutes on two cores
    python -m benchmarks features --rounds 1      # 9 minutes

Each command is one that a user types, on all cores, from its start to its end, in float32, in which CPUs without
bfloat16 train. Weights are random, which takes as long. A first run has an empty cache; a later run has the photographs
and features of another one, with another seed. A round measures each way once, in alternating order, and a ratio is
taken inside a round.
"""

import csv
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torchvision import models

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.photographs import generate
from benchmarks.processes import TRAIN
from benchmarks.table import Row, alternate, ratios, row

NUM_IMAGES, IMAGE_SIZE, NUM_EPOCHS, NUM_FOLDS = 300, 128, 20, 5
NETWORKS = ("resnet18", "mobilenet_v3_small", "regnet_y_400mf", "efficientnet_b0")
HEAD = (
    *("experiment=finetune", "augment.flip=false", "augment.random_resized_crop.scale=null"),
    *(f"trainer.max_epochs={NUM_EPOCHS}", "trainer.precision=float32"),
)
EACH_EPOCH, ONCE = (*HEAD, "model.head_only=each_epoch"), (*HEAD, "model.head_only=true")
PROBE = ("experiment=probe", "trainer.precision=float32")
SWEEP = ("-m", f"model.name={','.join(NETWORKS)}", f"data.folds={NUM_FOLDS}")
ALL_FOLDS = f"data.fold={','.join(map(str, range(NUM_FOLDS)))}"


class Folder:
    """Photographs, and the weights of networks in the cache of torchvision, below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environ = {name: value for name, value in ENVIRON.items() if name != "OMP_NUM_THREADS"}
        self.environ |= {"TORCH_HOME": str(path / "torch")}
        generate(path / "photos", NUM_IMAGES)
        (path / "torch/hub/checkpoints").mkdir(parents=True)
        for name in NETWORKS:
            weights = models.get_model_weights(name)["DEFAULT"]
            torch.save(models.get_model(name).state_dict(), path / "torch/hub/checkpoints" / Path(weights.url).name)

    def seconds(self, name: str, *words: str, keeps_cache: bool = False) -> float:
        """Run `train.py`. Its run, or sweep, and its cache are the folders `name` and `name-cache`."""
        run, cache = self.path / name, self.path / f"{name}-cache"
        shutil.rmtree(run, ignore_errors=True)
        if not keeps_cache:
            shutil.rmtree(cache, ignore_errors=True)
        where = f"hydra.sweep.dir={run}" if "-m" in words else f"hydra.run.dir={run}"
        data = f"data.root={self.path / 'photos'}", f"data.cache={cache}", f"data.image_size={IMAGE_SIZE}"
        started = time.perf_counter()
        done = subprocess.run(
            [*TRAIN, *words, *data, where], cwd=ROOT, env=self.environ, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return time.perf_counter() - started

    def memory(self, what: str, *words: str) -> Row:
        """Run two epochs. Returns a row for the largest memory of the worker."""
        self.seconds("memory", *words, "trainer.max_epochs=2", "logger=csv")
        with (self.path / "memory" / "csv" / "metrics.csv").open() as file:
            values = [float(line["machine/memory_gib"] or 0) for line in csv.DictReader(file)]
        return Row(f"{what}: memory of the worker", f"{max(values):.2f} GiB", "", 1)


def commands(folder: Folder, num_rounds: int) -> list[Row]:
    """Return rows for the last layer of a ResNet-18, trained for 20 epochs and by experiment=probe."""
    folder.seconds("later", *ONCE)
    times = alternate(
        num_rounds,
        each_epoch=partial(folder.seconds, "each_epoch", *EACH_EPOCH),
        first=partial(folder.seconds, "first", *ONCE),
        later=partial(folder.seconds, "later", *ONCE, "seed=1", keeps_cache=True),
        probe=partial(folder.seconds, "probe", *PROBE),
    )
    what = f"{NUM_IMAGES} photographs, ResNet-18, {IMAGE_SIZE} pixels"
    names = {
        "each_epoch": f"{what}, {NUM_EPOCHS} epochs: head_only=each_epoch",
        "first": "the same: head_only=true, first run",
        "later": "the same: head_only=true, later run",
        "probe": "the same photographs: experiment=probe, first run",
    }
    aims = {"first": ">= 8", "later": ">= 20"}
    rows = [row(text, times[name], "{:.1f} s") for name, text in names.items()]
    rows += [
        row(f"each_epoch : {name}", ratios(times["each_epoch"], times[name]), "{:.1f}", aim=aims.get(name, ""))
        for name in ("first", "later", "probe")
    ]
    rows += [folder.memory("head_only=each_epoch", *EACH_EPOCH), folder.memory("head_only=true", *ONCE)]
    size = sum(path.stat().st_size for path in (folder.path / "first-cache").glob("features-*.npy"))
    return [*rows, Row(f"features of {NUM_IMAGES} photographs: disk", f"{size / 2**20:.2f} MiB", "", 1)]


def sweeps(folder: Folder, num_rounds: int) -> list[Row]:
    """Return rows for four networks over five folds, of which the slow way runs one, and its time is multiplied."""
    times = alternate(
        num_rounds,
        each_epoch=partial(folder.seconds, "sweep", *SWEEP, "data.fold=0", *EACH_EPOCH),
        probe=partial(folder.seconds, "sweep-of-probes", *SWEEP, ALL_FOLDS, *PROBE),
    )
    every = [NUM_FOLDS * seconds for seconds in times["each_epoch"]]
    what = f"{len(NETWORKS)} networks"
    return [
        row(
            f"{what}, one fold of {NUM_FOLDS}, {NUM_EPOCHS} epochs: head_only=each_epoch",
            times["each_epoch"],
            "{:.0f} s",
        ),
        row(f"{what}, {NUM_FOLDS} folds: experiment=probe, empty cache", times["probe"], "{:.0f} s"),
        row(
            f"{NUM_FOLDS} times the one fold : the probes of all", ratios(every, times["probe"]), "{:.1f}", aim=">= 15"
        ),
    ]


def features(num_rounds: int = 5) -> list[Row]:
    """Return rows for single commands, then for sweeps, of which there are half as many rounds."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as scratch:
        folder = Folder(Path(scratch))
        return [*commands(folder, num_rounds), *sweeps(folder, (num_rounds + 1) // 2)]
