"""One GPU: epochs of Fashion-MNIST next to a raw loop, and trainings compared bit by bit.

`python -m benchmarks.gpu`, or one of `speed`, `graphs` and `one_rank`. It reads Fashion-MNIST in
data/, and trains from a source tree with tests/. `pytest -m gpu` checks what is not measured here.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path

import lightning as L

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, alternate, measure, ratios, row
from lockstep.distributed import batch_norm
from lockstep.runs.folder import RunFolder
from tests.support.harness import ACCUMULATE_AUGMENT, SMALL, difference

TORCH_NORMS = "+callbacks.norms={_target_:benchmarks.gpu.TorchNorms}"
MODES = {
    "Fashion-MNIST, eager, torch's batch norm": (
        "trainer.max_epochs=3",
        "trainer.graph=false",
        TORCH_NORMS,
    ),
    "CUDA graphs, torch's batch norm": ("trainer.max_epochs=3", TORCH_NORMS),
    "CUDA graphs, Lockstep's batch norm": ("trainer.max_epochs=3",),
    "the recipe, 10 epochs": (),
}
QUICK_MODES = ("CUDA graphs, Lockstep's batch norm", "the recipe, 10 epochs")
BFLOAT16 = [
    override for override in SMALL if not override.startswith(("strategy=", "trainer.precision="))
]
FLOAT64 = [*BFLOAT16, "trainer.precision=float64", "trainer.devices=1"]
REPLAYED = {
    "float64": ("trainer.precision=float64",),
    "bfloat16": (),
    "micro-batches": (*ACCUMULATE_AUGMENT, "callbacks=ema"),
}


class TorchNorms(L.Callback):
    """Has torch's kernels compute the batch norms, in place of Triton's."""

    def __init__(self) -> None:
        assert "_kernels" in batch_norm.__dict__
        batch_norm.__dict__["_kernels"] = lambda x: None


def _train(folder: str, name: str, *overrides: str) -> RunFolder:
    run = RunFolder(Path(folder, name))
    subprocess.run(
        [*TRAIN, *overrides, f"hydra.run.dir={run.path}"], cwd=ROOT, env=ENVIRON, check=True
    )
    return run


def _epochs_s(*settings: str) -> list[float]:
    """Return the seconds of each epoch of a training."""
    with tempfile.TemporaryDirectory() as scratch:
        settings = "experiment=fashion_mnist", "trainer.devices=1", *settings
        epochs = _train(scratch, "run", *settings).read_metrics()
        return [float(epoch["seconds"]) for epoch in epochs]


def _raw_epochs_s() -> list[float]:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "raw.json")
        command = [sys.executable, "-m", "benchmarks.peer", "data", "3", str(path)]
        subprocess.run(command, cwd=ROOT, check=True)
        return json.loads(path.read_text())


def speed(num_rounds: int = 1) -> list[Row]:
    """Return the seconds of epochs in each mode, and those of a raw loop."""
    ways = {name: partial(_epochs_s, *settings) for name, settings in MODES.items()}
    epochs = alternate(num_rounds, **ways, **{"raw loop": _raw_epochs_s})
    rows, medians = [], dict[str, list[float]]()
    for name, trainings in epochs.items():
        later_s = [seconds for training in trainings for seconds in training[1:]]
        medians[name] = [statistics.median(training[1:]) for training in trainings]
        aim = "<= 0.6 s" if name in QUICK_MODES else ""
        rows.append(row(f"{name}: epoch after the first", later_s, "{:.2f} s", aim=aim))
        first_s = [training[0] for training in trainings]
        rows.append(row(f"{name}: first epoch", first_s, "{:.2f} s"))
    for name in QUICK_MODES:
        quotients = ratios(medians["raw loop"], medians[name])
        rows.append(row(f"raw loop : {name}", quotients, "{:.2f}", aim=">= 2"))
    return rows


def _graphs_difference(*settings: str) -> float:
    """Return the largest difference between a replayed training and an eager one.

    Each shape is replayed after its first steps.
    """
    common = "trainer.devices=1", "trainer.deterministic=true", "trainer.max_epochs=5"
    settings = *BFLOAT16, *common, "model.width=64", *settings
    with tempfile.TemporaryDirectory() as scratch:
        eager = _train(scratch, "eager", *settings, "trainer.graph=false")
        return difference(eager, _train(scratch, "replayed", *settings, "trainer.graph=true"))


def graphs(num_rounds: int = 1) -> list[Row]:
    """Compare replayed trainings with eager ones, bit by bit."""
    ways = {name: partial(_graphs_difference, *settings) for name, settings in REPLAYED.items()}
    differences = [*chain.from_iterable(alternate(num_rounds, **ways).values())]
    what = (
        "steps as CUDA graphs against eager, float64, bfloat16, micro-batches: largest difference"
    )
    return [Row(what, f"{max(differences):.1e}", "", len(differences), "<= 0")]


def _one_rank_difference() -> float:
    """Return the largest difference that DDP of one rank makes, by Lockstep and by torchrun."""
    with tempfile.TemporaryDirectory() as scratch:
        alone = _train(scratch, "alone", *FLOAT64)
        started = _train(scratch, "started", *FLOAT64, "strategy=ddp")
        joined = RunFolder(Path(scratch, "joined"))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words = [TRAIN[1], *FLOAT64, "strategy=ddp", f"hydra.run.dir={joined.path}"]
        subprocess.run([*torchrun, "--nproc-per-node=1", *words], cwd=ROOT, check=True)
        return max(difference(alone, started), difference(alone, joined))


def one_rank(num_rounds: int = 1) -> list[Row]:
    """Compare a process group of one rank, started by Lockstep and by torchrun, with none."""
    differences = alternate(num_rounds, one_rank=_one_rank_difference)["one_rank"]
    what = "DDP of one rank by NCCL against none: largest difference"
    return [Row(what, f"{max(differences):.1e}", "", 2 * num_rounds, "<= 1e-12")]


if __name__ == "__main__":
    measure(speed=("gpu", speed), graphs=("exactness", graphs), one_rank=("exactness", one_rank))
