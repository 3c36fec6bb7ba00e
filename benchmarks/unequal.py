"""Compare loads of a worker on one core and another one on a core that it shares with busy loops.

`python -m benchmarks.unequal` takes two minutes on two quiet cores, and prints a table. Loads alternate by epochs.
"""

import contextlib
import csv
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import lightning as L
from typing_extensions import override

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.table import Row, conditions, markdown, ratios, row

RECIPE = (
    *("data=synthetic", "data.image_size=28", "data.train_size=512", "data.val_size=10", "data.test_size=10"),
    *("model.width=32", "global_batch_size=256", "eval_batch_size=10", "strategy=cpu", "trainer.loads=auto"),
)


class Turns(L.Callback):
    """Trains an epoch with the measured loads, which count for nothing, then epochs with each loads in turn."""

    def __init__(self, num_rounds: int, path: str) -> None:
        """Print the turns of `num_rounds` to `path`."""
        self._num_rounds = num_rounds
        self._path = Path(path)
        self._turns: list[tuple[str, tuple[int, ...]]] = []

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = trainer.train_dataloader.batch_sampler  # pyright: ignore[reportOptionalMemberAccess]
        if not self._turns:
            kinds = [("alone", (1, 0)), ("even", (1, 1)), ("auto", batches.loads)]
            self._turns = [kinds[-1], *(kind for n in range(self._num_rounds) for kind in kinds[:: (-1) ** n])]
            if trainer.is_global_zero:
                self._path.write_text("\n".join(name for name, _ in self._turns))
        batches.loads = self._turns[trainer.current_epoch][1]


def rows(num_rounds: int = 3) -> list[Row]:
    """Compare loads for a second worker of half and of a quarter of the speed."""
    found = []
    for num_loops, speed in ((1, "1/2"), (3, "1/4")):
        rates = _rates(num_rounds, num_loops)
        found.append(
            row(f"second worker of {speed} the speed, all images on the first", rates["alone"], "{:.0f} images/s")
        )
        for name, loads in (("even", "even loads"), ("auto", "loads=auto")):
            found.append(
                row(f"{loads} : all on the first, second of {speed}", ratios(rates[name], rates["alone"]), "{:.2f}")
            )
    return found


def _rates(num_rounds: int, num_loops: int) -> dict[str, list[float]]:
    """Images per second by turn, of a training in which `num_loops` busy loops run on the core of the second worker."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ended:
        with socket.create_server(("127.0.0.1", 0)) as port:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1]), "OMP_NUM_THREADS": "1"}
        for _ in range(num_loops):
            loop = subprocess.Popen(["taskset", "--cpu-list", "1", sys.executable, "-c", "while True: pass"])
            ended.callback(loop.kill)
        turns = Path(folder, "turns")
        callback = f"+callbacks.turns={{_target_: benchmarks.unequal.Turns, num_rounds: {num_rounds}, path: {turns}}}"
        words = [*RECIPE, callback, f"trainer.max_epochs={3 * num_rounds + 1}", f"hydra.run.dir={folder}/run"]
        workers = []
        for rank in "01":
            ids = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            command = ["taskset", "--cpu-list", rank, sys.executable, str(ROOT / "train.py"), *words]
            workers.append(subprocess.Popen(command, cwd=ROOT, env={**ENVIRON, **address, **ids}, stdout=sys.stderr))
        assert [worker.wait() for worker in workers] == [0, 0]
        rates: dict[str, list[float]] = {}
        epochs = csv.DictReader(Path(folder, "run", "metrics.csv").read_text().splitlines())
        for name, epoch in list(zip(turns.read_text().splitlines(), epochs, strict=True))[1:]:
            rates.setdefault(name, []).append(float(epoch["images_per_s"]))
        return rates


if __name__ == "__main__":
    print(markdown("Workers of unequal speed", rows()) + conditions())
