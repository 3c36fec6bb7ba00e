"""`lockstep eval` of other images than those of the run.

Classes are matched by name; the tests check what it writes and refuses.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support.commands import latest, lockstep, output_of, rows_of
from tests.support.harness import SMALL, train_all, write_run
from tests.support.image_files import write_image

pytestmark = pytest.mark.processes
PLAIN = [text for text in SMALL if not text.startswith("data")]
FOLDER = [
    *PLAIN,
    "data=image_folder",
    "data.image_size=16",
    "data.cache=null",
    "trainer.max_epochs=1",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder]:
    """A run of three classes, and `other`: some images of two of them.

    Their classes have other positions in `other`.
    """
    folder = tmp_path_factory.mktemp("project")
    for number in range(36):
        write_image(
            folder / "images" / ("ant", "bee", "cat")[number % 3] / f"{number}.png", seed=number
        )
    for number in range(12):
        write_image(
            folder / "other" / ("bee", "cat")[number % 2] / f"{100 + number}.png", seed=100 + number
        )
    write_image(folder / "other" / "bee" / "0.png")  # the name of none of the run
    trained = write_run(folder / "run", [*FOLDER, f"data.root={folder / 'images'}"])
    train_all([trained], 1)
    return folder, trained


def test_other_images_by_class_name(project: tuple[Path, RunFolder], tmp_path: Path) -> None:
    folder, trained = project
    evaluate = ["eval", str(trained.path), f"data.root={folder / 'other'}", "--output", "rows.csv"]
    result = json.loads(output_of(tmp_path, *evaluate, "--top-k", "3", "--json"))
    rows = rows_of(tmp_path / "rows.csv")
    lockstep(tmp_path, "predict", str(trained.path), str(folder / "other"), "--output", "plain.csv")
    plain = rows_of(tmp_path / "plain.csv")
    assert [(row["file"], row["class"], row["probability"]) for row in rows] == [
        tuple(row.values()) for row in plain
    ]
    assert [row["truth"] for row in rows] == [row["file"].partition("/")[0] for row in rows]
    assert (result["images"], result["split"], len(rows)) == (13, "all", 13)
    assert result["notes"]["missing classes"] == "ant"
    assert result["metrics"]["accuracy"] == pytest.approx(
        sum(row["truth"] == row["class"] for row in rows) / 13
    )
    pairs = Counter((row["truth"], row["class"]) for row in rows)
    matrix = result["confusion_matrix"]
    assert {
        (true, name): count for true, counts in matrix.items() for name, count in counts.items()
    } == pairs


@pytest.mark.full
def test_splits_of_other_images(project: tuple[Path, RunFolder], tmp_path: Path) -> None:
    _, trained = project
    evaluate = ["eval", str(trained.path)]
    for number, split in enumerate(("train", "train", "test")):
        write_image(tmp_path / "own" / split / "bee" / f"new-{number}.png", seed=number)
    for words, title in (
        ([], "on 1 image of own\n"),
        (["--split", "test"], "on 1 image of own\n"),
        (["--split", "all"], "on 3 images of own\n"),
    ):
        assert title in lockstep(tmp_path, *evaluate, "data.root=own", *words).stdout


@pytest.mark.full
def test_evaluation_refused(project: tuple[Path, RunFolder], tmp_path: Path) -> None:
    folder, trained = project
    write_image(tmp_path / "odd" / "dog" / "0.png")
    write_image(tmp_path / "odd" / "bee" / "0.png")
    write_image(tmp_path / "near" / "Bee" / "0.png")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    other = f"data.root={folder / 'other'}"
    for words, expected in (
        (["data.root=odd"], "does not have: dog"),
        (["data.root=near"], "'Bee' = 'bee'"),
        (["data.root=[a"], "data.root=[a does not exist"),
        (["data.root=none"], "data.root=none does not exist"),
        ([other, "data.image_size=8"], "data.image_size=8 cannot change"),
        (["--split", "all"], "--split all"),
        (["--pictures", "full"], "--pictures full"),
        (["--top-k", "2"], "--top-k 2"),
        (["--output", "rows.csv", "--top-k", "4"], "--top-k 4"),
    ):
        done = lockstep(tmp_path, "eval", str(trained.path), *words)
        assert (done.returncode, expected in done.stderr) == (EXIT_CONFIG, True), words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "near", "odd"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "task", "columns", "metrics", "mode"),
    [
        (
            *("labels", "multilabel", ["true_even", "true_above 4", "even", "above 4"]),
            ["average_precision", "f1"],
            "max",
        ),
        ("number", "regression", ["true_ink", "ink"], ["mae", "rmse"], "min"),
    ],
)
def test_rows_of_other_tasks(
    tmp_path: Path, kind: str, task: str, columns: list[str], metrics: list[str], mode: str
) -> None:
    source = [
        "data=digits",
        *(f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed")),
    ]
    source = [
        *source,
        "data._target_=tests.support.sources.labeled",
        f"task={task}",
        f"+data.kind={kind}",
    ]
    trained = write_run(
        tmp_path / "run",
        [
            *PLAIN,
            *source,
            "trainer.max_epochs=1",
            "trainer.devices=2",
            "trainer.worker_weights=[2,1]",
            "global_batch_size=64",
        ],
    )
    train_all([trained], 2)
    summary, status, names = trained.read_summary(), trained.read_status(), [*metrics, "loss"]
    assert {f"test_{name}" for name in names} <= summary.keys()
    assert {f"val/{name}" for name in names} <= status["metrics"].keys()
    assert (summary["monitor"], status["mode"]) == (f"val/{metrics[0]}", mode)
    evaluate = ["eval", str(trained.path), "--trust"]
    output_of(tmp_path, *evaluate, "--output", "rows.csv", "--devices", "2")
    rows = rows_of(tmp_path / "rows.csv")
    assert list(rows[0]) == ["file", *columns, "loss"]
    loss = sum(float(row["loss"]) for row in rows) / len(rows)
    assert loss == pytest.approx(trained.read_summary()["test_loss"], rel=1e-5)


@pytest.mark.full
def test_counts_of_limited_batches(tmp_path: Path) -> None:
    """3 batches of 16 of 70 images, 1 of 10 of 23, 2 of 10 of 31."""
    counts = (("train", 3), ("val", 1), ("test", 2))
    limits = [f"trainer.limit_{name}_batches={count}" for name, count in counts]
    done = lockstep(tmp_path, "train", *SMALL, "trainer.devices=2", *limits)
    assert "48 of 70 train, 10 of 23 val, 20 of 31 test images" in done.stdout, done.stderr
    summary = latest(tmp_path).read_summary()
    assert [summary[f"{name}_images"] for name in ("train", "val", "test")] == [48, 10, 20]
    assert " on 20 test images" in lockstep(tmp_path, "eval", "latest").stdout
