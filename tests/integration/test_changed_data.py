"""Data that changed since a run was trained: every use of the run is refused, or accepted on request."""

import csv
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lockstep.assembly import data_changes, run_parts
from lockstep.assembly.try_out import refuse_unfit_images
from lockstep.config import overrides
from lockstep.config.checks import validation
from lockstep.config.composing.compose import compose_config
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.data import cuts
from lockstep.data.sources.builtin import synthetic
from lockstep.launch import worker
from lockstep.runs.folder import EXIT_CONFIG, RunFolder
from tests.support import commands
from tests.support.exact import train
from tests.support.harness import ROOT, write_run
from tests.support.image_files import write_image, write_list

pytestmark = pytest.mark.full

RECIPE = ("model.width=2", "trainer.max_epochs=1", "strategy=cpu", "trainer.devices=1", "logger=none", "silent=true")
FOLDER = ("data=image_folder", "data.image_size=16", "data.cache=null", "data.num_workers=1")


def write_classes(root: Path) -> None:
    for i in range(12):
        for label in ("cat", "dog"):
            write_image(root / label / f"{i}.png", seed=i)


def evaluated(folder: RunFolder, tmp_path: Path, *typed: str) -> int:
    """The exit code of an evaluation, as `lockstep eval` asks for it."""
    saved = config_file.load(folder.config)
    (config,) = overrides.check(typed, saved=saved).configs
    options = {"config": config_file.to_tree(config), "run": str(folder.path), "split": "test"}
    job = worker.Job(
        "lockstep.inference.evaluate:evaluate",
        str(tmp_path / "eval"),
        {**options, "checkpoint": str(folder.last_checkpoint)},
    )
    shutil.rmtree(tmp_path / "eval", ignore_errors=True)
    (tmp_path / "eval").mkdir()
    return worker.run_here(job, None)


def trained(tmp_path: Path, *recipe: str) -> RunFolder:
    folder = write_run(tmp_path / "run", [*RECIPE, *recipe])
    assert train(folder) == 0
    return folder


def assert_refused(folder: RunFolder, tmp_path: Path, capfd: pytest.CaptureFixture[str], *expected: str) -> None:
    def assert_names_the_changes() -> None:
        folder.failure.unlink(missing_ok=True)
        said = capfd.readouterr().err
        assert all(text in said for text in expected), said

    capfd.readouterr()
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert_names_the_changes()
    assert train(folder) == EXIT_CONFIG  # a resume
    assert_names_the_changes()
    assert (
        worker.run_here(worker.Job(worker.TEST, str(folder.path), {}), None) == EXIT_CONFIG
    )  # of a sweep's best trial
    assert_names_the_changes()
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    assert_names_the_changes()


def test_a_folder_with_other_pictures_or_classes_or_more_and_a_run_without_a_record_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "images"
    write_classes(root)
    folder = trained(tmp_path, *FOLDER, f"data.root={root}")
    assert evaluated(folder, tmp_path) == 0
    write_image(root / "cat" / "3.png", seed=99)
    assert_refused(folder, tmp_path, capfd, "1 image with other contents, such as cat/3.png")
    write_image(root / "cat" / "3.png", seed=3)
    write_image(root / "cat" / "new.png", seed=99)
    assert_refused(folder, tmp_path, capfd, "1 image added, such as cat/new.png")
    (root / "cat" / "new.png").unlink()
    (root / "cat").rename(root / "zcat")
    assert_refused(folder, tmp_path, capfd, "cat is now dog, dog is now zcat", "12 images added, such as zcat/")
    (root / "emu").mkdir()
    write_image(root / "emu" / "0.png")
    assert evaluated(folder, tmp_path, "changed_data=accept") == EXIT_CONFIG
    assert "Its network has a different number of outputs" in capfd.readouterr().err
    folder.images.unlink()
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert "its images were not recorded" in capfd.readouterr().err


def test_classes_that_only_look_different_are_named_at_the_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "images")
    for number in range(12):
        write_image(tmp_path / "images" / "Cat" / f"{number}.png", seed=100 + number)
    trained(tmp_path, *FOLDER, f"data.root={tmp_path / 'images'}", "silent=false")
    assert "similar  " in (said := capfd.readouterr().out)
    assert "classes 'Cat' = 'cat': are they one class?\n" in said


