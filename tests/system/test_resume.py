"""A run cut after any step and resumed ends with the same bits, the same rows and the same curves."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.summary.writer import event_file_writer

from lockstep.callbacks.stop import StopTogether
from lockstep.config import saved_run
from lockstep.config.composing.compose import DEFAULT
from lockstep.launch import prepared_run, runner
from lockstep.runs.folder import CURVES, EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support import commands
from tests.support.exact import cut_after, train, train_until
from tests.support.harness import ROOT, SMALL, command, difference, write_run

RECIPE = (*SMALL, "data.train_size=50", "model.width=2", "trainer.max_epochs=2", "trainer.log_every_n_steps=1")
NUM_STEPS = 8  # 4 an epoch
WITH_CURVES = "logger=tensorboard"


def curve(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value) of every scalar in TensorBoard; of speed and memory, which differ, the steps."""
    read = {split: event_accumulator.EventAccumulator(str(folder.curves(split))).Reload() for split in CURVES}
    return {
        f"{split} {tag}": [(e.step, 0.0 if tag.startswith("machine/") else e.value) for e in events.Scalars(tag)]
        for split, events in read.items()
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture(autouse=True)
def _names_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard orders the event files of one second by name, which ends with a number: 10 would come before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10**6))


def await_next_second() -> None:
    """TensorBoard orders event files by the second they were begun in, then by the number of the process."""
    time.sleep(1 - time.time() % 1)


@pytest.mark.parametrize("extra", [(), ("trainer.accumulate_grad_batches=2", "callbacks=ema")])
def test_a_cut_after_any_step_changes_no_bit_no_row_and_no_curve(tmp_path: Path, extra: tuple[str, ...]) -> None:
    recipe = [*RECIPE, WITH_CURVES, *extra]
    alone = write_run(tmp_path / "alone", recipe)
    assert train(alone) == 0
    for step in range(NUM_STEPS):
        cut = write_run(tmp_path / f"cut{step}", recipe)
        if train_until(cut, step) == EXIT_STOPPED:
            assert train(cut) == 0  # its files have the number of this process and a higher one of their own
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"
        assert [row["epoch"] for row in cut.read_metrics()] == ["1", "2"]
        assert curve(cut) == curve(alone), f"cut after the request in step {step}"


