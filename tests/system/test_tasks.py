"""Other tasks than a class for each image, from the training to the file of predictions."""

import csv
import sys
from pathlib import Path

import pytest
import torch
from sklearn import metrics

from lockstep.runs.folder import RunFolder
from tests.support.commands import run
from tests.support.harness import ROOT, command, environ
from tests.support.sources import labelled

pytestmark = [pytest.mark.full, pytest.mark.processes]
HEADS = {"multilabel": ["file", "even", "above 4"], "regression": ["file", "ink"]}
KINDS = {"multilabel": "labels", "regression": "number"}
PLAIN = ("val_fraction", "test_fraction", "split_seed")


def done(words: list[str], cwd: Path) -> str:
    finished = run(words, cwd, {**environ(), "PYTHONPATH": str(ROOT)})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module", params=HEADS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunFolder]:
    cwd = tmp_path_factory.mktemp(request.param)
    source = ["data._target_=tests.support.sources.labelled", f"+data.kind={KINDS[request.param]}"]
    small = ["model.width=2", "trainer.max_epochs=2", "trainer.precision=float64", "optimizer.lr=0.01"]
    workers = ["strategy=cpu", "trainer.devices=2", "trainer.loads=[2,1]"]
    removed = [f"~data.{name}" for name in PLAIN]
    done(command(f"task={request.param}", *source, *removed, *small, *workers), cwd)
    return request.param, RunFolder((cwd / "outputs" / "latest").resolve())


def predictions(folder: RunFolder, num_workers: int) -> bytes:
    output = folder.path / f"predictions-{num_workers}.csv"
    words = ["predict", "--trust", str(folder.path), "test", "--output", str(output), "--devices", str(num_workers)]
    done([sys.executable, "-m", "lockstep", *words], folder.path.parents[2])
    return output.read_bytes()


def test_predictions_are_the_same_file_by_any_number_of_workers(trained: tuple[str, RunFolder]) -> None:
    task, folder = trained
    whole, *others = (predictions(folder, num_workers) for num_workers in (1, 2, 3))
    assert all(other == whole for other in others)
    rows = list(csv.DictReader(whole.decode().splitlines()))
    test = labelled(KINDS[task]).test
    assert list(rows[0]) == HEADS[task]
    assert [row["file"] for row in rows] == list(test.names)
    values = torch.tensor([[float(row[name]) for name in HEADS[task][1:]] for row in rows])
    summary = folder.read_summary()
    if task == "multilabel":
        expected = metrics.average_precision_score(test.targets, values)
        assert summary["test_average_precision"] == pytest.approx(expected, abs=1e-4)  # of probabilities in six digits
    else:
        assert summary["test_mae"] == pytest.approx((values[:, 0] - test.targets).abs().mean().item(), abs=1e-5)


def test_every_metric_lands_everywhere(trained: tuple[str, RunFolder]) -> None:
    task, folder = trained
    names = {"multilabel": ["average_precision", "f1", "loss"], "regression": ["mae", "rmse", "loss"]}[task]
    rows = folder.read_metrics()
    assert all(row[f"val/{name}"] for row in rows for name in names)
    summary, status = folder.read_summary(), folder.read_status()
    assert [name for name in summary if name.startswith("test_") and name != "test_images"] == [
        f"test_{name}" for name in names
    ]
    assert {f"val/{name}" for name in names} <= status["metrics"].keys()
    assert (summary["monitor"], status["mode"]) == (f"val/{names[0]}", "max" if task == "multilabel" else "min")
    assert not folder.pictures.exists()
