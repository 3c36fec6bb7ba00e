"""The weights in the record of a run."""

from pathlib import Path

import pytest
import torch

from lockstep.models.weights_hash import weights_hash
from lockstep.monitoring import status
from tests.support.exact import trained
from tests.support.harness import SMALL


def test_weights_hash_last_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # the last epoch is not the best
    by_loss = ("callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min")
    wild = ("scheduler=constant", "optimizer.lr=3", *by_loss)
    folder = trained(tmp_path / "run", [*SMALL, "model.width=2", "callbacks=ema", *wild])
    last, best = (
        weights_hash(
            {
                name[4:]: value
                for name, value in saved["state_dict"].items()
                if name.startswith("net.")
            }
        )
        for saved in (
            torch.load(file, weights_only=True)
            for file in (folder.last_checkpoint, folder.best_checkpoint)
        )
    )
    assert best != last
    assert folder.read_summary()["weights_sha256"] == last
    status.show_status(folder, is_json=True)
    assert f'"weights_sha256": "{last}"' in capsys.readouterr().out
