"""A training ends with its calibration, which all readers use.

It is the same on any number of workers and after a stop.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.assembly import checkpoint_io
from lockstep.config.composing.compose import DEFAULT
from lockstep.config.saved import config_file
from lockstep.config.saved_run import change_run
from lockstep.data.splits import all_pixels
from lockstep.models import calibration
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.exact import cut_after, train, trained
from tests.support.harness import difference, write_run
from tests.support.recipes import on_data, turned
from tests.support.sources import SETTINGS, digits

CPU = torch.device("cpu")
DIGITS = (
    *(*on_data("data=digits"), "optimizer.lr=0.2", "model.dropout=0"),
    *("global_batch_size=64", "eval_batch_size=60"),
)
# learned in any rounding
AS_THEY_ARE = ("augment.crop_padding=0", "augment.flip=false", "augment.cutout=0")


def entry_of(run: RunFolder) -> dict[str, Any]:
    return torch.load(run.best_checkpoint, weights_only=True)["calibration"]


def without_entry(run: RunFolder) -> None:
    """Give a run the checkpoint of an earlier version."""
    saved = torch.load(run.best_checkpoint, weights_only=True)
    del saved["calibration"]
    checkpoint_io.write(saved, run.best_checkpoint)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("calibrated") / "run", DIGITS)


@pytest.mark.full
def test_float32_after_bfloat16(tmp_path: Path) -> None:
    run, images = (
        write_run(tmp_path / "run", (*DIGITS, "trainer.precision=bfloat16")),
        digits(**SETTINGS),
    )
    assert train(run) == 0
    predictor = lockstep.load(run.path, calibrate=False)
    losses = torch.nn.functional.nll_loss(
        predictor(all_pixels(images.test.pixels)).values.log(), images.test.targets
    )
    assert run.read_summary()["test_loss"] == pytest.approx(losses.item(), abs=1e-6)
    for options, is_same in ((), True), (("--precision", "bfloat16"), False):
        done = commands.lockstep(tmp_path, "eval", run.path, *options)
        assert (f"{run.read_summary()['test_loss']:.6f}" in done.stdout) == is_same, done.stderr
    done = commands.lockstep(tmp_path, "eval", run.path, "trainer.precision=bfloat16")
    assert done.returncode == 2
    assert "use --precision" in done.stderr


def test_fitted_to_validation_images(finished: RunFolder, tmp_path: Path) -> None:
    """And it changes no number of the training."""
    raw = trained(tmp_path / "raw", (*DIGITS, "calibrate=false"))
    assert "calibration" not in torch.load(raw.best_checkpoint, weights_only=True)
    assert difference(raw, finished) == 0
    for name in ("test_loss", "test_accuracy", "best", "weights_sha256"):
        assert raw.read_summary()[name] == finished.read_summary()[name]
    val, entry = digits(**SETTINGS).val, entry_of(finished)
    assert entry["note"] == ""
    predictor = lockstep.load(finished.path, calibrate=False)
    # These are logits but for a number of each image.
    outputs = predictor(all_pixels(val.pixels)).values.log()
    expected = calibration.fit(outputs, val.targets, (), CPU)
    assert entry["slope"].item() == pytest.approx(expected["slope"].item(), rel=1e-9)
    found = lockstep.load(finished.path)(all_pixels(val.pixels)).values.max(1)
    torch.testing.assert_close(entry["val"]["confidences"], found.values.float(), rtol=1e-6, atol=0)
    assert torch.equal(entry["val"]["is_right"], found.indices == val.targets)


@pytest.mark.full
def test_resume_and_more_epochs(finished: RunFolder, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", DIGITS)
    cut_after(run, 11)
    assert "calibration" not in torch.load(run.last_checkpoint, weights_only=True)
    assert train(run) == 0
    assert torch.equal(entry_of(run)["slope"], entry_of(finished)["slope"])
    longer = change_run(run, config_file.load(run.config), ["trainer.max_epochs=3"], DEFAULT).config
    config_file.save(longer, run.config)
    run.forget_end()
    without_entry(run)  # if no later epoch is better
    assert train(run) == 0
    assert entry_of(run)["note"] == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        pytest.param((*DIGITS, "trainer.limit_val_batches=1"), 60, id="limited"),
        pytest.param((*turned(), "trainer.max_epochs=1"), 23, id="Dataset"),
        pytest.param(
            (*DIGITS, *AS_THEY_ARE, "trainer.virtual_shards=4", "trainer.precision=bfloat16"),
            180,
            id="virtual shards",
        ),
        pytest.param(
            (*DIGITS, "callbacks=ema", "trainer.precision=float32"), 180, id="averaged weights"
        ),
    ],
)
def test_images_of_validation(tmp_path: Path, settings: tuple[str, ...], count: int) -> None:
    run = trained(tmp_path / "run", settings)
    entry = entry_of(run)
    assert entry["num_images"] == len(entry["val"]["confidences"]) == count
    accuracy = max(float(row["val/accuracy"]) for row in run.read_metrics())
    assert entry["val"]["is_right"].double().mean().item() == pytest.approx(accuracy, abs=0.011)


def fold_values(run: RunFolder) -> torch.Tensor:
    rows = commands.rows_of(run.fold_rows)
    return torch.tensor(
        [[float(row[str(number)]) for number in range(10)] for row in rows], dtype=torch.float64
    )


@pytest.mark.full
def test_fold_predictions(tmp_path: Path) -> None:
    fold = (
        *(*DIGITS, "data.folds=5", "data.fold=1"),
        *("trainer.max_epochs=1", "global_batch_size=16"),
    )
    best = trained(tmp_path / "best", fold)
    last = trained(tmp_path / "last", (*fold, "callbacks.checkpoint=null"))
    raw = trained(tmp_path / "raw", (*fold, "calibrate=false"))
    values = fold_values(raw)
    sure = values.min(1).values > 1e-4  # six digits are written
    assert sure.sum() > 20
    for run, path in ((best, best.best_checkpoint), (last, last.last_checkpoint)):
        slope = torch.load(path, weights_only=True)["calibration"]["slope"]
        found = fold_values(run)
        torch.testing.assert_close(
            found[sure], (values[sure].log() * slope).softmax(1), rtol=0, atol=3e-3
        )
        assert (found - values).abs().max() > 0.01
