"""Objects are built from the values of a saved configuration, which are never resolved again."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.config import build
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.target_sections import Open
from lockstep.runs.files import write_atomically
from lockstep.runs.folder import RunFolder
from lockstep.system.trees import at
from tests.support.composed import config_of


def section(**arguments: Any) -> Open:
    return Open.model_validate({"_target_": "builtins.dict", **arguments})


@pytest.mark.parametrize("text", ["${oc.env:HOME}", "???", r"\\\${x}"])
def test_text_unchanged(text: str, tmp_path: Path) -> None:
    """A target receives a text as it is typed, without interpolation."""
    nested = {"_target_": "builtins.dict", "_args_": [{"b": text}], "a": [text]}
    given = {"a": text, "list": [{"key": text}], text: 1}
    wanted = {**given, "nested": {"b": text, "a": [text]}, "supplied": text}
    assert build.build(section(**given, nested=nested), supplied=text) == wanted
    assert build.build(section(**given, nested=nested, _partial_=True))(supplied=text) == wanted
    config = config_of("data=synthetic")
    cluster = config.cluster.model_copy(update={"constraint": text})
    config_file.save(config.model_copy(update={"cluster": cluster}), tmp_path / "config.yaml")
    assert config_file.load(tmp_path / "config.yaml").cluster.constraint == text


@pytest.mark.parametrize("content", ["seed: &a [1]\ntask: *a\n", None])
def test_load_alias_or_pipe_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config.yaml"
    os.mkfifo(path) if content is None else path.write_text(content)
    with pytest.raises(
        ConfigError, match=r"config\.yaml (cannot be read: .*(alias|not a regular file))"
    ):
        config_file.load(path)


def test_blocked_target_refused() -> None:
    with pytest.raises(Exception, match=r"os\.system"):
        build.build(Open.model_validate({"_target_": "os.system", "command": "true"}))


# -- what a new run settles ------------------------------------------------------------------------

NETWORK, OF_TIMM = (
    ("model=torchvision", "model.name=efficientnet_b0"),
    ("model=timm", "model.pretrained=true"),
)
PRETRAINED = (*NETWORK, "model.pretrained=true")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((), (1.0, "bilinear")),
        (NETWORK, (1.0, "bilinear")),
        ((*NETWORK, "model.pretrained=weights.pth"), (224 / 256, "bicubic")),
        (PRETRAINED, (224 / 256, "bicubic")),
        ((*PRETRAINED, "model.name=regnet_y_400mf"), (224 / 232, "bilinear")),
        ((*PRETRAINED, "model.name=mnasnet0_5", "data.crop_percent=0.5"), (0.5, "bilinear")),
        ((*PRETRAINED, "data.fit=letterbox"), (1.0, "bicubic")),
        ((*PRETRAINED, "data.image_size=null"), (1.0, "bicubic")),
        ((*PRETRAINED, "data.interpolation=bilinear"), (224 / 256, "bilinear")),
        ((*PRETRAINED, "model.name=nothing"), (1.0, "bilinear")),
        ((*OF_TIMM, "model.name=resnet18"), (0.95, "bicubic")),
        ((*OF_TIMM, "model.name=resnet18.tv_in1k"), (0.875, "bilinear")),
        ((*OF_TIMM, "model.name=volo_d4_448.sail_in1k"), (1.0, "bicubic")),
        ((*OF_TIMM, "model.name=resnet18.nothing"), (1.0, "bilinear")),
    ],
)
@pytest.mark.usefixtures("no_gpus")
def test_resolve_pretrained_preprocessing(
    monkeypatch: pytest.MonkeyPatch, texts: tuple[str, ...], expected: tuple[float, str]
) -> None:
    build._library_preprocessing.cache_clear()
    config = config_of("data=image_folder", "data.root=x", *texts)
    settled = build.resolve_config(config)
    arguments = settled.data.arguments()
    assert (arguments["crop_percent"], arguments["interpolation"]) == expected
    # the numbers stay, whatever the library becomes
    monkeypatch.setattr(build.processes, "call", None)
    build._library_preprocessing.cache_clear()
    assert build.resolve_config(settled) == settled


def test_load_other_version(tmp_path: Path) -> None:
    tree = config_file.to_tree(config_of("data=image_folder", "data.root=x"))
    del tree["data"]["fit"], tree["augment"]["rotation"]
    run = RunFolder(tmp_path)
    write_atomically(run.config, yaml.safe_dump(tree))
    run.note(environment={"packages": {"lockstep": "0.0.1"}})
    with pytest.raises(
        ConfigError, match=r"augment\.rotation is missing(.|\n)*by Lockstep 0\.0\.1"
    ):
        config_file.load(run.config)


GONE = object()


@pytest.mark.parametrize(
    ("texts", "earlier"),
    [
        (
            ["compile=true"],
            {
                "trainer.cudnn_search": True,
                "trainer.loads": "auto",
                "trainer.worker_weights": GONE,
                "compile": "reduce-overhead",
                "notify": {"command": "./tell", "timeout_s": 10.0},
                "launcher.mode": "sequential",
                "sweep.max_failed": 3,
            },
        ),
        (["data=image_folder", "data.root=x"], {"data.group": GONE, "data.shared_groups": GONE}),
        (
            ["data=image_folder", "data.root=x", "data.background=gray"],
            {"data.background": "grey"},
        ),
        (["data=list", "data.file=x.csv"], {"data.group_column": GONE, "data.shared_groups": GONE}),
        (
            ["logger=wandb"],
            {
                "logger.wandb._target_": "lockstep.callbacks.ResumableWandbLogger",
                "logger.wandb.settings": GONE,
            },
        ),
        (
            [
                *NETWORK[:1],
                "model.name=resnet18",
                "augment.flip=true",
                "model.head_only=each_epoch",
            ],
            {"model.head_only": True, "model.dropout": 0.2, "model.frozen_norms": GONE},
        ),
        (["search=tpe"], {"search.objectives": {"val/loss": "min", "training_s": "min"}}),
    ],
)
def test_load_earlier_version(tmp_path: Path, texts: list[str], earlier: dict[str, Any]) -> None:
    config = config_of(*texts)
    tree = config_file.to_tree(config)
    for key, value in earlier.items():
        *above, name = key.split(".")
        section = at(tree, above)
        section[name] = value
        if value is GONE:
            del section[name]
    write_atomically(tmp_path / "config.yaml", yaml.safe_dump(tree))
    assert config_file.load(tmp_path / "config.yaml") == config