def test_data_that_moved_is_found_by_its_new_place_or_from_the_project(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_classes(project / "images")

    def lockstep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return commands.run([sys.executable, "-m", "lockstep", *words], folder)

    assert lockstep(project, "train", *RECIPE, *FOLDER, "data.root=images").returncode == 0
    run = str(project / "outputs" / "latest")
    assert lockstep(elsewhere, "eval", run).returncode == 0
    (project / "images").rename(tmp_path / "moved")
    done = lockstep(elsewhere, "eval", run)
    assert (done.returncode, "data.root=images does not exist" in done.stderr) == (EXIT_CONFIG, True)
    assert lockstep(elsewhere, "eval", run, "--devices", "1", "data.root=../moved").returncode == 0
    done = lockstep(elsewhere, "eval", run, "seed=3")
    assert done.returncode == EXIT_CONFIG
    assert "seed=3 cannot change on resume, this run has 0" in done.stderr
    words = [f"resume={run}", "trainer.max_epochs=2", "data.root=../moved", "data.memory=stream"]
    done = lockstep(elsewhere, "train", *words)
    assert done.returncode == 0, done.stderr
    assert RunFolder(Path(run)).read_summary()["epochs"] == 2


def resume(folder: RunFolder, *typed: str) -> None:
    """Train a run for another epoch on its data as it is now."""
    words = ["train", f"resume={folder.path}", "trainer.max_epochs=2", "changed_data=accept", *typed]
    done = commands.run([sys.executable, "-m", "lockstep", *words], ROOT)
    assert done.returncode == 0, done.stderr


def splits_in(folder: RunFolder) -> dict[str, str]:
    """The splits of all images, by name, in the record of a run."""
    return data_changes.known_splits(folder) or {}


def test_known_images_stay_in_their_splits_when_a_source_of_their_own_grows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (listed := tmp_path / "count.txt").write_text("32")
    without = [f"~data.{key}" for key in ("val_fraction", "test_fraction", "split_seed")]
    source = ["data=digits", *without, "data._target_=tests.support.sources.growing", f"+data.listed={listed}"]
    folder = trained(tmp_path, *source, "silent=false")
    said = " ".join(capfd.readouterr().out.split())
    assert " groups train 16 (images: 16), val 8 (images: 8), test 8 (images: 8) " in said
    assert folder.read_summary()["groups"] == {"train": 16, "val": 8, "test": 8}
    before = splits_in(folder)
    listed.write_text("64")  # a cut of them would test on 8 of those trained on
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    refused = capfd.readouterr().err
    assert "32 images added" in refused
    assert "moved" not in refused
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    assert " on 8 test images" in (said := capfd.readouterr().out)
    assert re.search(r"\n95 % interval of the accuracy: 0\.\d{4} to [01]\.\d{4}, resampling 8 groups\n", said), said
    resume(folder, "--trust")  # tests are not the project
    after = splits_in(folder)
    assert {name: after[name] for name in before} == before
    assert Counter(after[name] for name in after.keys() - before.keys()) == {"train": 32}
    assert evaluated(folder, tmp_path) == 0  # the record is that of all images


@pytest.mark.parametrize("fold", [[], ["data.folds=4", "data.fold=2"]])
def test_no_image_of_a_folder_that_was_trained_on_is_ever_tested(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fold: list[str]
) -> None:
    root = tmp_path / "images"
    write_classes(root)
    folder = trained(tmp_path, *FOLDER, f"data.root={root}", "data.group='(\\w+)\\.png'", "silent=false", *fold)
    before = splits_in(folder)
    for number in range(40):
        for label in ("cat", "dog"):
            write_image(root / label / f"new{number}.png", seed=100 + number)
    cut_again = run_parts.source(config_file.load(folder.config).data)
    assert any(before.get(name) == "train" for name in cut_again.test.names)
    assert evaluated(folder, tmp_path) == EXIT_CONFIG
    assert evaluated(folder, tmp_path, "changed_data=accept") == 0
    words = ["eval", str(folder.path), f"data.root={root}", "--split", "test", "--output", str(tmp_path / "rows.csv")]
    words.append("data.test_fraction=0.5")  # of new images
    done = commands.run([sys.executable, "-m", "lockstep", *words], ROOT)
    assert (done.returncode, "same name" in done.stdout) == (0, False)
    with (tmp_path / "rows.csv").open() as file:
        tested = [row["file"] for row in csv.DictReader(file)]
    assert {before.get(name) for name in tested} == {"test", None}
    resume(folder, "trainer.devices=2")
    capfd.readouterr()
    assert evaluated(folder, tmp_path, "trainer.devices=1") == 0
    after = splits_in(folder)
    assert {name: after[name] for name in before} == before
    assert len(after) == 104
    assert f" on {list(after.values()).count('test')} test images" in capfd.readouterr().out
    assert {"train", "val", "test"} == {after[name] for name in after.keys() - before.keys()}


def test_groups_that_changed_can_be_accepted_and_other_images_need_no_groups(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"path": f"{row}.png", "label": "ab"[row % 2], "patient": f"p{row // 2}"} for row in range(24)]
    for number in range(24):
        write_image(tmp_path / f"{number}.png", seed=number)
    file = write_list(tmp_path / "list.csv", rows)
    recipe = ("data=list", *FOLDER[1:], f"data.file={file}", "data.group_column=patient")
    folder = trained(tmp_path, *recipe)
    splits = splits_in(folder)
    for row in rows:
        if splits[row["path"]] == "test":
            row["patient"] = next(other["patient"] for other in rows if splits[other["path"]] == "train")
    write_list(file, rows)
    assert evaluated(folder, tmp_path, "changed_data=accept") == EXIT_CONFIG
    assert "or set data.shared_groups=accept" in capfd.readouterr().err
    assert evaluated(folder, tmp_path, "changed_data=accept", "data.shared_groups=accept") == 0
    assert re.search(r"\d images? with another group, such as \d+\.png", capfd.readouterr().err)
    other = write_list(tmp_path / "other.csv", [{"path": "0.png", "label": "a"}, {"path": "1.png", "label": "b"}])
    words = [sys.executable, "-m", "lockstep", "eval", str(folder.path), f"data.file={other}", "--split", "all"]
    assert commands.run(words, ROOT).returncode == EXIT_CONFIG
    done = commands.run([*words, "data.group_column=null", "data.root=null"], ROOT)
    assert done.returncode == 0, done.stderr


