"""Data has changed since a run was trained: a use of the run is refused, or accepted on request."""

import shutil
from pathlib import Path

import pytest

from lockstep.assembly import data_record, run_parts
from lockstep.config.overrides import check
from lockstep.config.saved import config_file
from lockstep.inference import tasks
from lockstep.inference.options import EvalOptions, TrainedRun
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support import commands
from tests.support.copies import contents
from tests.support.exact import train
from tests.support.harness import ROOT, write_run
from tests.support.image_files import write_image, write_list

pytestmark = pytest.mark.full

RECIPE = (
    "model.width=2",
    "trainer.max_epochs=1",
    "strategy=cpu",
    "trainer.devices=1",
    "logger=none",
    "silent=true",
)
FOLDER = ("data=image_folder", "data.image_size=16", "data.cache=null", "data.num_workers=1")


def write_classes(root: Path) -> None:
    for i in range(12):
        for label in ("cat", "dog"):
            write_image(root / label / f"{i}.png", seed=i)


def evaluated(folder: RunFolder, tmp_path: Path, *overrides: str) -> int:
    """The exit code of an evaluation, as `lockstep eval` asks for it."""
    (config,) = check(overrides, saved_config=config_file.load(folder.config)).configs
    trained = TrainedRun(folder, folder.last_checkpoint, config)
    request = {"trained": trained, "options": EvalOptions("test")}
    shutil.rmtree(tmp_path / "eval", ignore_errors=True)
    (tmp_path / "eval").mkdir()
    return worker.run_here(worker.Job(tasks.evaluate, RunFolder(tmp_path / "eval"), request), None)


def trained(tmp_path: Path, *recipe: str) -> RunFolder:
    folder = write_run(tmp_path / "run", [*RECIPE, *recipe])
    assert train(folder) == 0
    return folder


