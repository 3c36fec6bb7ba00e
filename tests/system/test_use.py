"""docs/use.md as typed; its report, rows and pictures against scikit-learn and each other."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import classification_report, confusion_matrix
from sklearn.metrics.pairwise import cosine_similarity

from tests.support import guides
from tests.support.harness import ROOT, SMALL

pytestmark = [pytest.mark.full, pytest.mark.processes]
PREDICT = "lockstep predict latest test --max-error 0.02"
PAGE = ROOT / "docs" / "use.md"
LEARNING = ("model.width=8", "trainer.max_epochs=6", "trainer.precision=float32", *SMALL[-4:])
SMALLER = ("model.width=4", "trainer.max_epochs=1", "trainer.precision=float32", *SMALL[-4:])


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder at the end of the page, and what each of its commands printed; trainings are smaller."""
    folder, said = tmp_path_factory.mktemp("typed"), {}
    for guide in guides.guides(PAGE).values():
        guide.write(folder)
        for words in guide.commands:
            smaller = LEARNING if "data=digits" in words else SMALLER
            more = smaller if words[:2] == ("lockstep", "train") else ()
            said[" ".join(words)] = guides.run(folder, *words, *more)
    return folder, said


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_command_of_the_page_works_and_its_files_agree(typed: tuple[Path, dict[str, str]]) -> None:
    folder, said = typed
    assert not guides.long_blocks(PAGE)
    shown = next(text for line, text in said.items() if "--pictures" in line)
    rows = rows_of(folder / "rows.csv")
    photos = [path.relative_to(folder / "holiday").as_posix() for path in (folder / "holiday").rglob("*.jpg")]
    assert sorted(row["file"] for row in rows) == sorted(photos)
    assert all(row["truth"] == row["file"].partition("/")[0] for row in rows)
    for row in rows:
        probabilities = {row["class"]: float(row["probability"]), row["class_2"]: float(row["probability_2"])}
        assert sum(probabilities.values()) == pytest.approx(1, abs=2e-6)
        assert float(row["loss"]) == pytest.approx(-np.log(probabilities[row["truth"]]), abs=1e-4)
    true, predicted = ([row[name] for row in rows] for name in ("truth", "class"))
    report: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text())
    names = ("china", "flower")
    counts = [[report["confusion_matrix"][name].get(other, 0) for other in names] for name in names]
    assert counts == confusion_matrix(true, predicted).tolist()
    zero: Any = 0  # scikit-learn declares a string
    expected: Any = classification_report(true, predicted, output_dict=True, zero_division=zero)
    for name in names:
        scores = [expected[name][key] for key in ("support", "precision", "recall", "f1-score")]
        assert list(report["classes"][name].values()) == pytest.approx(scores, abs=1e-12)
        assert f"{name}{scores[0]:>{23 - len(name)}.0f}" in shown
    accuracy = np.mean(np.array(true) == np.array(predicted))
    assert f"\naccuracy  {accuracy:.6f}\n" in shown
    assert report["metrics"]["loss"] == pytest.approx(np.mean([float(row["loss"]) for row in rows]), abs=1e-5)
    (text,) = [text for line, text in said.items() if line.endswith("--json")]
    assert json.JSONDecoder().raw_decode(text)[0] == report  # the tables on standard error follow


def test_the_page_shows_what_its_commands_print(typed: tuple[Path, dict[str, str]]) -> None:
    _, said = typed
    blocks = [block for kind, block in guides.BLOCK.findall(PAGE.read_text()) if kind == "text"]
    assert not {*blocks[0].splitlines()} - {*said["lockstep data check experiment=photos"].splitlines()}
    assert "\nExact: " in said["lockstep verify experiment=photos model.width=4"]


def test_the_table_has_the_first_rows_of_the_file_and_counts_all(typed: tuple[Path, dict[str, str]]) -> None:
    folder, said = typed
    lines = said["lockstep predict latest holiday"].splitlines()
    rows = rows_of(folder / "predictions.csv")
    assert lines[0].split() == list(rows[0])
    shown = [
        [text if at in (0, 1, 3) else f"{float(text):.4f}" for at, text in enumerate(row.values())] for row in rows
    ]
    assert [line.split() for line in lines[1:21]] == shown[:20]
    counts = {name: sum(row["class"] == name for row in rows) for name in ("china", "flower")}
    assert lines[22].startswith("60 images: ")
    assert all(f"{name} ({count})" in lines[22] for name, count in counts.items() if count)
    (one,) = [row for row in shown if row[0] == "flower/holiday-0.jpg"]
    alone = said["lockstep predict latest holiday/flower/holiday-0.jpg"].splitlines()
    assert [line.split()[1:] for line in alone[1:]] == [one[1:]]


