"""Custom LightningModules: cut and continued, recorded, and rejected."""

from pathlib import Path

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.commands import run
from tests.support.harness import ROOT, command, state, train_all, write_run
from tests.support.recipes import GAN, MODULES, OF_MODULE, PLAIN

pytestmark = [pytest.mark.full, pytest.mark.processes]


@pytest.mark.parametrize("own", [PLAIN, GAN], ids=["automatic", "two_optimizers"])
def test_it_is_stopped_in_an_epoch_and_resumed_by_another_number_of_workers(
    tmp_path: Path, own: tuple[str, ...]
) -> None:
    uncut = write_run(tmp_path / "uncut", [*OF_MODULE, *own])
    train_all([uncut], 1)
    stops = "+callbacks.stops={_target_:tests.support.callbacks.Terminated,rank:2,in_test:false}"
    folder = tmp_path / "cut"
    first = run(command(*OF_MODULE, *own, stops, "trainer.devices=3", f"hydra.run.dir={folder}"), ROOT)
    assert first.returncode == 75, first.stderr
    assert RunFolder(folder).read_status()["step"] in (1, 2, 3, 4)  # of five in an epoch
    second = run(command(f"resume={folder}", "trainer.devices=2", "--trust"), ROOT)
    assert second.returncode == 0, second.stderr
    ends, others = state(uncut), state(RunFolder(folder))
    assert ends.keys() == others.keys()
    assert max((ends[name].double() - others[name].double()).abs().max() for name in ends) <= 1e-12
    # Lightning restarts its means over an epoch after a resume: train/loss of the first one
    for name in ("val/loss", "learning_rate"):
        pairs = zip(uncut.read_metrics(), RunFolder(folder).read_metrics(), strict=True)
        assert all(abs(float(row[name]) - float(other[name])) <= 1e-12 for row, other in pairs)


def test_what_it_logs_is_recorded_and_selects_the_best_weights(tmp_path: Path) -> None:
    settings = (*OF_MODULE, *PLAIN, "trainer.devices=2", "trainer.precision=bfloat16")
    done = run(command(*settings, f"hydra.run.dir={tmp_path / 'run'}"), ROOT)
    assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "run")
    rows, summary, status = folder.read_metrics(), folder.read_summary(), folder.read_status()
    assert [row["step"] for row in rows] == ["5", "10"]
    assert all(float(row["train/loss"]) > 0 and float(row["val/loss"]) > 0 for row in rows)
    assert summary["best"] == min(float(row["val/loss"]) for row in rows)
    assert summary["monitor"] == "val/loss"
    assert summary["test_loss"] > 0
    assert status["metrics"]["test/loss"] == summary["test_loss"]
    assert "Lockstep: Plain on synthetic" in done.stdout
    evaluated = run([*command()[:1], "-m", "lockstep", "eval", str(folder.path), "--devices", "2", "--trust"], ROOT)
    assert evaluated.returncode == 0, evaluated.stderr
    assert f"{summary['test_loss']:.6f}" in evaluated.stdout
    for name, *more in (("predict", "test"), ("labels",)):
        arguments = [name, str(folder.path), *more, "--output", str(tmp_path / "x.csv"), "--trust"]
        done = run([*command()[:1], "-m", "lockstep", *arguments], ROOT)
        assert done.returncode == 2
        assert f"lockstep {name} needs the predictions of a task" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([f"module._target_={MODULES}.LogsItsShard", "trainer.devices=2"], "logs different values on the workers"),
        (
            [*PLAIN, "callbacks.checkpoint.monitor=val/f1", "callbacks.checkpoint.mode=max"],
            "is not logged by module._t",
        ),
        ([*PLAIN, "compile=true"], "compile=true is of Lockstep's own module"),
        ([*PLAIN, "trainer.precision=float16"], "trainer.precision=float16 is of Lockstep's own module"),
        ([*PLAIN, "trainer.graph=true"], "trainer.graph=true is of Lockstep's own module"),
        (["module._target_=torch.nn.Identity"], "it is not a LightningModule"),
        ([*PLAIN, "+module.width=3"], "module.width is not a setting"),
    ],
)
def test_what_cannot_be_right_is_an_error_of_one_line(tmp_path: Path, overrides: list[str], error: str) -> None:
    done = run(command(*OF_MODULE, *overrides, f"hydra.run.dir={tmp_path / 'run'}"), ROOT)
    assert done.returncode == 2, done.stderr
    assert any("config error: " in line and error in line for line in done.stderr.splitlines()), done.stderr
    assert "Traceback" not in done.stderr
