"""The speed and the weights in the record of a run."""

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep.callbacks.record import Record
from lockstep.models.weights_hash import weights_hash
from lockstep.monitoring import status
from lockstep.runs.folder import RunFolder
from tests.support.exact import trained
from tests.support.harness import SMALL

AT_WORK_S = 0.2  # of the GPU after the host has launched the last step


def test_speed_after_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: time.sleep(AT_WORK_S))
    record = Record(RunFolder(tmp_path), facts={}, monitor=None)
    facts = {"is_last_batch": True, "is_global_zero": False, "num_training_batches": 2, "current_epoch": 0}
    trainer: Any = SimpleNamespace(**facts)
    module: Any = SimpleNamespace(device=torch.device("cuda", 1))
    batch: Any = SimpleNamespace(shard=SimpleNamespace(size=100, micro_step=0))
    record.on_train_epoch_start(trainer, module)
    record.on_train_batch_end(trainer, module, None, batch, 0)
    assert record.images_per_s is not None
    assert record.images_per_s <= 100 / AT_WORK_S


@pytest.mark.full
def test_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(2e9, -3600)
    monkeypatch.setattr(f"{Record.__module__}.time", SimpleNamespace(time=times.__next__, monotonic=time.monotonic))
    folder = trained(tmp_path / "run", [*SMALL, "trainer.max_epochs=1", "model.width=2"])
    assert 0 <= folder.read_status()["elapsed_s"] < 3600


@pytest.mark.parametrize("average", ["default", "ema"])
def test_hash_of_last_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str], average: str) -> None:
    # the last epoch is not the best
    by_loss = ("callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min")
    wild = ("scheduler=constant", "optimizer.lr=3", *by_loss)
    folder = trained(tmp_path / "run", [*SMALL, "model.width=2", f"callbacks={average}", *wild])
    last, best = (
        weights_hash({name[4:]: value for name, value in saved["state_dict"].items() if name.startswith("net.")})
        for saved in (torch.load(file, weights_only=True) for file in (folder.last_checkpoint, folder.best_checkpoint))
    )
    assert best != last
    assert folder.read_summary()["weights_sha256"] == last
    status.show_status(folder, is_json=True)
    assert f'"weights_sha256": "{last}"' in capsys.readouterr().out
