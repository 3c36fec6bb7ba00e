"""An experiment overrides choices and values of config.yaml; the command line overrides both."""

import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from omegaconf import OmegaConf

from lockstep.config import overrides
from lockstep.config.composing import hydra_job
from lockstep.config.composing.compose import (
    CONF,
    DEFAULT,
    REFUSALS,
    Source,
    compose_config,
    groups,
)
from lockstep.config.errors import ConfigError
from lockstep.starter.project import FILES
from lockstep.system.trees import at, leaves
from tests.support.composed import composed_once

OURS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
OWN = """\
# @package _global_
defaults:
  - override /data: synthetic
  - override /model: resnet18
name: own
trainer:
  max_epochs: 3
"""
MORE = """\
defaults:
  - lockstep
  - _self_
  - override data: images
  - override model: net
  - override optimizer: adamw
hydra:
  searchpath: [pkg://lockstep.config]
name: more
global_batch_size: 32
optimizer:
  lr: 0.3
trainer:
  max_epochs: 20
"""
WITHOUT_OURS = "defaults:\n  - base\n  - experiment: null\n  - _self_\ntrainer:\n  max_epochs: 20\n"
BASE = "defaults:\n  - lockstep\n  - override data: images\n  - override model: net\n  - _self_\n"


PROJECTS = {"fresh": (FILES / "conf/config.yaml").read_text(), "more": MORE, "nested": WITHOUT_OURS}


@pytest.fixture(params=PROJECTS)
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Source:
    """A project as `lockstep new` makes it, and two variants.

    One has more in config.yaml, and one includes Lockstep by a file.
    """
    conf = Path(shutil.copytree(FILES / "conf", tmp_path / "conf"))
    (conf / "config.yaml").write_text(PROJECTS[request.param])
    (conf / "base.yaml").write_text(BASE)
    (conf / "experiment" / "own.yaml").write_text(OWN)
    return Source(conf)


def tree(source: Source, *typed: str) -> dict[str, Any]:
    return cast(Any, OmegaConf.to_container(composed_once(typed, source)))


@pytest.mark.parametrize(
    ("source", "experiment"),
    [*(("more", name) for name in OURS), *((project, "own") for project in PROJECTS)],
    indirect=["source"],
)
def test_experiment_over_project(source: Source, experiment: str) -> None:
    typed = [f"experiment={experiment}", *["data.root=X"] * (experiment in ("finetune", "probe"))]
    conf = source.conf if experiment == "own" else CONF
    stated = yaml.safe_load((conf / "experiment" / f"{experiment}.yaml").read_text())
    (job,) = overrides.plan(typed, source).jobs
    made: Any = OmegaConf.to_container(job.cfg)
    for entry in stated.pop("defaults"):
        ((key, option),) = entry.items()
        group = key.removeprefix("override /")
        assert made[group]["_target_"] == tree(DEFAULT, f"{group}={option}")[group]["_target_"]
    values = {key: value for key, value in leaves(stated, "") if not isinstance(value, list)}
    assert values.items() <= {key: at(made, key.split(".")) for key in values}.items()
    assert job.config.name == experiment


def test_command_line_over_experiment(source: Source) -> None:
    made = tree(source, "trainer.max_epochs=5", "experiment=own", "data=digits", "name=typed")
    targets = [made[group]["_target_"] for group in ("data", "model")]
    assert targets == ["lockstep.data.digits", "lockstep.models.ResNet18"]
    assert (made["trainer"]["max_epochs"], made["name"]) == (5, "typed")


def test_sweep_over_experiments(source: Source) -> None:
    configs = overrides.plan(["experiment=own,fashion_mnist"], source, is_multirun=True).configs
    assert [(config.name, config.trainer.max_epochs) for config in configs] == [
        ("own", 3),
        ("fashion_mnist", 10),
    ]


def test_sweep_job_order() -> None:
    typed = [
        "seed=0,1",
        "optimizer.lr=0.1,0.2",
        "data=synthetic",
        "name=n${hydra:job.num}",
        "seed=3,4",
    ]
    folders = ["hydra.sweep.dir=of", "hydra.sweep.subdir=${hydra:job.num}_${seed}"]
    jobs = overrides.plan([*typed, *folders], is_multirun=True).jobs
    assert [
        (job.config.seed, job.config.optimizer.lr, job.config.name, job.root, job.subdir)
        for job in jobs
    ] == [
        (3, 0.1, "n0", "of", "0_3"),
        (3, 0.2, "n1", "of", "1_3"),
        (4, 0.1, "n2", "of", "2_4"),
        (4, 0.2, "n3", "of", "3_4"),
    ]


def test_run_folder(source: Source, tmp_path: Path) -> None:
    typed = [
        "experiment=own",
        f"hydra.run.dir={tmp_path}/${{name}}",
        "hydra.searchpath=[pkg://lockstep.data]",
    ]
    (job,) = overrides.plan(typed, source).jobs
    assert job.folder == tmp_path / "own"
    assert job.cfg is not None
    assert job.cfg.hydra.searchpath[-1] == "pkg://lockstep.data"
    assert (job.cfg.hydra.runtime.output_dir, job.cfg.hydra.job.config_name) == (
        str(job.folder),
        "config",
    )


def raw(cfg: Any, key: str = "") -> Any:
    """Return a part of a configuration without resolving interpolations."""
    tree = OmegaConf.to_container(cfg, resolve=False)
    return at(tree, key.split(".")) if key else tree


@pytest.mark.parametrize(
    "typed",
    [
        ("optimizer.lr=0.3", "seed=4", "name='a=b'"),
        ("optimizer.lr=0.3", "++optimizer.lr=0.1", "+model.extra=1", "model.extra=2"),
        ("~model.width", "+model.width=3"),
        ("model={width: 3}", "model.width=4"),
        ("model.width=4", "model={width: 3}", "data=digits"),
        ("+callbacks.x.y={a: [1, 2]}", "callbacks.x.y.a=[3]", "~callbacks.x.y.b=null"),
        ("~callbacks", "+callbacks=early_stopping", "callbacks.early_stopping.patience=7"),
        ("trainer.devices=[0,1]", "+trainer.devices=[3]", "~optimizer", "name=n${seed}"),
        (
            "hydra.job.config.override_dirname.exclude_keys=[seed]",
            "seed=2",
            "optimizer.lr=1",
            "model.width=2",
        ),
        ("debug=fast", "experiment=fashion_mnist", "trainer.max_epochs=1"),
        ("name=${oc.env:LOCKSTEP_NOT_SET}", "name=n", "seed=${hydra:job.num}", "seed=2"),
        ("+model.width=3",),
        ("~model.width=3",),
        ("~model.nothing",),
        ("model.width.nothing=3",),
        ("data@elsewhere=digits",),
        ("nothing@elsewhere=digits",),
    ],
)
def test_jobs_as_hydra(typed: tuple[str, ...]) -> None:
    try:
        expected = compose_config(typed, with_hydra=True)
    except REFUSALS:
        with pytest.raises(ConfigError):
            overrides.plan(typed)
        return
    command = overrides.Command(DEFAULT, groups(CONF), False, None, {})
    cfg, errors = overrides._compose(typed, command)
    hydra_job.begin(cfg, typed, 0, is_multirun=False)
    assert not errors
    for key in ("overrides.task", "job.override_dirname"):
        assert raw(cfg.hydra, key) == raw(expected.hydra, key)
    hydra_job.begin(expected, typed, 0, is_multirun=False)
    assert raw(cfg) == raw(expected)
