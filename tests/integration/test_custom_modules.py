"""Custom LightningModules: cut and continued, recorded, and rejected."""

import re
from pathlib import Path

import pytest

from tests.support.commands import lockstep, run
from tests.support.composed import errors_of
from tests.support.exact import cut_after, trained
from tests.support.harness import ROOT, command, state, train_all, write_run
from tests.support.recipes import GAN, MODULES, OF_MODULE, PLAIN

pytestmark = [pytest.mark.full, pytest.mark.processes]


@pytest.mark.parametrize("settings", [PLAIN, GAN], ids=["automatic", "two_optimizers"])
def test_resume_other_workers(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """The metrics differ: Lightning restarts its means over an epoch after a resume."""
    uncut = trained(tmp_path / "uncut", [*OF_MODULE, *settings])
    resumed = write_run(tmp_path / "resumed", [*OF_MODULE, *settings])
    cut_after(resumed, 2)
    train_all([resumed], 3)
    expected, found = state(uncut), state(resumed)
    assert found.keys() == expected.keys()
    assert (
        max((found[name].double() - expected[name].double()).abs().max() for name in found) <= 1e-12
    )


def test_logged_values_recorded(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", (*OF_MODULE, *PLAIN, "trainer.precision=bfloat16"))
    train_all([folder], 2)
    rows, summary = folder.read_metrics(), folder.read_summary()
    assert summary["best"] == min(float(row["val/loss"]) for row in rows)
    assert folder.read_status()["metrics"]["test/loss"] == summary["test_loss"]
    evaluated = lockstep(tmp_path, "eval", folder.path, "--devices", "2", "--trust")
    assert f"{summary['test_loss']:.6f}" in evaluated.stdout, evaluated.stderr


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["compile=true"], "compile=true is a setting of Lockstep's module"),
        (
            ["trainer.precision=float16"],
            "trainer.precision=float16 is a setting of Lockstep's module",
        ),
        (["trainer.graph=true"], "trainer.graph=true is a setting of Lockstep's module"),
        (["+module.width=3"], "module.width is not a setting"),
    ],
)
def test_wrong_settings_refused(overrides: list[str], error: str) -> None:
    assert error in "\n".join(errors_of(*OF_MODULE, *PLAIN, *overrides))


def test_differing_metrics_reported(tmp_path: Path) -> None:
    """They cannot choose the best epoch."""
    settings = (*OF_MODULE, f"module._target_={MODULES}.LogsItsShard", "trainer.devices=2")
    refused = run(command(*settings, f"hydra.run.dir={tmp_path / 'refused'}"), ROOT)
    assert refused.returncode == 2, refused.stderr
    assert "logs different values on the workers" in refused.stderr
    more = ("callbacks.checkpoint.monitor=train/loss", f"hydra.run.dir={tmp_path / 'run'}")
    done = run(command(*settings, *more), ROOT)
    assert done.returncode == 0, done.stderr
    reports = [line for line in done.stderr.splitlines() if "different values" in line]
    names = [re.findall(r"\w+/\w+", report.partition("recorded")[2]) for report in reports]
    assert names == [["val/loss"], ["test/loss"]], "each once, train/loss never"