def test_each_photograph_is_tested_by_one_fold_and_the_report_counts_it(typed: tuple[Path, dict[str, str]]) -> None:
    folder, said = typed
    (swept,) = [text for line, text in said.items() if "data.fold=" in line]
    assert re.search(r"^n +val/accuracy +95 % interval +test/accuracy .*\n5 folds +[01]\.\d{4} +", swept, re.MULTILINE)
    (file,) = folder.glob("outputs/*/*_folds/out_of_fold.csv")
    rows = rows_of(file)
    photos = sorted(path.relative_to(folder / "photos").as_posix() for path in (folder / "photos").rglob("*.jpg"))
    assert sorted(row["file"] for row in rows) == photos
    assert all(row["file"].startswith(row["truth"]) for row in rows)
    (line,) = [line.split() for line in said["python report.py"].splitlines() if line.strip().startswith("flower")]
    hits = sum(row["truth"] == row["prediction"] == "flower" for row in rows)
    assert (line[2], line[4]) == (f"{hits / 30:.2f}", "30")


def test_each_photograph_has_features_and_a_neighbour(typed: tuple[Path, dict[str, str]]) -> None:
    folder, said = typed
    features = np.load(folder / "features.npy")
    names = [row["file"] for row in rows_of(folder / "features.npy.csv")]
    photos = sorted(path.relative_to(folder / "holiday").as_posix() for path in (folder / "holiday").rglob("*.jpg"))
    assert names == photos
    assert features.shape[0] == 60
    found = [line.split() for line in said["python neighbours.py"].splitlines()]
    nearest = cosine_similarity(features.astype(np.float64)) - 2 * np.eye(60)
    assert [image for _, image, _ in found] == names
    for (value, _, other), row in zip(found, nearest, strict=True):
        assert float(value) == pytest.approx(row.max(), abs=1e-3)
        assert row[names.index(other)] == pytest.approx(row.max(), abs=1e-5)


def test_pictures_are_drawn_and_the_network_is_explained(typed: tuple[Path, dict[str, str]]) -> None:
    folder, _ = typed
    names = sorted(path.name for path in (folder / "report").iterdir())
    assert names == ["confusion_matrix.png", "predictions.png", "reliability.png", "report.json", "worst_mistakes.png"]
    with Image.open(folder / "report" / "worst_mistakes.png") as picture:
        assert picture.size[1] > 1300  # 24 mistakes, each with its light
    photos = {path.relative_to(folder / "holiday").as_posix() for path in (folder / "holiday").rglob("*.jpg")}
    pictures = {path.relative_to(folder / "looked").as_posix() for path in (folder / "looked").rglob("*.png")}
    assert pictures == {f"{name}.png" for name in photos}
    evaluated, predicted = rows_of(folder / "rows.csv"), rows_of(folder / "predictions.csv")
    assert [{key: row[key] for key in predicted[0]} for row in evaluated] == predicted


def test_a_reader_sees_whether_to_believe_the_network(typed: tuple[Path, dict[str, str]]) -> None:
    _, said = typed
    blocks = [block for kind, block in guides.BLOCK.findall(PAGE.read_text()) if kind == "text"]
    scores, answers = (block for block in blocks if "calibration: " in block or "Answers where" in block)
    for block, text in ((scores, said["lockstep eval latest"]), (answers, said[PREDICT])):
        shown = [without_numbers(line) for line in text.splitlines()]
        assert [line for line in map(without_numbers, block.splitlines()) if line not in shown] == []
    wrong, count = map(int, re.findall(r"answered, (\d+) of (\d+) wrong: the independent check", said[PREDICT])[0])
    assert wrong <= 0.05 * count
    assert 300 < count <= 359


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.]+", "0", re.sub(" +", " ", line))
