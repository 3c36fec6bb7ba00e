"""A run is interrupted after any step and resumed.

It ends with the same bits, the same rows and the same curves.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.summary.writer import event_file_writer

from lockstep.launch import prepared_run
from lockstep.runs.folder import CURVES, EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support import commands
from tests.support.exact import cut_after, train, train_until, trained
from tests.support.harness import ROOT, SMALL, command, difference, write_run

RECIPE = (
    *SMALL,
    "data.train_size=50",
    "model.width=2",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
)
NUM_STEPS = 8  # 4 an epoch
WITH_CURVES = "logger=tensorboard"


def curve(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """Return points (step, value) of every scalar in TensorBoard.

    Of speed and memory, which differ, these are the steps only.
    """
    read = {
        split: event_accumulator.EventAccumulator(str(folder.curves(split))).Reload()
        for split in CURVES
    }
    return {
        f"{split} {tag}": [
            (e.step, 0.0 if tag.startswith("machine/") else e.value) for e in events.Scalars(tag)
        ]
        for split, events in read.items()
        for tag in events.Tags()["scalars"]
    }


@pytest.fixture(autouse=True)
def _names_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard orders the event files of one second by name.

    A name ends with a number: 10 would come before 9.
    """
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10**6))


@pytest.mark.parametrize(
    ("extra", "steps"),
    [
        pytest.param((), range(NUM_STEPS), id="default"),
        pytest.param(
            ("trainer.accumulate_grad_batches=2", "callbacks=ema"),
            (1, 4, 6),
            id="micro-batches, averaged weights",
            marks=pytest.mark.full,
        ),
    ],
)
def test_resume_after_any_step(
    tmp_path: Path, extra: tuple[str, ...], steps: Sequence[int]
) -> None:
    recipe = [*RECIPE, WITH_CURVES, *extra]
    alone = trained(tmp_path / "alone", recipe)
    for step in steps:
        cut = write_run(tmp_path / f"cut{step}", recipe)
        if train_until(cut, step) == EXIT_STOPPED:
            # its files have the number of this process and a higher one of their own
            assert train(cut) == 0
        assert difference(alone, cut) == 0, f"cut after the request in step {step}"
        assert [row["epoch"] for row in cut.read_metrics()] == ["1", "2"]
        assert curve(cut) == curve(alone), f"cut after the request in step {step}"


@pytest.mark.full
def test_resume_moved_folder(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", RECIPE)
    cut_after(cut, NUM_STEPS // 2 + 1)
    saved = torch.load(cut.last_checkpoint, weights_only=True)
    (state,) = (state for state in saved["callbacks"].values() if state.get("monitor"))
    score = torch.tensor(2.0)  # as if no later epoch were better
    state |= {
        "best_model_score": score,
        "kth_value": score,
        "best_k_models": {state["best_model_path"]: score},
    }
    torch.save(saved, cut.last_checkpoint)
    best = torch.load(cut.best_checkpoint, weights_only=True)
    moved = RunFolder(Path(shutil.move(cut.path, tmp_path / "moved")))
    assert train(moved) == 0
    kept = torch.load(moved.best_checkpoint, weights_only=True)
    assert (kept["epoch"], kept["global_step"]) == (best["epoch"], best["global_step"])
    assert all(
        torch.equal(value, kept["state_dict"][name]) for name, value in best["state_dict"].items()
    )
    assert not cut.path.exists()


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("uncut") / "run", [*RECIPE, WITH_CURVES])


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
def test_curves_after_kill(
    uncut: RunFolder, tmp_path: Path, hook: str, step: int, flushes: bool
) -> None:
    kill = f"_target_:tests.support.callbacks.SendsSignal,hook:{hook},step:{step},flushes:{flushes}"
    folder = write_run(tmp_path / "run", [*RECIPE, WITH_CURVES, f"+callbacks.killed={{{kill}}}"])
    words = [sys.executable, "-m", "lockstep.launch.prepared_run", str(folder.path), "train"]
    for code in (128 + signal.SIGKILL, 0):
        done = commands.run(words, ROOT)
        assert done.returncode == code, done.stdout + done.stderr
    assert difference(uncut, folder) == 0
    assert curve(folder) == curve(uncut)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that was stopped in its second epoch, after step 6: best.ckpt is of step 4."""
    folder = write_run(tmp_path_factory.mktemp("stopped") / "run", RECIPE)
    cut_after(folder, 5)
    # TensorBoard orders event files by their first second, then by the process number
    time.sleep(1 - time.time() % 1)
    return folder


@pytest.fixture
def folder(stopped: RunFolder, tmp_path: Path) -> Iterator[RunFolder]:
    """The same run for a test that changes it.

    It stays in its place: Lightning does not take over the best score of a moved run.
    """
    kept = shutil.copytree(stopped.path, tmp_path / "kept")
    yield stopped
    shutil.rmtree(stopped.path)
    shutil.move(kept, stopped.path)
    stopped.claim()


def resumed(folder: RunFolder, *more: str) -> "subprocess.CompletedProcess[str]":
    words = command(f"resume={folder.path}", *more)
    return commands.run(words, ROOT)


@pytest.mark.full
@pytest.mark.processes
def test_resume_from_best(uncut: RunFolder, folder: RunFolder) -> None:
    os.truncate(folder.last_checkpoint, folder.last_checkpoint.stat().st_size // 2)
    done = resumed(folder, "trainer.devices=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.read_status()["reason"].startswith(f"{folder.last_checkpoint} is damaged")
    assert difference(uncut, folder) <= 1e-9


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "content"), [("status.json", b'{"state": "stop'), ("summary.json", b'{"epochs": []}')]
)
def test_resume_refused_damaged_file(folder: RunFolder, name: str, content: bytes) -> None:
    (folder.path / name).write_bytes(content)
    done = resumed(folder, "trainer.max_epochs=3")
    assert done.returncode == EXIT_CONFIG
    assert name in done.stderr
    assert (folder.path / name).read_bytes() == content
    assert prepared_run.run_prepared(folder.path, "train") == EXIT_CONFIG
    assert name in folder.failure.read_text()