def test_changed_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Evaluation, resume and test of a sweep's best trial compare alike.

    What changed is named in test_data_record.py.
    """
    root = tmp_path / "images"
    write_classes(root)
    folder = trained(tmp_path, *FOLDER, f"data.root={root}")
    assert evaluated(folder, tmp_path) == 0
    write_image(root / "cat" / "3.png", seed=99)
    test = worker.Job(worker.test, folder, {})
    for use in (
        lambda: evaluated(folder, tmp_path),
        lambda: train(folder),
        lambda: worker.run_here(test, None),
    ):
        assert use() == EXIT_CONFIG
        folder.failure.unlink(missing_ok=True)
        assert "1 image with other contents, such as cat/3.png" in capfd.readouterr().err
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    (root / "emu").mkdir()
    write_image(root / "emu" / "0.png")
    assert evaluated(folder, tmp_path, "changed_data=accept") == EXIT_CONFIG
    assert "different number of outputs" in capfd.readouterr().err
    folder.images.unlink()
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert "not recorded" in capfd.readouterr().err


def test_moved_data(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_classes(project / "images")
    assert commands.lockstep(project, "train", *RECIPE, *FOLDER, "data.root=images").returncode == 0
    run = project / "outputs" / "latest"
    assert commands.lockstep(elsewhere, "eval", run).returncode == 0  # found from the project
    (project / "images").rename(tmp_path / "moved")
    done = commands.lockstep(elsewhere, "eval", run)
    assert (done.returncode, "data.root=images does not exist" in done.stderr) == (
        EXIT_CONFIG,
        True,
    )
    assert (
        commands.lockstep(elsewhere, "eval", run, "--devices", "1", "data.root=../moved").returncode
        == 0
    )
    overrides = [
        f"resume={run}",
        "trainer.max_epochs=2",
        "data.root=../moved",
        "data.memory=stream",
    ]
    done = commands.lockstep(elsewhere, "train", *overrides)
    assert done.returncode == 0, done.stderr
    assert RunFolder(run).read_summary()["epochs"] == 2


def resume(folder: RunFolder, *overrides: str) -> None:
    """Train a run for another epoch on its data as it is now."""
    words = [
        "train",
        f"resume={folder.path}",
        "trainer.max_epochs=2",
        "changed_data=accept",
        *overrides,
    ]
    done = commands.lockstep(ROOT, *words)
    assert done.returncode == 0, done.stderr


def splits_in(folder: RunFolder) -> dict[str, str]:
    """The splits of all images, by name, in the record of a run."""
    return data_record.recorded_splits(folder) or {}


def test_splits_growing_source(tmp_path: Path) -> None:
    """Known samples keep their splits, and new ones are for training."""
    (listed := tmp_path / "count.txt").write_text("32")
    without = [f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed")]
    source = [
        "data=digits",
        *without,
        "data._target_=tests.support.sources.growing",
        f"+data.listed={listed}",
    ]
    folder = trained(tmp_path, *source)
    assert folder.read_summary()["groups"] == {"train": 16, "val": 8, "test": 8}
    before = splits_in(folder)
    listed.write_text("64")  # a cut of them would test on 8 of those trained on
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    resume(folder, "--trust")  # tests are not the project
    after = splits_in(folder)
    assert before.items() <= after.items()
    assert {after[name] for name in after.keys() - before.keys()} == {"train"}
    assert evaluated(folder, tmp_path) == 0  # the record is that of all images


@pytest.mark.parametrize("fold", [[], ["data.folds=4", "data.fold=2"]])
def test_splits_growing_folder(tmp_path: Path, fold: list[str]) -> None:
    """An image that was trained on is never tested."""
    root = tmp_path / "images"
    write_classes(root)
    folder = trained(tmp_path, *FOLDER, f"data.root={root}", "data.group='(\\w+)\\.png'", *fold)
    before = splits_in(folder)
    for number in range(40):
        for label in ("cat", "dog"):
            write_image(root / label / f"new{number}.png", seed=100 + number)
    cut_again = run_parts.source(config_file.load(folder.config).data)
    assert any(before.get(name) == "train" for name in cut_again.test.names)
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    words = [
        "eval",
        folder.path,
        f"data.root={root}",
        "--split",
        "test",
        "--output",
        tmp_path / "rows.csv",
    ]
    # of new images
    assert commands.lockstep(ROOT, *words, "data.test_fraction=0.5").returncode == 0
    tested = [row["file"] for row in commands.rows_of(tmp_path / "rows.csv")]
    assert {before.get(name) for name in tested} == {"test", None}
    resume(folder, "trainer.devices=2")
    assert evaluated(folder, tmp_path, "trainer.devices=1") == 0
    after = splits_in(folder)
    assert before.items() <= after.items()
    assert len(after) == 104
    assert {"train", "val", "test"} == {after[name] for name in after.keys() - before.keys()}


def test_changed_groups_accepted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"path": f"{row}.png", "label": "ab"[row % 2], "patient": f"p{row // 2}"}
        for row in range(24)
    ]
    for number in range(24):
        write_image(tmp_path / f"{number}.png", seed=number)
    file = write_list(tmp_path / "list.csv", rows)
    folder = trained(
        tmp_path, "data=list", *FOLDER[1:], f"data.file={file}", "data.group_column=patient"
    )
    splits = splits_in(folder)
    trained_on = next(row["patient"] for row in rows if splits[row["path"]] == "train")
    for row in rows:
        if splits[row["path"]] == "test":
            row["patient"] = trained_on
    write_list(file, rows)
    assert evaluated(folder, tmp_path, "changed_data=accept") == EXIT_CONFIG
    assert "data.shared_groups=accept" in capfd.readouterr().err
    assert evaluated(folder, tmp_path, "changed_data=accept", "data.shared_groups=accept") == 0


def test_refused_resume_run_unchanged(tmp_path: Path) -> None:
    write_classes(tmp_path / "images")
    where = ["strategy=cpu", "trainer.devices=2"]
    assert (
        commands.lockstep(
            tmp_path, "train", *RECIPE, *FOLDER, "data.root=images", *where
        ).returncode
        == 0
    )
    run = commands.latest(tmp_path).path
    before = contents(run)
    write_image(tmp_path / "images" / "cat" / "new.png", seed=99)
    done = commands.lockstep(
        tmp_path, "train", "resume=outputs/latest", "trainer.max_epochs=2", *where
    )
    assert done.returncode == EXIT_CONFIG
    assert "1 image added, such as cat/new.png" in done.stderr
    after = contents(run)
    for name in (
        "status.json",
        "summary.json",
        "config.yaml",
        "images.json.gz",
        "checkpoints/last.ckpt",
    ):
        assert after[name] == before[name], name
