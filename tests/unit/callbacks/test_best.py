"""The epoch of best.ckpt and the wait of early stopping, with equal or non-finite values."""

import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lockstep.callbacks.best import ModelCheckpoint
from lockstep.runs import files
from lockstep.runs.folder import RunFolder
from lockstep.trials.results import Objective, best_epoch
from tests.support.modules import bare_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.* is deprecated",
    "ignore:.*Checkpoint directory",
)
NAN, INF = math.nan, math.inf
Epochs = list[tuple[float, float]]  # value and loss of each validation


class Scripted(L.LightningModule):
    """Counts epochs in its only weight, and logs given values."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self.epoch = nn.Parameter(torch.zeros(()))
        self.epochs = epochs

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return -self.epoch

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        value, loss = self.epochs[self.current_epoch]
        self.log_dict({"val/odd": value, "val/loss": loss})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def trained(
    folder: Path,
    epochs: Epochs,
    mode: str,
    ckpt_path: Path | None = None,
    *,
    keeps_last: bool = False,
    **settings: Any,
) -> None:
    best = ModelCheckpoint(
        folder,
        "best",
        monitor="val/odd",
        mode=mode,
        enable_version_counter=False,
        save_on_train_epoch_end=True,
    )
    best.keeps_last = keeps_last
    last = ModelCheckpoint(
        folder, "last", enable_version_counter=False, save_on_train_epoch_end=True
    )
    saves = {"callbacks": [best, last], "enable_checkpointing": True}
    trainer = bare_trainer(max_epochs=len(epochs), **saves, **settings)
    images = DataLoader([torch.zeros(1)])  # pyright: ignore[reportArgumentType]
    trainer.fit(Scripted(epochs), images, images, ckpt_path=ckpt_path, weights_only=True)


def epoch_in(file: Path) -> int:
    return int(torch.load(file, weights_only=True)["state_dict"]["epoch"])


SCRIPTS: dict[str, tuple[str, Epochs, int]] = {
    "equal values, lower loss": ("max", [(1, 3), (1, 1), (1, 2)], 2),
    "equal values and losses": ("max", [(0, 1), (1, 1), (1, 1), (0, 1)], 3),
    "a better value with a higher loss": ("max", [(1, 1), (2, 9), (1, 0)], 2),
    "equal values to minimize": ("min", [(1, 3), (1, 1), (2, 0)], 2),
    "no loss of an equal value": ("max", [(1, 3), (1, NAN), (0, 1)], 1),
    "NaN always": ("max", [(NAN, 1), (NAN, 2), (NAN, 3)], 3),
    "NaN first": ("min", [(NAN, 1), (5, 2), (6, 1)], 2),
    "NaN later": ("max", [(1, 2), (NAN, 1), (NAN, 1)], 1),
    "infinite values of the better sign": ("max", [(INF, 1), (1, 2), (INF, 1)], 2),
    "infinite values to minimize": ("min", [(-INF, 1), (1, 2), (-INF, 1)], 2),
    "infinite always": ("max", [(INF, 1), (-INF, 2)], 2),
}


@pytest.mark.parametrize(("mode", "epochs", "best"), SCRIPTS.values(), ids=SCRIPTS)
def test_best_epoch(tmp_path: Path, mode: str, epochs: Epochs, best: int) -> None:
    trained(tmp_path, epochs, mode)
    assert epoch_in(tmp_path / "best.ckpt") == best
    rows = [
        {"epoch": at, "val/odd": value, "val/loss": loss}
        for at, (value, loss) in enumerate(epochs, 1)
    ]
    folder = RunFolder(tmp_path)
    files.write_rows(folder.metrics, rows)
    is_known = any(math.isfinite(value) for value, _ in epochs)
    row = best_epoch(folder, Objective("val/odd", mode == "max"))
    assert row.get("epoch") == (best if is_known else None), (
        "a sweep reads the metrics of that epoch"
    )


def test_last_epoch_kept(tmp_path: Path) -> None:
    trained(tmp_path, [(3, 1), (1, 2), (NAN, 3)], "max", keeps_last=True)
    assert epoch_in(tmp_path / "best.ckpt") == 3
    folder = RunFolder(tmp_path)
    files.write_rows(folder.metrics, [{"epoch": 1, "val/odd": 3}, {"epoch": 2, "val/odd": 1}])
    assert best_epoch(folder, Objective("val/odd", True, is_last=True)) == {
        "epoch": 2,
        "val/odd": 1,
    }


@pytest.mark.parametrize(
    "name", ["equal values, lower loss", "equal values to minimize", "NaN first"]
)
def test_best_epoch_resumed(tmp_path: Path, name: str) -> None:
    mode, epochs, best = SCRIPTS[name]
    trained(tmp_path, epochs[:1], mode)
    trained(tmp_path, epochs, mode, ckpt_path=tmp_path / "last.ckpt")
    assert epoch_in(tmp_path / "best.ckpt") == best


@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
def test_epoch_without_validation(tmp_path: Path) -> None:
    trained(tmp_path, [(0, 0), (1, 1), (0, 0)], "max", check_val_every_n_epoch=2)
    assert epoch_in(tmp_path / "best.ckpt") == 2
