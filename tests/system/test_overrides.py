"""Every kind of override, by the command line: the configuration that is trained has its value."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.system.trees import at
from tests.support import commands
from tests.support.harness import environ

pytestmark = [pytest.mark.full, pytest.mark.processes]
QUICK = ("strategy=cpu", "trainer.max_epochs=1", "trainer.limit_train_batches=1", "trainer.limit_val_batches=1")
LITTLE = ("trainer.limit_test_batches=1", "callbacks.pictures=null", "logger=none")
FILES = {
    "conf/config.yaml": "defaults:\n  - lockstep\n  - _self_\nname: of-the-project\n",
    "conf/other.yaml": "defaults:\n  - lockstep\n  - _self_\nname: of-another-file\n",
    "conf/model/tiny.yaml": "defaults:\n  - resnet18\nwidth: 2\n",
    "conf/model/tinier.yaml": "defaults:\n  - resnet18\nwidth: 1\n",
    "conf/experiment/small.yaml": "# @package _global_\ndefaults:\n  - override /model: tiny\nglobal_batch_size: 16\n",
    "more/data/few.yaml": "_target_: lockstep.data.synthetic\nnum_classes: 2\nchannels: 1\nimage_size: 8\n"
    "train_size: 8\nval_size: 8\ntest_size: 8\nseed: 0\nmemory: auto\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def train(project: Path, *words: str) -> None:
    line = [sys.executable, "-m", "lockstep", "train", *words, *QUICK, *LITTLE]
    done = commands.run(line, project, {**environ(), "MY_NAME": "a+b"})
    assert done.returncode == 0, done.stderr


def config_of(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_values_of_every_kind_reach_the_configuration_of_the_run(project: Path) -> None:
    typed = (
        *("experiment=small", "model.stem=imagenet", "hydra.run.dir=here", "~callbacks.timer", "trainer.loads=[1]"),
        *("+callbacks.last.verbose=true", "++optimizer.lr=0.2", "trainer.max_time_s=null", "seed=7"),
        *("eval_batch_size=${global_batch_size}", "augment={flip:true}", "name=${oc.env:MY_NAME}"),
    )
    train(project, *typed)
    config = config_of(project / "here")
    expected = {
        **{"seed": 7, "eval_batch_size": 16, "name": "a+b"},  # values, not interpolations
        **{"model.width": 2, "model.stem": "imagenet", "augment.flip": True, "augment.cutout": 0},
        **{"trainer.limit_train_batches": 1, "trainer.loads": [1], "trainer.max_time_s": None},
        **{"optimizer.lr": 0.2, "callbacks.last.verbose": True},
    }
    assert {key: at(config, key.split(".")) for key in expected} == expected
    assert "timer" not in config["callbacks"]


def test_a_project_its_other_files_and_a_folder_next_to_it_are_found(project: Path) -> None:
    train(project, "model=tinier", "hydra.run.dir=first")
    first = config_of(project / "first")
    assert (first["name"], first["model"]["width"]) == ("of-the-project", 1)
    train(project, "--config-name", "other", "--config-dir", "more", "model=tiny", "data=few", "hydra.run.dir=second")
    second = config_of(project / "second")
    assert (second["name"], second["data"]["_target_"]) == ("of-another-file", "lockstep.data.synthetic")


def test_a_multirun_takes_choices_ranges_globs_and_lists(project: Path) -> None:
    swept = ["model=glob(tin*)", "seed=range(3,5)", "trainer.loads=[1],[2]"]
    train(project, "--config-dir", "more", "-m", *swept, "data=few")
    (sweep,) = (path.parent for path in project.glob("outputs/*/*/sweep.json"))
    trials = [config_of(path.parent) for path in sweep.glob("*/config.yaml")]
    found = {(trial["model"]["width"], trial["seed"], *trial["trainer"]["loads"]) for trial in trials}
    assert found == {(width, seed, load) for width in (1, 2) for seed in (3, 4) for load in (1, 2)}
    assert len(trials) == len(json.loads((sweep / "table.json").read_text())["trials"]) == 8
