"""The speed and the weights in the record of a run."""

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lockstep.callbacks.record import Record
from lockstep.models.weights_hash import weights_hash
from lockstep.monitoring import status
from lockstep.runs.folder import RunFolder
from tests.support.exact import train
from tests.support.harness import SMALL, write_run

AT_WORK_S = 0.2  # of the GPU after the host has launched the last step


@pytest.mark.parametrize("is_last_batch", [True, False])
def test_the_images_of_an_epoch_count_when_the_gpu_has_computed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last_batch: bool
) -> None:
    waited: list[Any] = []

    def synchronize(device: Any) -> None:
        waited.append(device)
        time.sleep(AT_WORK_S)

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    record = Record(RunFolder(tmp_path), facts={}, monitor=None)
    trainer: Any = SimpleNamespace(
        is_last_batch=is_last_batch, is_global_zero=False, num_training_batches=2, current_epoch=0
    )
    module: Any = SimpleNamespace(device=torch.device("cuda", 1))
    record.on_train_epoch_start(trainer, module)
    shard = SimpleNamespace(size=100, micro_step=0)
    record.on_train_batch_end(trainer, module, None, cast(Any, SimpleNamespace(shard=shard)), 0)
    assert waited == ([module.device] if is_last_batch else []), "no other batch waits"
    if is_last_batch:
        assert record.images_per_s is not None
        assert record.images_per_s <= 100 / AT_WORK_S
    else:
        assert record.images_per_s is None, "the first batch compiles, and is only launched"


@pytest.mark.full
def test_a_clock_that_is_set_back_makes_no_time_negative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(2e9, -3600)
    monkeypatch.setattr(f"{Record.__module__}.time", SimpleNamespace(time=times.__next__, monotonic=time.monotonic))
    folder = write_run(tmp_path / "run", [*SMALL, "trainer.max_epochs=1", "model.width=2"])
    assert train(folder) == 0
    assert 0 <= folder.read_status()["elapsed_s"] < 3600


@pytest.mark.parametrize("average", ["default", "ema"])
def test_a_run_shows_the_hash_of_its_last_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], average: str
) -> None:
    # the last epoch is not the best
    by_loss = ("callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min")
    wild = ("scheduler=constant", "optimizer.lr=3", *by_loss)
    folder = write_run(tmp_path / "run", [*SMALL, "model.width=2", f"callbacks={average}", *wild])
    assert train(folder) == 0
    last, best = (
        weights_hash({name[4:]: value for name, value in saved["state_dict"].items() if name.startswith("net.")})
        for saved in (torch.load(file, weights_only=True) for file in (folder.last_checkpoint, folder.best_checkpoint))
    )
    assert best != last
    assert folder.read_summary()["weights_sha256"] == last
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("weights "))
    assert line.split() == ["weights", "SHA-256", last[:12]]
    status.show_status(folder, is_json=True)
    assert json.loads(capsys.readouterr().out)["weights_sha256"] == last
    status.show_status(folder, is_json=False)
    assert ["weights", last[:12]] in [line.split() for line in capsys.readouterr().out.splitlines()]
