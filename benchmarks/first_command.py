"""Time the README's first command, a plain Lightning script, and lightly-train.

Each is timed in seconds from start to exit.

    python -m benchmarks.first_command VENV/bin/python
    python -m benchmarks.first_command VENV/bin/python --epochs 10

By an author of Lockstep, so mind what differs. All train a ResNet-18 in float32 for 5 epochs of
1,258 digits, in 100 steps; --epochs 10 is the README's command. A round takes less than three
minutes on two cores, with 10 epochs five minutes. Lockstep and the script have the same network,
validate after each epoch, and test; Lockstep also draws curves and pictures, and calibrates.
lightly-train has torchvision's network, for images of 32x32, and augments them.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models import resnet18
from typing_extensions import override

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, alternate, parser, publish, ratios, row

BATCH_SIZE, STEPS_PER_EPOCH = 64, 20
SPLITS = {"train": 1258, "val": 180, "test": 359}
LIGHTLY = """
import sys, lightly_train
classes = {number: str(number) for number in range(10)}
data = {"train": "digits/train", "val": "digits/val", "classes": classes}
if __name__ == "__main__":
    lightly_train.train_image_classification(
        out="run", data=data, model="torchvision/resnet18", steps=int(sys.argv[1]),
        batch_size=int(sys.argv[2]), num_workers=0, accelerator="cpu", devices=1,
        precision="32-true", transform_args={"image_size": (32, 32)},
        overwrite=True,
    )
"""


def _digits() -> dict[str, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0)).split(
        list(SPLITS.values())
    )
    return {
        name: TensorDataset(pixels[rows], torch.from_numpy(labels)[rows])
        for name, rows in zip(SPLITS, order, strict=True)
    }


class _Plain(L.LightningModule):
    """What a tutorial writes."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.net = resnet18(num_classes=10)
        self.net.conv1 = nn.Conv2d(1, 64, 3, padding=1, bias=False)
        self.net.maxpool = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def _loss(self, batch: list[Tensor], split: str) -> Tensor:
        outputs = self.net(batch[0])
        loss = F.cross_entropy(outputs, batch[1], label_smoothing=0.1)
        self.log(f"{split}/loss", loss, on_epoch=True)
        self.log(f"{split}/accuracy", self.accuracy(outputs, batch[1]), on_epoch=True)
        return loss

    @override
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "train")

    @override
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "val")

    @override
    def test_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "test")

    @override
    def configure_optimizers(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
    ) -> dict[str, object]:
        optimizer = torch.optim.SGD(
            self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=self.num_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def plain(num_epochs: int) -> None:
    """Train, validate and test in the current folder."""
    loaders = {
        name: DataLoader(part, BATCH_SIZE, shuffle=name == "train")
        for name, part in _digits().items()
    }
    best, logger = ModelCheckpoint(monitor="val/accuracy", mode="max"), TensorBoardLogger(".")
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=num_epochs, logger=logger, callbacks=best
    )
    module = _Plain(num_epochs * STEPS_PER_EPOCH)
    trainer.fit(module, loaders["train"], loaders["val"])
    trainer.test(module, loaders["test"])


def _seconds(folder: Path, *command: str) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRON, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return time.perf_counter() - started


def first_command(lightly: str, num_epochs: int, num_rounds: int) -> list[Row]:
    """Return the seconds of each way, and of Lockstep as a multiple of the others."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        folder = Path(name)
        run = f"hydra.run.dir={folder / 'runs'}/${{now:%H-%M-%S-%f}}"
        (folder / "classify.py").write_text(LIGHTLY)
        for split, part in _digits().items():
            for number, (pixels, label) in enumerate(zip(*part.tensors, strict=True)):
                path = folder / "digits" / split / str(int(label)) / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((pixels[0] * 255).byte().numpy()).convert("RGB").save(path)
        recipe = "trainer.precision=float32", f"trainer.max_epochs={num_epochs}"
        script = sys.executable, "-m", "benchmarks.first_command"
        epochs = "--epochs", str(num_epochs)
        steps = str(num_epochs * STEPS_PER_EPOCH), str(BATCH_SIZE)
        ways: dict[str, Callable[[], float]] = {
            "python train.py": partial(_seconds, folder, *TRAIN, *recipe, run),
            "a plain Lightning script": partial(_seconds, folder, *script, "plain", *epochs),
            "lightly-train": partial(_seconds, folder, lightly, "classify.py", *steps),
        }
        times = alternate(num_rounds, **ways)
    rows = [row(f"{what}, start to exit", values, "{:.1f} s") for what, values in times.items()]
    ours, *others = times
    return [
        *rows,
        *(row(f"{ours} : {what}", ratios(times[ours], times[what]), "{:.2f}") for what in others),
    ]


if __name__ == "__main__":
    command_line = parser(3)
    command_line.add_argument("python", help="of an environment with lightly-train")
    command_line.add_argument("--epochs", type=int, default=5)
    arguments = command_line.parse_args()
    if arguments.python == "plain":
        plain(arguments.epochs)
    else:
        rows = first_command(arguments.python, arguments.epochs, arguments.rounds)
        publish("first-command", rows, f"PYTHON --epochs {arguments.epochs}")
