"""`lockstep labels`: the judged images, the list and its images."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.support.commands import output_of, rows_of
from tests.support.harness import SMALL, train_all, write_run
from tests.support.recipes import SOURCES
from tests.support.sources import wrong_labels

pytestmark = pytest.mark.processes
FAST = ("strategy=cpu", "trainer.devices=1", "callbacks.pictures=null")


def test_labels_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", (*SMALL, "trainer.max_epochs=1"))
    train_all([run], 1)
    words = ("labels", run.path, "--output", "one.csv", "--strategy", "cpu")
    facts = json.loads(output_of(tmp_path, *words, "--json"))
    rows, record = (
        rows_of(tmp_path / "one.csv"),
        json.loads(gzip.decompress(run.images.read_bytes())),
    )
    for split in ("train", "val", "test"):
        assert sorted(row["file"] for row in rows if row["split"] == split) == sorted(
            record[split]["names"]
        )
    judged, others = rows[:54], rows[54:]  # 23 and 31 of 124
    assert {row["split"] for row in judged} == {"val", "test"}
    assert {(row["suggested"], row["score"], row["suspicious"]) for row in others} == {
        ("", "", "0")
    }
    order = [(row["suspicious"] == "0", float(row["score"])) for row in judged]
    assert order == sorted(order)
    assert (
        sum(row["suspicious"] == "1" for row in rows) == facts["suspicious"] == len(facts["labels"])
    )
    assert facts["images"] == 54
    assert (tmp_path / "one.png").is_file()


@pytest.mark.full
def test_wrong_labels_first(tmp_path: Path) -> None:
    keys = ("val_fraction", "test_fraction", "split_seed", "memory")
    data = (
        "data=digits",
        *(f"~data.{key}" for key in keys),
        f"{SOURCES}.mislabeled",
        "+data.flip_seed=0",
    )
    small = ("model.width=4", "trainer.max_epochs=4", *FAST)
    output_of(tmp_path, "train", "-m", *data, *small, "data.folds=3", "data.fold=0,1,2")
    (file,) = tmp_path.glob("outputs/*/*/out_of_fold.csv")
    for checkpoints in file.parent.glob("*/checkpoints"):
        shutil.rmtree(checkpoints)  # the predictions are there
    facts = json.loads(output_of(tmp_path, "labels", file.parent, "--json", "--trust"))
    rows, wrong = rows_of(tmp_path / "labels.csv"), wrong_labels(0)
    assert (len(rows), facts["images"], {row["split"] for row in rows}) == (1797, 1797, {"train"})
    is_wrong = [int(row["file"].partition("/")[2]) in wrong for row in rows]
    assert sum(is_wrong) == 54
    assert sum(is_wrong[:90]) >= 0.8 * 54
    found = sum(is_wrong[: facts["suspicious"]])
    assert found >= 0.5 * 54
    assert facts["suspicious_by_chance"] == pytest.approx(facts["suspicious"] - found, abs=8)
    assert facts["wrong_fraction"] == pytest.approx(0.03, abs=0.01)
