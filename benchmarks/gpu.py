"""One GPU: epochs of Fashion-MNIST next to a raw loop, and trainings compared bit by bit.

`python -m benchmarks.gpu`, or one of `speed`, `graphs` and `one_rank`. It reads Fashion-MNIST in
data/, and trains from a source tree with tests/. `pytest -m gpu` checks what is not measured here.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning as L

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, measure, row
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


def _train(folder: Path, name: str, *overrides: str) -> RunFolder:
    run = RunFolder(folder / name.replace(" ", "-"))
    subprocess.run(
        [*TRAIN, *overrides, f"hydra.run.dir={run.path}"], cwd=ROOT, env=ENVIRON, check=True
    )
    return run


def speed() -> list[Row]:
    """Return the seconds of epochs in each mode, and those of a raw loop."""
    rows, medians = [], dict[str, float]()
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, settings) in enumerate(MODES.items()):
            run = _train(
                Path(scratch),
                str(number),
                "experiment=fashion_mnist",
                "trainer.devices=1",
                *settings,
            )
            seconds = [float(epoch["seconds"]) for epoch in run.read_metrics()]
            medians[name] = statistics.median(seconds[1:])
            aim = "" if "torch" in name else "<= 0.6 s"
            rows.append(row(f"{name}: epoch after the first", seconds[1:], "{:.2f} s", aim=aim))
            rows.append(row(f"{name}: first epoch", seconds[:1], "{:.2f} s"))
        path = Path(scratch, "raw.json")
        subprocess.run(
            [sys.executable, "-m", "benchmarks.peer", "data", "3", str(path)], cwd=ROOT, check=True
        )
        raw = json.loads(path.read_text())
    rows.append(row("raw loop: epoch after the first", raw[1:], "{:.2f} s"))
    rows.append(row("raw loop: first epoch", raw[:1], "{:.2f} s"))
    for name in ("CUDA graphs, Lockstep's batch norm", "the recipe, 10 epochs"):
        rows.append(
            row(
                f"raw loop : {name}",
                [statistics.median(raw[1:]) / medians[name]],
                "{:.2f}",
                aim=">= 2",
            )
        )
    return rows


def graphs() -> list[Row]:
    """Compare replayed trainings with eager ones, bit by bit.

    Each shape is replayed after its first steps.
    """
    differences = []
    common = (
        *BFLOAT16,
        "trainer.devices=1",
        "trainer.deterministic=true",
        "trainer.max_epochs=5",
        "model.width=64",
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name, settings in REPLAYED.items():
            eager = _train(
                Path(scratch), f"{name} eager", *common, *settings, "trainer.graph=false"
            )
            replayed = _train(
                Path(scratch), f"{name} replayed", *common, *settings, "trainer.graph=true"
            )
            differences.append(difference(eager, replayed))
    what = (
        "steps as CUDA graphs against eager, float64, bfloat16, micro-batches: largest difference"
    )
    return [Row(what, f"{max(differences):.1e}", "", len(differences), "<= 0")]


def one_rank() -> list[Row]:
    """Compare a process group of one rank, started by Lockstep and by torchrun, with none."""
    with tempfile.TemporaryDirectory() as scratch:
        alone = _train(Path(scratch), "alone", *FLOAT64)
        started = _train(Path(scratch), "started", *FLOAT64, "strategy=ddp")
        joined = RunFolder(Path(scratch, "joined"))
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=1",
        ]
        words = [TRAIN[1], *FLOAT64, "strategy=ddp", f"hydra.run.dir={joined.path}"]
        subprocess.run([*torchrun, *words], cwd=ROOT, check=True)
        worst = max(difference(alone, started), difference(alone, joined))
    return [
        Row(
            "DDP of one rank by NCCL against none: largest difference",
            f"{worst:.1e}",
            "",
            2,
            "<= 1e-12",
        )
    ]


if __name__ == "__main__":
    measure(speed=("gpu", speed), graphs=("exactness", graphs), one_rank=("exactness", one_rank))
