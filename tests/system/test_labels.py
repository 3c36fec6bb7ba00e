"""`lockstep labels`: which images are judged, the list and its pictures, and docs/data.md as typed."""

import csv
import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support import pages
from tests.support.commands import latest, lockstep, output_of
from tests.support.harness import ROOT, SMALL, train_all, write_run
from tests.support.recipes import SOURCES
from tests.support.sources import wrong_labels

pytestmark = pytest.mark.processes
PAGE = ROOT / "docs" / "data.md"
FAST = ("strategy=cpu", "trainer.devices=1", "callbacks.pictures=null")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def sweep_of(cwd: Path, *words: str) -> Path:
    """Run a sweep over five folds. Returns its folder."""
    output_of(cwd, *words)
    (file,) = cwd.glob("outputs/*/*/out_of_fold.csv")
    return file.parent


def test_labels_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", (*SMALL, "trainer.max_epochs=1"))
    train_all([run], 1)
    words = ("labels", run.path, "--output", "one.csv", "--strategy", "cpu")
    facts = json.loads(output_of(tmp_path, *words, "--json"))
    rows, record = rows_of(tmp_path / "one.csv"), json.loads(gzip.decompress(run.images.read_bytes()))
    for split in ("train", "val", "test"):
        assert sorted(row["file"] for row in rows if row["split"] == split) == sorted(record[split]["names"])
    judged, others = rows[:54], rows[54:]  # 23 and 31 of 124
    assert {row["split"] for row in judged} == {"val", "test"}
    assert {(row["suggested"], row["score"], row["suspicious"]) for row in others} == {("", "", "0")}
    order = [(row["suspicious"] == "0", float(row["score"])) for row in judged]
    assert order == sorted(order)
    assert sum(row["suspicious"] == "1" for row in rows) == facts["suspicious"] == len(facts["labels"])
    assert facts["images"] == 54
    assert (tmp_path / "one.png").is_file()
    again = lockstep(tmp_path, *words)
    assert (again.returncode, "one.csv exists" in again.stderr) == (2, True)
    shown = lockstep(tmp_path, "labels", run.path, "--strategy", "cpu").stdout
    assert "data.folds=5 data.fold=0,1,2,3,4 judges all." in shown


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1])
def test_wrong_labels_first(tmp_path: Path, seed: int) -> None:
    keys = ("val_fraction", "test_fraction", "split_seed", "memory")
    data = ("data=digits", *(f"~data.{key}" for key in keys), f"{SOURCES}.mislabelled", f"+data.flip_seed={seed}")
    small = ("model.width=4", "trainer.max_epochs=4", *FAST)
    sweep = sweep_of(tmp_path, "train", "-m", *data, *small, "data.folds=5", "data.fold=0,1,2,3,4")
    for checkpoints in sweep.glob("*/checkpoints"):
        shutil.rmtree(checkpoints)  # the predictions are there
    facts = json.loads(output_of(tmp_path, "labels", sweep, "--json", "--trust"))
    rows, wrong = rows_of(tmp_path / "labels.csv"), wrong_labels(seed)
    assert (len(rows), facts["images"], {row["split"] for row in rows}) == (1797, 1797, {"train"})
    is_wrong = [int(row["file"].partition("/")[2]) in wrong for row in rows]
    assert sum(is_wrong) == 54
    assert sum(is_wrong[:90]) >= 0.8 * 54
    found = sum(is_wrong[: facts["suspicious"]])
    assert found >= 0.5 * 54
    assert facts["suspicious_by_chance"] == pytest.approx(facts["suspicious"] - found, abs=8)
    assert facts["wrong_fraction"] == pytest.approx(0.03, abs=0.01)


def flower(path: Path, seed: int, *, is_red: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 90, (16, 16, 3), dtype=np.uint8)
    pixels[4:12, 4:12, 0 if is_red else 2] += 120
    Image.fromarray(pixels).save(path)


@pytest.mark.full
def test_page_corrects_labels(tmp_path: Path) -> None:
    """Two photographs are in the wrong folder; one has a name that a spreadsheet would take for a formula."""
    wrong = {"rose/=1.png": "tulip, wild", "tulip, wild/7.png": "rose"}
    for number in range(60):
        for name in ("rose", "tulip, wild"):
            path = f"{name}/{'=' * (number == 1)}{number}.png"
            flower(tmp_path / "flowers" / path, number, is_red=wrong.get(path, name) == "rose")
    (section,) = re.findall(r"^### Wrong labels\n(.*?)^##", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [
        shlex.split(line) for kind, block in pages.BLOCK.findall(section) if kind == "sh" for line in block.splitlines()
    ]
    training, judging, again_on_page = lines
    small = ("data.image_size=16", "model.width=4", "trainer.max_epochs=4", "global_batch_size=16", *FAST)
    sweep = sweep_of(tmp_path, "train", *training[2:], *small)
    done = output_of(tmp_path, *judging[1:-1], sweep)
    rows = rows_of(tmp_path / "labels.csv")
    head, *cells = csv.reader((tmp_path / "labels.csv").read_text().splitlines())
    assert {row["file"].replace("'", ""): row["suggested"] for row in rows[:2]} == wrong
    again = shlex.split(done.splitlines()[-1])  # the command that the page shows
    assert set(again_on_page[2:]) - {"data.root=flowers"} <= {"train", *again}
    for row in cells[:2]:  # as a person edits it
        row[head.index("label")] = row[head.index("suggested")]
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *cells])
    output_of(tmp_path, "train", *again[2:], *small, "trainer.max_epochs=1")
    record = json.loads(gzip.decompress(latest(tmp_path).images.read_bytes()))
    names = record["class_names"]
    labels = {n: names[t] for part in ("train", "val", "test") for n, t in zip(*record[part].values(), strict=True)}
    assert len(labels) == 120
    assert {name: label for name, label in labels.items() if label != name.partition("/")[0]} == wrong
