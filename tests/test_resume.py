"""A run cut after any step and resumed ends with the same bits, the same rows and the same curve."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from lockstep import launch, run_folder, runner
from lockstep.callbacks.stop import StopTogether
from lockstep.run_folder import EXIT_STOPPED, RunFolder
from tests.harness import SMALL, difference, write_run

RECIPE = (*SMALL, "data.train_size=50", "model.width=2", "trainer.max_epochs=2", "trainer.log_every_n_steps=1")
NUM_STEPS = 8  # 4 an epoch
# every session of a run writes its texts, layout and settings anew
CURVES = "callbacks.curves={_target_:lockstep.callbacks.curves.Curves,graph:false}"


def train(folder: RunFolder) -> int:
    return launch.run_here(launch.Job("train", str(folder.path), {"command": "none", "has_test": True}), None)


def curve(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value) of every scalar in TensorBoard; of speed and memory, which differ, the steps."""
    read = {split: EventAccumulator(str(folder.curves(split))).Reload() for split in run_folder.CURVES}
    return {
        f"{split} {tag}": [(e.step, 0.0 if tag.startswith("machine/") else e.value) for e in events.Scalars(tag)]
        for split, events in read.items()
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture(autouse=True)
def _names_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard orders the event files of one second by name, which ends with a number: 10 would come before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10**6))


@pytest.mark.parametrize(
    "extra", ["trainer.accumulate_grad_batches=1", "trainer.accumulate_grad_batches=2", "callbacks=ema"]
)
def test_a_cut_after_any_step_changes_no_bit_no_row_and_no_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    recipe = [*RECIPE, CURVES, extra]
    alone = write_run(tmp_path / "alone", recipe)
    assert train(alone) == 0
    for step in range(NUM_STEPS):
        cut = write_run(tmp_path / f"cut{step}", recipe)
        with monkeypatch.context() as patch:
            patch.setattr(StopTogether, "_request", lambda self, trainer, at=step: 15 * (trainer.global_step == at))
            code = train(cut)
        if code == EXIT_STOPPED:
            time.sleep(1 - time.time() % 1)  # TensorBoard orders files by the second they were begun in
            assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"
        assert [row["epoch"] for row in cut.read_metrics()] == ["1", "2"]
        assert curve(cut) == curve(alone), f"cut after the request in step {step}"


def test_an_epoch_without_validation_shows_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*RECIPE, "trainer.max_epochs=3", "trainer.check_val_every_n_epoch=2"])
    assert train(folder) == 0
    assert [bool(row["val/loss"]) for row in folder.read_metrics()] == [False, True, False]


@pytest.mark.parametrize(("asked_in_step", "step", "epoch"), [(1, 2, 1), (3, 4, 1), (5, 6, 2)])
def test_a_stopped_run_shows_the_epoch_it_was_in_also_at_the_end_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_in_step: int, step: int, epoch: int
) -> None:
    folder = write_run(tmp_path / "run", RECIPE)
    monkeypatch.setattr(StopTogether, "_request", lambda self, trainer: 15 * (trainer.global_step == asked_in_step))
    assert train(folder) == EXIT_STOPPED
    status = folder.read_status()
    assert (status["state"], status["step"], status["epoch"]) == ("stopped", step, epoch)


def test_a_run_that_goes_on_shows_so_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", RECIPE)
    folder.write_status(state="stopped", reason="time limit", step=3, host="another machine")
    seen = []

    def train(make: Callable[[contextlib.ExitStack], RunFolder], config: Any, **options: Any) -> tuple[RunFolder, int]:
        with contextlib.ExitStack() as held:
            seen.append(make(held).read_status())
        return folder, 0

    monkeypatch.setattr(runner, "_train", train)
    runner.resume(*runner.resumed(OmegaConf.create({"resume": str(folder.path)}), []))
    assert (seen[0]["state"], seen[0]["reason"], seen[0]["step"]) == ("starting", "", 3)


def test_a_run_of_an_earlier_version_goes_on_in_its_own_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration names Lightning's own logger and a folder inside that of the run."""
    old = "{_target_:lightning.pytorch.loggers.TensorBoardLogger,name:'',version:tensorboard,default_hp_metric:false}"
    folder = write_run(tmp_path / "run", [*RECIPE, CURVES, "logger=none", f"+logger.tensorboard={old}"])
    with monkeypatch.context() as patch:
        patch.setattr(StopTogether, "_request", lambda self, trainer: 15 * (trainer.global_step == NUM_STEPS - 2))
        assert train(folder) == EXIT_STOPPED
    time.sleep(1 - time.time() % 1)  # TensorBoard orders files by the second they were begun in
    assert train(folder) == 0
    events = EventAccumulator(str(folder.old_curves)).Reload()
    assert [point.step for point in events.Scalars("train/loss")] == [4, 8]
    assert [point.step for point in events.Scalars("train_step/loss")] == list(range(1, 9))
    assert list(folder.path.glob("events.*")) == []
