"""Curves at Weights & Biases and MLflow after a stop and a resume on other workers."""

import os
import signal
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED
from tests.support import commands
from tests.support.harness import SMALL, command, environ, wait_until
from tests.support.trainings import is_alive, training
from tests.support.wandb_files import sessions

pytestmark = [pytest.mark.full, pytest.mark.processes]
RECIPE = (
    *SMALL,
    "data.train_size=50",
    "model.width=2",
    "trainer.max_epochs=2",
    "trainer.log_every_n_steps=1",
)
LONG = (*RECIPE, "trainer.max_epochs=2000")
OFFLINE = ("logger=wandb", "logger.wandb.offline=true")
STEP = "trainer/global_step"


def curve(points: list[dict[str, float]]) -> dict[str, list[tuple[float, float]]]:
    """Points (step, value) by name."""
    names = dict.fromkeys(name for point in points for name in point if name != STEP)
    return {
        name: [(point[STEP], point[name]) for point in points if name in point] for name in names
    }


def senders(pid: int) -> list[int]:
    """The processes of Weights & Biases below a process."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for path in children for child in path.read_text().split()]
    found = [
        child for child in below if Path(f"/proc/{child}/comm").read_text().strip() == "wandb-core"
    ]
    return found + [sender for child in below if child not in found for sender in senders(child)]


def test_wandb_stop_and_resume(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, *OFFLINE, "trainer.devices=2") as started:
        started.wait_for_step(6)
        (sender,) = senders(started.workers()[0])
        started.process.send_signal(signal.SIGINT)
        assert started.exit_code() == EXIT_STOPPED, started.log.read_text()
    wait_until(lambda: not is_alive(sender), "end of the process that sends")
    folder = started.folder
    epochs = int(folder.read_status()["epoch"]) + 1
    with training(
        tmp_path, f"resume={folder.path}", "trainer.devices=1", f"trainer.max_epochs={epochs}"
    ) as resumed:
        assert resumed.exit_code() == 0, resumed.log.read_text()
    first, second = sessions(folder.path)
    assert first.id == second.id
    assert first.name == second.name == folder.path.name
    assert (first.exit_code, second.exit_code, first.config["seed"]) == (0, 0, 0)
    points = curve(first.points + second.points)
    assert [step for step, _ in points["train_step/loss"]] == list(range(1, 4 * epochs + 1))
    assert [step for step, _ in points["val/loss"]] == list(range(4, 4 * epochs + 1, 4))
    rows = folder.read_metrics()
    assert [f"{value:.6g}" for _, value in points["val/loss"]] == [
        f"{float(row['val/loss']):.6g}" for row in rows
    ]
    assert len(points["test/loss"]) == 1


def test_wandb_killed(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, *OFFLINE) as started:
        started.wait_for_step(3)
        (sender,) = senders(started.workers()[0])
        os.kill(sender, signal.SIGTERM)  # as a cluster sends it to all processes of a job
        has_ended = started.process.poll
        wait_until(
            lambda: (
                "logger.wandb no longer gets metrics" in started.log.read_text()
                or has_ended() is not None
            ),
            "the line that reports it",
        )
        started.wait_for_step(int(started.folder.read_status()["step"]) + 8)
        started.process.send_signal(signal.SIGTERM)
        assert started.exit_code() == EXIT_STOPPED, started.log.read_text()
    assert "Traceback" not in started.log.read_text()


def test_wandb_without_login(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_MODE": "online"}
    kept = {name: value for name, value in environ().items() if name != "WANDB_API_KEY"}
    words = command(*RECIPE, "logger=wandb", "trainer.devices=2")
    done = commands.run(words, tmp_path, {**kept, **home})
    assert done.returncode == EXIT_CONFIG, done.stderr
    assert "config error: logger.wandb cannot start: " in done.stderr


def test_mlflow_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which it allows only if asked
    words = command(
        *RECIPE, "logger=mlflow", "logger.mlflow.tracking_uri=mlruns", "trainer.devices=2"
    )
    resume = command("resume=outputs/latest", "trainer.devices=1", "trainer.max_epochs=3")
    for each in (words, resume):
        done = commands.run(each, tmp_path)
        assert done.returncode == 0, done.stderr
    client = MlflowClient(str(tmp_path / "mlruns"))
    experiment = client.get_experiment_by_name("lockstep")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(run.info.run_id, "train_step/loss")
    assert run.info.status == "FINISHED"
    assert [point.step for point in losses] == list(range(1, 13))
    assert len(client.get_metric_history(run.info.run_id, "test/loss")) == 2
