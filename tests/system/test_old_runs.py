"""A run of an earlier version, whose facts are in separate files, is read and resumed."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from lockstep.config.sections import Augment
from lockstep.runs.folder import RunFolder
from tests.support import commands
from tests.support.harness import SMALL, train_all, write_run
from tests.support.image_files import write_folder
from tests.support.recipes import FOLDER

pytestmark = [pytest.mark.full, pytest.mark.processes]


AUGMENTATIONS = {*Augment.model_fields} - {"crop_padding", "flip", "cutout"}  # of later versions


def without(run: RunFolder, keys: Iterable[str]) -> None:
    """Remove keys of `data` and `augment` from the configuration of a run, which came later, and add two that went."""
    tree = yaml.safe_load(run.config.read_text())
    tree["notify"]["url"], tree["trainer"]["cudnn_search"] = "http://127.0.0.1:9/x", False
    for section in (tree["data"], tree["augment"]):
        for key in section.keys() & {*keys}:
            del section[key]
    run.config.write_text(yaml.safe_dump(tree))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run as Lockstep wrote it until 2026-11-25."""
    folder = write_run(tmp_path_factory.mktemp("project") / "outputs" / "old", SMALL)
    train_all([folder], 1)
    without(folder, AUGMENTATIONS)
    environment = {"packages": {"lockstep": "0.0.1"}, "host": "node7", "commit": "1234567"}
    folder.facts_file.unlink()
    (folder.path / "overrides.txt").write_text("model.width=4\noptimizer.lr=0.1\n")
    (folder.path / "project.json").write_text('{"modules": ["/gone"], "started_in": []}')
    (folder.path / "environment.json").write_text(json.dumps(environment))
    (folder.path / "wandb_id.txt").write_text("0a1b2c3d\n")
    return folder


def typed(folder: RunFolder, *words: str) -> "subprocess.CompletedProcess[str]":
    done = commands.run([sys.executable, "-m", "lockstep", *words], folder.path.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_facts_of_an_old_run_are_read(old: RunFolder) -> None:
    assert old.read_overrides() == ["model.width=4", "optimizer.lr=0.1"]
    assert old.read_project()["modules"] == ["/gone"]
    assert (old.read_version(), old.read_environment()["commit"]) == ("0.0.1", "1234567")


def test_an_old_run_is_shown_and_evaluated(old: RunFolder) -> None:
    for command in ("status outputs/old", "runs", "compare outputs/old outputs/old"):
        assert "finished" in typed(old, *command.split()).stdout
    typed(old, "eval", "outputs/old")


def test_an_old_run_is_resumed_and_keeps_its_overrides(old: RunFolder) -> None:
    done = typed(old, "train", "resume=outputs/old", "trainer.max_epochs=3", "--trust")
    assert "keeps its settings of Lockstep 0.0.1" in done.stdout
    assert [row["epoch"] for row in old.read_metrics()] == ["1", "2", "3"]
    assert old.read_overrides() == ["model.width=4", "optimizer.lr=0.1"]
    assert old.read_version() != "0.0.1"
    assert old.wandb_id() == "0a1b2c3d"


def test_an_old_run_of_photographs_keeps_their_view(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", count=35)
    run = write_run(tmp_path / "outputs" / "old", [*FOLDER, "data.cache=null", f"data.root={photos}"])
    train_all([run], 1)
    without(run, ("crop_percent", "fit", "interpolation", *AUGMENTATIONS))
    typed(run, "eval", "outputs/old")
    typed(run, "predict", "outputs/old", "photos", "--output", "predictions.csv")
    done = typed(run, "train", "resume=outputs/old", "trainer.max_epochs=3")
    assert "photographs at 16x16: short side 16, centre crop, bilinear\n" in done.stdout
