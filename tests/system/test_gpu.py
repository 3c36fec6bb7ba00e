"""On a real GPU; `python -m benchmarks.gpu --stages tests` runs these."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.runs.folder import EXIT_FAILED, RunFolder
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, difference, environ, train_all, write_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.processes,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
ON_GPU = [override for override in SMALL if override != "strategy=cpu"] + ["trainer.devices=1"]
LOG_EVERY = 8


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    line = command(*overrides, f"hydra.run.dir={folder}")
    return subprocess.run(line, cwd=ROOT, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)


def test_one_gpu_computes_what_the_cpu_does(tmp_path: Path, figure: Any) -> None:
    """Without dropout, whose mask depends on the kind of device."""
    cpu = write_run(tmp_path / "cpu", [*SMALL, "model.dropout=0"])
    gpu = write_run(tmp_path / "gpu", [*ON_GPU, "model.dropout=0"])
    train_all([cpu, gpu], 1)
    worst = difference(cpu, gpu)
    figure(f"float64, GPU against CPU: largest difference {worst:.1e}")
    assert worst <= 1e-12


def test_a_deterministic_training_is_the_same_bit_by_bit(tmp_path: Path) -> None:
    overrides = [override for override in ON_GPU if not override.startswith("trainer.precision")]
    runs = [write_run(tmp_path / name, [*overrides, "trainer.deterministic=true"]) for name in ("first", "second")]
    train_all(runs, 1)
    assert difference(*runs) == 0.0


def test_the_guard_ends_a_training_before_nan_reaches_the_weights(tmp_path: Path) -> None:
    network = [f"~model.{name}" for name in ("width", "stem", "shortcut_norm", "bias", "dropout", "init")]
    network += ["model._target_=tests.support.networks.BecomesNan", "+model.hidden=4", "trainer.max_epochs=10"]
    overrides = [override for override in ON_GPU if not override.startswith("model.")]
    done = train(tmp_path / "run", *overrides, *network)
    assert done.returncode == EXIT_FAILED
    assert "The loss is not finite in optimizer step 30 " in done.stderr
    saved = torch.load(RunFolder(tmp_path / "run").last_checkpoint, map_location="cpu", weights_only=True)
    assert all(value.isfinite().all() for value in saved["state_dict"].values())


@pytest.mark.parametrize(
    ("optimizer", "callbacks", "precision"),
    [
        ("sgd", "default", "auto"),
        ("sgd", "ema", "auto"),
        ("adamw", "default", "auto"),
        ("adamw", "ema", "auto"),
        ("sgd", "ema", "float16"),
    ],
)
def test_nothing_waits_for_the_gpu_between_two_logged_steps(
    tmp_path: Path, optimizer: str, callbacks: str, precision: str
) -> None:
    overrides = [override for override in ON_GPU if not override.startswith("trainer.log_every")]
    overrides += [f"trainer.log_every_n_steps={LOG_EVERY}", f"optimizer={optimizer}", f"callbacks={callbacks}"]
    overrides += [
        "+callbacks.waits={_target_:tests.support.callbacks.NeverWaits}",
        f"trainer.precision={precision}",
        "data.train_size=700",
    ]
    done = train(tmp_path / "run", *overrides)
    assert done.returncode == 0, done.stderr