def test_a_run_of_a_version_that_cut_otherwise_keeps_its_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "images")
    draws = cuts.name_draws
    with monkeypatch.context() as earlier:
        earlier.setattr(cuts, "name_draws", lambda names, seed: draws(names, seed + 1))
        folder = trained(tmp_path, *FOLDER, f"data.root={tmp_path / 'images'}")
    cut_now = run_parts.source(config_file.load(folder.config).data)
    assert any(splits_in(folder)[name] == "train" for name in cut_now.test.names)
    assert evaluated(folder, tmp_path) == 0


def test_a_run_without_a_checkpoint_is_compared_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_classes(tmp_path / "images")
    folder = trained(tmp_path, *FOLDER, f"data.root={tmp_path / 'images'}")
    shutil.rmtree(folder.checkpoints)  # killed in the first epoch
    assert train(folder) == 0
    shutil.rmtree(folder.checkpoints)
    write_image(tmp_path / "images" / "cat" / "new.png", seed=99)
    assert train(folder) == EXIT_CONFIG
    assert "1 image added, such as cat/new.png. Restore the data, or add changed_data=accept" in capfd.readouterr().err
    folder.failure.unlink()
    folder.images.unlink()  # killed before it was written
    assert train(folder) == 0


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    write_classes(tmp_path / "images")
    words = [sys.executable, "-m", "lockstep", "train"]
    where = ["strategy=cpu", "trainer.devices=2"]
    assert commands.run([*words, *RECIPE, *FOLDER, "data.root=images", *where], tmp_path).returncode == 0
    run = tmp_path / "outputs" / "latest"
    files = [run / name for name in ("status.json", "summary.json", "config.yaml", "images.json.gz", "checkpoints")]
    before = [path.read_bytes() if path.is_file() else path.stat().st_mtime_ns for path in files]
    write_image(tmp_path / "images" / "cat" / "new.png", seed=99)
    done = commands.run([*words, "resume=outputs/latest", "trainer.max_epochs=2", *where], tmp_path)
    assert done.returncode == EXIT_CONFIG
    assert "config error: the data of outputs/" in done.stderr
    assert "1 image added, such as cat/new.png" in done.stderr
    assert "failed" not in done.stderr
    assert [path.read_bytes() if path.is_file() else path.stat().st_mtime_ns for path in files] == before
    assert not (run / "failure.txt").exists()


def test_images_that_train_lacks_a_class_of_are_refused(tmp_path: Path) -> None:
    images = synthetic(num_classes=5, channels=1, image_size=8, train_size=3, val_size=5, test_size=2, seed=0)
    assert images.absent_classes("val") == []
    assert images.absent_classes("test") == ["class 2", "class 3", "class 4"]
    with pytest.raises(ConfigError, match="has no training image of class 3, class 4: add some, or remove the class"):
        refuse_unfit_images(validation.check_config(compose_config(["data=synthetic"])), images)