@pytest.mark.full
def test_a_run_whose_folder_was_moved_keeps_its_best_state(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", RECIPE)
    cut_after(cut, NUM_STEPS // 2 + 1)
    saved = torch.load(cut.last_checkpoint, weights_only=True)
    (state,) = (state for state in saved["callbacks"].values() if state.get("monitor"))
    score = torch.tensor(2.0)  # as if no later epoch were better
    state |= {"best_model_score": score, "kth_value": score, "best_k_models": {state["best_model_path"]: score}}
    torch.save(saved, cut.last_checkpoint)
    best = torch.load(cut.best_checkpoint, weights_only=True)
    moved = RunFolder(Path(shutil.move(cut.path, tmp_path / "moved")))
    assert train(moved) == 0
    kept = torch.load(moved.best_checkpoint, weights_only=True)
    assert (kept["epoch"], kept["global_step"]) == (best["epoch"], best["global_step"])
    assert kept["state_dict"].keys() == best["state_dict"].keys()
    assert all(torch.equal(value, kept["state_dict"][name]) for name, value in best["state_dict"].items())
    assert sorted(path.name for path in moved.checkpoints.iterdir()) == ["best.ckpt", "last.ckpt"]
    assert not cut.path.exists()


def shown(folder: RunFolder) -> dict[str, list[int]]:
    """Steps of every scalar as the server of TensorBoard reads them, which is another reader than that of `curve`."""
    read = {split: plugin_event_accumulator.EventAccumulator(str(folder.curves(split))).Reload() for split in CURVES}
    return {
        f"{split} {tag}": [e.step for e in events.Tensors(tag)]
        for split, events in read.items()
        for tag in events.Tags()["tensors"]
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
    }


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("uncut") / "run", [*RECIPE, WITH_CURVES])
    assert train(folder) == 0
    return folder


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("hook", "step", "flushes"),
    [
        ("on_train_batch_end", 2, True),  # before the first checkpoint
        ("on_train_epoch_start", 4, False),  # after it
        ("on_train_batch_end", 6, True),
        ("on_test_end", 8, True),
    ],
)
def test_a_killed_and_resumed_run_has_every_point_of_its_curves_once(
    uncut: RunFolder, tmp_path: Path, hook: str, step: int, flushes: bool
) -> None:
    killed = f"+callbacks.killed={{_target_:tests.support.callbacks.Killed,hook:{hook},step:{step},flushes:{flushes}}}"
    folder = write_run(tmp_path / "run", [*RECIPE, WITH_CURVES, killed])
    words = [sys.executable, "-m", "lockstep.launch.prepared_run", str(folder.path), "--task", "train"]
    for code in (128 + signal.SIGKILL, 0):
        done = commands.run(words, ROOT)
        assert done.returncode == code, done.stdout + done.stderr
    assert difference(uncut, folder) == 0
    assert curve(folder) == curve(uncut)
    assert shown(folder) == shown(uncut)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was stopped in its second epoch, after step 6: best.ckpt is of step 4."""
    folder = write_run(tmp_path_factory.mktemp("stopped") / "run", RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopTogether, "request", lambda self, trainer: 15 * (trainer.global_step == 5))
        assert train(folder) == EXIT_STOPPED
    await_next_second()
    return folder


@pytest.fixture
def folder(stopped: RunFolder, tmp_path: Path) -> Iterator[RunFolder]:
    """The same for a test that changes it. In its place: Lightning does not take over the best score of a moved run."""
    kept = shutil.copytree(stopped.path, tmp_path / "kept")
    yield stopped
    shutil.rmtree(stopped.path)
    shutil.move(kept, stopped.path)
    stopped.claim()


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def resumed(folder: RunFolder, *more: str) -> "subprocess.CompletedProcess[str]":
    words = command(f"resume={folder.path}", *more)
    return commands.run(words, ROOT)


@pytest.mark.full
@pytest.mark.processes
def test_a_run_whose_last_checkpoint_is_damaged_resumes_from_the_best(uncut: RunFolder, folder: RunFolder) -> None:
    cut_short(folder.last_checkpoint)
    done = resumed(folder, "trainer.devices=2")
    assert done.returncode == 0, done.stdout + done.stderr
    said = f"{folder.last_checkpoint} is damaged"
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1, done.stderr
    assert str(folder.best_checkpoint) in done.stderr
    status = folder.read_status()
    assert status["state"] == "finished"
    assert status["reason"].startswith(said)
    assert difference(uncut, folder) <= 1e-9
    assert {tag: [step for step, _ in points] for tag, points in curve(folder).items()} == shown(uncut)


@pytest.mark.full
@pytest.mark.processes
def test_a_run_without_a_whole_checkpoint_is_left_as_it_is(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        cut_short(path)

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.path.rglob("[!.]*") if path.is_file()}

    before = content()
    done = resumed(folder, "trainer.max_epochs=3")
    assert done.returncode == EXIT_CONFIG
    assert "Traceback" not in done.stderr
    error, end = done.stderr.splitlines()
    assert error.startswith(f"config error: {folder.last_checkpoint} is damaged")
    assert str(folder.best_checkpoint) in error
    assert end.startswith("1 error; nothing was started")
    assert content() == before


@pytest.mark.full
@pytest.mark.processes
def test_a_job_without_a_whole_checkpoint_fails_with_their_names(folder: RunFolder) -> None:
    for path in (folder.last_checkpoint, folder.best_checkpoint):
        cut_short(path)
    assert prepared_run.run_prepared(folder.path, "train") == EXIT_CONFIG
    assert "last.ckpt is damaged" in folder.failure.read_text()
    assert folder.read_status()["state"] == "failed"


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "content"), [("status.json", b'{"state": "stop'), ("summary.json", b'{"epochs": []}')]
)
def test_a_run_with_a_damaged_file_is_not_resumed(folder: RunFolder, name: str, content: bytes) -> None:
    (folder.path / name).write_bytes(content)
    done = resumed(folder, "trainer.max_epochs=3")
    assert done.returncode == EXIT_CONFIG
    error, _ = done.stderr.splitlines()
    assert name in error
    assert (folder.path / name).read_bytes() == content
    assert prepared_run.run_prepared(folder.path, "train") == EXIT_CONFIG
    assert name in folder.failure.read_text()


@pytest.mark.full
@pytest.mark.processes
def test_a_damaged_checkpoint_is_not_evaluated(folder: RunFolder) -> None:
    cut_short(folder.best_checkpoint)
    done = commands.lockstep(folder.path.parent, "eval", folder.path)
    assert done.returncode == EXIT_CONFIG
    (line,) = done.stderr.splitlines()
    assert f"{folder.best_checkpoint.relative_to(folder.path.parent)} is damaged" in line
    assert "--checkpoint last" in line


@pytest.mark.full
def test_an_epoch_without_validation_shows_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [*RECIPE, "trainer.max_epochs=3", "trainer.check_val_every_n_epoch=2"])
    assert train(folder) == 0
    assert [bool(row["val/loss"]) for row in folder.read_metrics()] == [False, True, False]


@pytest.mark.full
@pytest.mark.parametrize(("asked_in_step", "step", "epoch"), [(3, 4, 1), (5, 6, 2)])
def test_a_stopped_run_shows_the_epoch_it_was_in_also_at_the_end_of_one(
    tmp_path: Path, asked_in_step: int, step: int, epoch: int
) -> None:
    folder = write_run(tmp_path / "run", RECIPE)
    cut_after(folder, asked_in_step)
    status = folder.read_status()
    assert (status["state"], status["step"], status["epoch"]) == ("stopped", step, epoch)


@pytest.mark.full
def test_a_resumed_run_has_its_status_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", RECIPE)
    folder.write_status(state="stopped", reason="time limit", step=3, host="another machine")
    seen = []

    def train(make: Callable[[contextlib.ExitStack], RunFolder], config: Any, **options: Any) -> tuple[RunFolder, int]:
        with contextlib.ExitStack() as held:
            seen.append(make(held).read_status())
        return folder, 0

    monkeypatch.setattr(runner, "run_workers", train)
    runner.resume(*saved_run.check_resume(folder, [f"resume={folder.path}"], DEFAULT, is_trusted=False))
    assert (seen[0]["state"], seen[0]["reason"], seen[0]["step"]) == ("starting", "", 3)
