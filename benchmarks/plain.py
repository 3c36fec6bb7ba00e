"""A plain Lightning script, as a tutorial writes it, with which the first command is compared.

`python -m benchmarks.plain digits|photographs SEED EPOCHS` trains, validates and tests in the
current folder, and writes the test accuracy into `accuracy.txt`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import timm
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18
from torchvision.transforms import InterpolationMode, v2
from typing_extensions import override

MEAN, STD = [0.5] * 3, [0.5] * 3  # of the pretrained weights
Splits = Mapping[str, Dataset[Any]]


class Classifier(L.LightningModule):
    """A network with an optimizer, whose rate follows one cycle over all steps."""

    def __init__(
        self,
        net: nn.Module,
        num_classes: int,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__()
        self.net = net
        self.accuracy = MulticlassAccuracy(num_classes, average="micro")
        self._optimizer = optimizer

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
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            self._optimizer,
            [group["lr"] for group in self._optimizer.param_groups],
            total_steps=int(self.trainer.estimated_stepping_batches),
            cycle_momentum=False,
        )
        return {
            "optimizer": self._optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def digits_splits() -> dict[str, TensorDataset]:
    """Return the digits of scikit-learn (N, 1, 8, 8), in [0, 1], split into three at random."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.from_numpy(images).float().reshape(-1, 1, 8, 8) / 16
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    return {
        name: TensorDataset(pixels[rows], torch.from_numpy(labels)[rows])
        for name, rows in zip(("train", "val", "test"), order.split([1258, 180, 359]), strict=True)
    }


def digits() -> tuple[Classifier, Splits]:
    """Return a ResNet-18 for images of 8x8, and the digits."""
    net = resnet18(num_classes=10)
    net.conv1 = nn.Conv2d(1, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    return Classifier(net, 10, optimizer), digits_splits()


def photographs() -> tuple[Classifier, Splits]:
    """Return a pretrained EfficientNet-Lite0, and the photographs of the current folder."""
    size, bicubic = 128, InterpolationMode.BICUBIC
    to_floats = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    augment = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(0.2, 1.0), interpolation=bicubic),
            v2.RandomHorizontalFlip(),
            *to_floats,
        ]
    )
    resize = v2.Compose([v2.Resize(round(size / 0.875), bicubic), v2.CenterCrop(size), *to_floats])
    net: Any = timm.create_model("tf_efficientnet_lite0", num_classes=5)
    weights = torch.load("weights.pth", weights_only=True)
    weights = {name: value for name, value in weights.items() if "classifier" not in name}
    net.load_state_dict(weights, strict=False)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.eval().requires_grad_(False)  # Lightning keeps the mode of each module
    head = list(net.get_classifier().parameters())
    for parameter in head:
        nn.init.zeros_(parameter)  # timm's are too large for few steps
    backbone = [parameter for name, parameter in net.named_parameters() if "classifier" not in name]
    optimizer = torch.optim.AdamW(
        [{"params": backbone, "lr": 1e-4}, {"params": head, "lr": 1e-3}], weight_decay=0.05
    )
    return Classifier(net, 5, optimizer), {
        "train": ImageFolder("photographs/train", augment),
        "val": ImageFolder("photographs/val", resize),
        "test": ImageFolder("photographs/test", resize),
    }


def main(task: str, seed: int, num_epochs: int) -> None:
    L.seed_everything(seed)
    make, batch_size = {"digits": (digits, 64), "photographs": (photographs, 16)}[task]
    module, splits = make()
    loaders = {
        name: DataLoader(split, batch_size, shuffle=name == "train")
        for name, split in splits.items()
    }
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=num_epochs,
        logger=TensorBoardLogger("."),
        callbacks=ModelCheckpoint(monitor="val/accuracy", mode="max"),
    )
    trainer.fit(module, loaders["train"], loaders["val"])
    (metrics,) = trainer.test(module, loaders["test"], ckpt_path="best")
    Path("accuracy.txt").write_text(str(metrics["test/accuracy"]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
