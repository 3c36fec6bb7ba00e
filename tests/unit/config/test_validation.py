"""The check of a configuration: valid ones, the message of every error, and saved ones."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks
import pytest
import yaml
from omegaconf import OmegaConf

from lockstep.config import build, overrides
from lockstep.config.checks import callback_rules, signatures
from lockstep.config.composing import compose
from lockstep.config.composing.compose import Source, compose_config, groups
from lockstep.config.composing.sweep_space import MAX_CHECKED
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import CALLED, Config, fields
from lockstep.config.schema.legal_keys import FOREIGN_NAMES, meant_key
from lockstep.system import hardware, processes
from lockstep.system.trees import leaves
from tests.support.composed import composed_once, config_of
from tests.support.harness import ROOT, environ

GROUPS = groups(compose.CONF)
LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def _a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "compose_config", composed_once)
    monkeypatch.setattr(processes, "call", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 0)
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A copy of conf/ to spoil."""
    return shutil.copytree(compose.CONF, tmp_path / "conf")


def assert_starts(found: list[str], starts: list[str]) -> None:
    """Assert one error for each start, in this order."""
    assert [error[: len(start)] for error, start in zip(found, starts, strict=True)] == starts


def errors(*texts: str, is_multirun: bool = False, **places: Any) -> list[str]:
    try:
        overrides.check(texts, Source(**places), is_multirun=is_multirun)
    except ConfigError as error:
        return str(error).splitlines()
    return []


# -- what passes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [f"{group}={option}" for group, options in GROUPS.items() for option in options])
def test_every_option_of_every_group_passes(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")  # SLURM's tools are not on every machine
    monkeypatch.setattr(signatures, "is_there", lambda package: True)  # neither are all loggers
    needed = {
        "data=image_folder": ["data.root=here"],
        "data=list": ["data.file=here.csv"],
        "data=dataset": ["data.train={_target_:torch.utils.data.TensorDataset}"],
        "model=torchvision": ["model.name=resnet18"],
        "model=timm": ["model.name=resnet18.a1_in1k"],
        "experiment=finetune": ["data.root=here"],
        "experiment=probe": ["data.root=here"],
        "optimizer=newton": ["scheduler=constant", "model=torchvision", "model.name=resnet18", "model.head_only=true"],
        "cluster=slurm": ["cluster.time_min=1", "cluster.warn_s=9", "strategy=cpu"],
    }.get(choice, [])
    if choice.startswith("benchmark="):  # which training does not read
        overrides.check([f"+{choice}"], is_multirun=False, is_benchmark=True)
    else:
        assert errors(choice, *needed, is_multirun=choice.startswith("search=")) == []


def test_every_experiment_goes_with_every_debug_preset() -> None:
    pairs = [f"experiment={','.join(GROUPS['experiment'])}", f"debug={','.join(GROUPS['debug'])}"]
    assert errors(*pairs, "data.root=here", is_multirun=True) == []


MODULE = """
class Net:
    def __init__(self, *, in_channels, num_classes, depth: int): ...
class Greedy:
    def __init__(self, in_channels, num_classes, *, bias=True, **more): ...
class Grey:
    def __init__(self, *, num_classes): ...
def sgd(params, lr, **more): ...
def images(**more): ...
"""
EXPERIMENT = "# @package _global_\nmodel:\n  _target_: lockstep_custom.Greedy\n"
FILES = {
    "model/net": "_target_: lockstep_custom.Net\ndepth: 3\n",
    "model/grey": "_target_: lockstep_custom.Grey\n",
    "model/greedy": "_target_: lockstep_custom.Greedy\nwidth: 64\nstem: small\n",
    "model/bare": "width: 64\n",
    "experiment/changed": EXPERIMENT,
    "experiment/wider": f"{EXPERIMENT}  width: 32\n",
}
GREEDY = "model._target_=lockstep_custom.Greedy"
SGD = "optimizer._target_=lockstep_custom.sgd"
OF_EVERY_SOURCE = {"memory": "auto", "num_workers": "auto", "copy_to": None, "folds": None}
OF_EVERY_SOURCE |= {"balance": 0.0, "near_duplicates": 0.1, "fold": 0, "shared_groups": "refuse"}


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configurations with custom targets, of which some take any keyword."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lockstep_custom.py").write_text(MODULE)
    for name, text in FILES.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "conf"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["model=net", "model.depth=4"], []),
        (["model=net", "model.depth=deep"], ["model.depth=deep must be int"]),
        (["model=net", "model.dept=4"], ["model.dept is not a setting: did you mean model.depth?"]),
        (["model=net", "~model.depth"], ["model.depth is missing"]),
        (["model=net", "+model.num_classes=4"], ["model.num_classes is set by the training"]),
        (["model=grey"], ["model._target_=lockstep_custom.Grey does not take in_channels"]),
        ([SGD], ["optimizer.lr is missing"]),
    ],
)
def test_custom_target_parameters(custom: Path, texts: list[str], expected: list[str]) -> None:
    assert_starts(errors(*texts, added=custom), expected)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([GREEDY], {}),
        (["experiment=changed"], {}),
        # Hydra composes with the option, which has a width
        ([GREEDY, "model.width=64", "+model.depth=3"], {"width": 64, "depth": 3}),
        (["experiment=changed", "model.width=64", "+model.depth=3"], {"width": 64, "depth": 3}),
        ([GREEDY, "model=resnet18_d2l", "~model.width"], {}),
        (["experiment=changed", "model=resnet18_d2l", "~model.width"], {}),
        (["experiment=wider"], {"width": 32}),
        (["experiment=wider", "model.width=16"], {"width": 16}),
        (["model=greedy"], {"width": 64, "stem": "small"}),
        (["model=bare", f"+{GREEDY}"], {}),
        (["optimizer.lr=1", SGD], {"lr": 1}),
        (["+data.x=1", "data._target_=lockstep_custom.images"], {**OF_EVERY_SOURCE, "x": 1}),
    ],
)
def test_custom_target_keys(custom: Path, texts: list[str], expected: dict[str, Any]) -> None:
    (config,) = overrides.check(texts, Source(added=custom)).configs
    group = {SGD: "optimizer", "data._target_=lockstep_custom.images": "data"}.get(texts[-1], "model")
    section = config_file.to_tree(config)[group]
    assert {key: value for key, value in section.items() if not key.startswith("_")} == expected


@pytest.mark.parametrize(
    ("group", "option"), [(group, option) for group in CALLED for option in GROUPS[group] if group != "module"]
)
def test_the_file_of_an_option_has_exactly_the_parameters_of_its_target(group: str, option: str) -> None:
    section = compose.plain_tree(compose_config([f"{group}={option}"]))[0][group]
    signature = signatures.find(section["_target_"])
    assert signature is not None
    supplied = {"model": {"in_channels", "num_classes"}, "data": {"kept"}}.get(
        group, {"params", "optimizer", "total_steps"}
    )
    of_the_run = {name for name in fields(CALLED[group]) if name not in CALLED[group].passed}
    own, accepted = {*section} - of_the_run, {*signature.names} - supplied - of_the_run
    assert own <= accepted
    assert own == accepted or group == "optimizer"  # the others of torch's are added with +


# -- every error, with its key and its hint ----------------------------------------------------------------------------

ERRORS = {
    # unknown keys
    "optimizer.lrr=1": ["optimizer.lrr is not a setting", "did you mean optimizer.lr?"],
    "optimzer.lr=1": ["optimzer.lr is not a setting", "did you mean optimizer.lr?"],
    "+model.colour=1": ["model.colour is not a setting: ResNet18 has width"],  # not itself, which the tree has now
    "+optimizer.colour=1": ["optimizer.colour is not a setting: SGD has lr"],
    "lr=1": ["lr is not a setting", "did you mean optimizer.lr=1?"],
    "epochs=5": ["epochs is not a setting", "did you mean trainer.max_epochs=5?"],
    "batch_size=8": ["batch_size is not a setting", "write global_batch_size=8"],
    "device=cpu": ["device is not a setting", "write strategy=cpu"],
    "device=fast": ["device is not a setting", "write strategy=..."],
    "batch_siz=8": ["batch_siz is not a setting", "eval_batch_size or global_batch_size?"],
    "model.foo=1": ["model.foo is not a setting", "ResNet18 has width, stem, shortcut_norm"],
    "+extra=1": ["extra is not a setting", "remove it"],
    "callbacks.timer.foo=1": ["callbacks.timer.foo is not set", "add it with +callbacks.timer.foo=1"],
    "+callbacks.timer.foo=1": ["callbacks.timer.foo is not a setting", "Timer has duration, interval, verbose"],
    "+callbacks.timr.duration=5": ["callbacks.timr has no _target_", "did you mean callbacks.timer?"],
    "hydra.rundir=x": ["hydra.rundir=x: Could not override 'hydra.rundir'."],
    # + and ~
    "optimizer.dampening=0.1": ["optimizer.dampening is not set", "add it with +optimizer.dampening=0.1"],
    "+seed=1": ["Could not append to config. An item is already at 'seed'", "'seed=1'"],
    "+experiment=cifar10": ["+experiment=cifar10: Multiple values for experiment."],
    "~name": ["Could not delete from config. 'name' does not exist."],
    "~optimizer.lr=0.3": ["Could not delete from config. The value of 'optimizer.lr' is "],
    "augment={a:1}": ["augment={a:1}: Key 'a' is not in struct", "write +augment={a:1} to add it"],
    "~seed": ["seed is missing", "add +seed=... (int >= 0)"],
    "~data": ["data is missing", "choose data=... from cifar10, dataset, digits"],
    # types and ranges
    "seed=-1": ["seed=-1 must be int >= 0"],
    "optimizer.lr=fast": ["optimizer.lr=fast must be float > 0"],
    "optimizer.lr=nan": ["optimizer.lr=NaN must be float > 0"],
    "compile=reduce-overhead": ["compile=reduce-overhead must be true|false"],
    "augment.flip=alternate": ["augment.flip=alternate must be true|false or alternating"],
    "augment.erasing=1.5": ["augment.erasing=1.5 must be 0 <= float <= 1"],
    "augment.rotation=270": ["augment.rotation=270 must be 0 <= float <= 180"],
    "augment.color_jitter.hue=0.6": ["augment.color_jitter.hue=0.6 must be 0 <= float <= 0.5"],
    "augment.color_jitter.hu=0.1": [
        "augment.color_jitter.hu is not a setting",
        "did you mean augment.color_jitter.hue?",
    ],
    "augment.color_jitter=0.4": ["augment.color_jitter=0.4 must be a section of settings"],
    "augment.crop_border=constant": ["augment.crop_border=constant must be zeros|reflect"],
    "trainer.devices=two": ["trainer.devices=two must be auto or int >= 1 or [int >= 0, ...]"],
    "optimizer._partial_=false": ["optimizer._partial_=false must be true"],
    "name=2024": ["name=2024 must be text", "write \"name='2024'\""],
    "name=a/b": ["name=a/b must be text of letters, digits and _.=+- or null"],
    "+callbacks.x=5": ["callbacks.x=5 must be a section with _target_ or null"],
    # options
    "data=Digits": ["data=Digits is not an option: did you mean digits? Choose from cifar10, dataset"],
    "model=resnet50": ["model=resnet50 is not an option: write model=torchvision model.name=resnet50"],
    "model=ResNet50": ["model=ResNet50 is not an option: write model=torchvision model.name=resnet50"],
    "model.name=resnet50": ["model.name is not a setting: write model=torchvision model.name=resnet50"],
    "data.root=photos": ["data.root is not a setting: write data=image_folder data.root=photos"],
    "model=resnet50.a1_in1k": ["write model=timm model.name=resnet50.a1_in1k"],
    "model=resnet5": ["model=resnet5 is not an option: did you mean resnet18?"],
    "data=null": ["data=null is not an option: choose from cifar10, dataset, digits"],
    "data=[digits,nope]": ["data=[digits,nope] is not an option", "choose from cifar10, dataset, digits"],
    "data@elsewhere=digits": ["Could not override 'data@elsewhere'. Did you mean to override data?"],
    "hydra/launcher=nope": ["Could not find 'hydra/launcher/nope' Available options in", "basic workstation"],
    # values that are not there
    "data=image_folder": ["data.root has no value", "add data.root=..."],
    "name=${nope}": ["name=${nope} cannot be resolved", "'nope' not found"],
    "seed=${oc.env:LOCKSTEP_NOT_SET}": ["seed=${oc.env:LOCKSTEP_NOT_SET} cannot be resolved", "LOCKSTEP_NOT_SET"],
    # targets
    "model._target_=nowhere.Net": ["model._target_=nowhere.Net", "package 'nowhere' was not found", "install"],
    "optimizer._target_=SGD": ["optimizer._target_=SGD must be a name like package.module.Class"],
    "optimizer._target_=torch.optim.SDG": ["optimizer._target_=", "did you mean torch.optim.SGD?"],
    "model=torchvision": ["model.name has no value", "add model.name=..."],
    # parts of the network
    "+parameters.head.pattern='('": ["parameters.head.pattern=( must be a regular expression"],
    "+parameters.head={lr_factor: 2}": ["parameters.head.pattern is missing", "a regular expression"],
    "+parameters.head={pattern: fc, rate: 2}": ["parameters.head.rate is not a setting", "head has pattern, lr_factor"],
    "+scheduler._interval_=epoch": [
        "scheduler._interval_=epoch is for schedules by epoch, and one_cycle_linear counts"
    ],
    "+scheduler._interval_=batch": ["scheduler._interval_=batch must be step|epoch"],
    "scheduler.warmup_fraction=1": ["scheduler.warmup_fraction=1 must be 0 <= float < 1, as one_cycle_linear has it"],
    "model.stem=tiny": ["model.stem=tiny must be small|imagenet, as ResNet18 has it"],
    "callbacks.timer._target_=lightning.pytorch.callback.Timer": ["did you mean lightning.pytorch.callbacks.Timer?"],
    "+optimizer.params=1": ["optimizer.params is set by the training itself", "remove it"],
    "+callbacks.stop._target_=lightning.pytorch.callbacks.EarlyStopping": ["callbacks.stop.monitor is missing"],
    "+callbacks.timer.duration={_target_: datetime.nope}": ["callbacks.timer.duration._target_=datetime.nope"],
    "callbacks.pictures.num_images=abc": ["callbacks.pictures.num_images=abc must be int", "Pictures"],
    "+optimizer.maximize=2": ["optimizer.maximize=2 must be true|false", "SGD"],
    # one setting against another
    "trainer.virtual_shards=99": ["trainer.virtual_shards=99 leaves some empty in a micro-batch of"],
    "trainer.accumulate_grad_batches=7": ["does not divide global_batch_size="],
    "optimizer.momentum=0": ["optimizer._target_=torch.optim.SGD: Nesterov momentum requires a momentum"],
    "+data.copy_to=x": ["data.copy_to=x is for data=image_folder and data=list"],
    "data.val_fraction=0.9": ["data.val_fraction=0.9 and data.test_fraction=0.2 leave nothing to train on"],
    "callbacks.checkpoint.monitor=val/acc": ["callbacks.checkpoint.monitor=val/acc", "val/accuracy"],
    "callbacks.checkpoint.mode=min": ["callbacks.checkpoint.mode=min", "set callbacks.checkpoint.mode=max"],
    "trainer.check_val_every_n_epoch=99": ["trainer.check_val_every_n_epoch=99 is above trainer.max_epochs="],
    "+callbacks.last.train_time_interval={_target_: datetime.timedelta, hours: 1}": ["last.every_n_train_steps"],
    # not an override at all
    "optimizer.lr": ["'optimizer.lr' cannot be read", "write setting=value"],
    "optimizer.lr=0.1,0.2": ["optimizer.lr=0.1,0.2 lists several values", "add -m"],
}


def callback(kind: str, more: str = "") -> str:
    return f"+callbacks.x={{_target_: lightning.pytorch.callbacks.{kind}{more}}}"


# callbacks of Lightning that work here, with the settings that they need
WORKING = {
    **dict.fromkeys(("Callback", "Checkpoint", "LambdaCallback", "LearningRateMonitor", "ModelSummary"), ""),
    **dict.fromkeys(("EMAWeightAveraging", "RichModelSummary", "WeightAveraging"), ""),
    "DeviceStatsMonitor": "",
    "EarlyStopping": ", monitor: val/loss",
    "ModelCheckpoint": ", every_n_epochs: 5",
    "OnExceptionCheckpoint": ", dirpath: x",
    "ThroughputMonitor": ", batch_size_fn: {_target_: hydra.utils.get_method, path: builtins.len}",
}


LIGHTNINGS = "+logger.mine={_target_:lightning.pytorch.loggers.WandbLogger}"
IMAGES = ("data=image_folder", "data.root=images")
DATASET = ("data=dataset", "data.train={_target_:torch.utils.data.TensorDataset}")
HEAD = ("model=torchvision", "model.name=efficientnet_b0", "model.dropout=0.1")
TIMM = ("model=timm", "model.name=test_resnet", "model.dropout=0.3", "model.drop_path=0.1")
PROBE = ("experiment=probe", "data.root=here")
SCHEDULE = ("scheduler=constant",)
STEPS = "scheduler._target_=torch.optim.lr_scheduler.StepLR"
CYCLE = "scheduler._target_=torch.optim.lr_scheduler.OneCycleLR"
PLATEAU = "scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau"
RESTARTS = "scheduler._target_=torch.optim.lr_scheduler.CosineAnnealingWarmRestarts"
WITHOUT = [f"~optimizer.{key}" for key in ("momentum", "nesterov")]
NO_DECAY = ["~optimizer.weight_decay", "~optimizer.fused"]
SCALED = ["scale_with_workers=true", "optimizer._target_=torch.optim.Adagrad", "~optimizer.lr"]
AVERAGED = "+callbacks.x={_target_: lockstep.callbacks.AveragedWeights, multi_avg_fn: null}"
LARGE = 99999999999999999999

# errors of several overrides together
TOGETHER: list[tuple[Sequence[str], list[str]]] = [
    (["data=synthetic", f"data.train_size={LARGE}"], ["data.train_size=", "too large: 2,147,483,647"]),
    ([*IMAGES, "data.test_after=2026-06-31"], ["data.test_after=2026-06-31 must be YYYY-MM-DD"]),
    ([*HEAD, "model.head_only=each_epoch"], ["model.dropout=0.1 has no effect"]),
    ([*IMAGES, "data.fit=letterbox", "data.crop_percent=0.9"], ["data.fit=letterbox"]),
    ([*IMAGES, "data.image_size=null", "data.fit=letterbox"], ["data.image_size=null"]),
    ([*IMAGES, "data.image_size=null", "data.crop_percent=0.9"], ["data.image_size=null"]),
    ([*IMAGES, "augment.random_resized_crop.scale=[1.0,0.5]"], ["must be [low, high]"]),
    ([*IMAGES, "augment.random_resized_crop.ratio=[1]"], ["must be [low, high]"]),
    ([*IMAGES, "augment.random_resized_crop.scale=[0.5,1]", "data.memory=device"], ["use data.mem"]),
    ([*IMAGES, "data.kept=true"], ["data.kept is not a setting"]),
    ([*IMAGES, "+data.kept=true"], ["data.kept is set by the training"]),
    ([*IMAGES, "+data.kept={}"], ["data.kept is set by the training"]),
    ([*IMAGES, "data.image_size=[224]"], ["data.image_size=[224] must be int >= 8"]),
    ([*IMAGES, "data.crop_percent=0"], ["data.crop_percent=0 must be"]),
    ([*DATASET, "augment.random_resized_crop.scale=[0.5,1]"], ["is not for data=dataset"]),
    ([*SCHEDULE, STEPS], ["scheduler.step_size is missing"]),
    ([*SCHEDULE, CYCLE, "+scheduler.max_lr=0.1", "+scheduler.total_steps=9"], ["scheduler.total_steps is set"]),
    ([*SCHEDULE, PLATEAU, "+scheduler.mode=min"], ["scheduler.mode is set"]),
    ([*SCHEDULE, STEPS, "+scheduler.step_size=3", "+scheduler._interval_=batch"], ["_interval_=batch must"]),
    (["model=torchvision", "model.name=resnet19"], ["model.name=resnet19", "did you mean resnet18"]),
    (["model=timm", "model.name=resnet19.a1_in1k"], ["model.name=resnet19.a1_in1k", "did you mean "]),
    (["model=timm", "model.name=resnet18", "model.pretrained=1"], ["model.pretrained=1 must be true|false"]),
    (["logger=wandb", "logger.wandb.projct=x"], ["did you mean logger.wandb.project?"]),
    (["optimizer._target_=torch.optim.LBFGS", *WITHOUT, *NO_DECAY], ["optimizer._target_=torch.optim.LBFGS"]),
    ([callback("ModelCheckpoint", ", save_top_k: -1")], ["callbacks.x is a second ", "callbacks.last"]),
    ([AVERAGED, "callbacks=ema"], ["callbacks.x is a second ", "callbacks.ema"]),
    ([callback("LearningRateMonitor"), "logger=none"], ["callbacks.x needs a logger"]),
    ([callback("DeviceStatsMonitor"), "logger=none"], ["callbacks.x needs a logger"]),
    ([callback("TQDMProgressBar")], ["TQDMProgressBar", callback_rules.INSTEAD["TQDMProgressBar"]]),
    (["augment.trivial=true", "augment.rand_augment.num_ops=2"], ["augment.trivial=true", "use one"]),
    ([*SCALED, *WITHOUT], ["scale_with_workers=true", "add +optimizer.lr=..."]),
]


@pytest.mark.parametrize(("texts", "parts"), [*(((text,), ERRORS[text]) for text in ERRORS), *TOGETHER])
def test_check_one_error(texts: Sequence[str], parts: list[str]) -> None:
    (error,) = errors(*texts)
    assert [part for part in parts if part not in error] == []


# errors in their order, with the start of each
SEVERAL = [
    ([*TIMM, "model.head_only=each_epoch"], ["model.dropout=0.3", "model.drop_path=0.1"]),
    (
        ["trainer.accumulate_grad_batches=7", "trainer.devices=[0]"],  # with another setting, and this machine
        ["trainer.accumulate_grad_batches=7", "trainer.devices=[0]"],
    ),
    (
        ["+callbacks.timer.foo=1", "+optimizer.maximize=2", "+logger.x._target_=nowhere.Logger"],
        ["optimizer.maximize=2", "callbacks.timer.foo is not", "logger.x._target_=nowhere.Logger"],
    ),
    (["+callbacks.timer.foo=1", "+optimizer.maximize=2", "seed=-1"], ["seed=-1"]),
    ([*PROBE, "model.head_only=each_epoch"], ["optimizer=newton"]),
]


@pytest.mark.parametrize(("texts", "expected"), SEVERAL)
def test_check_several_errors(texts: list[str], expected: list[str]) -> None:
    assert_starts(errors(*texts), expected)


PASSING = [
    ["seed=99999999999999999999", "data=synthetic", "data.seed=20261122134500"],
    ["name=${hydra:job.num}", "callbacks.pictures.num_images=${hydra:job.num}"],  # left to the job
    [*PROBE, "task=multilabel"],
    [*PROBE, "task=regression"],
    [*HEAD, "model.head_only=false"],
    TIMM,
    [*TIMM, "model.head_only=false"],
    [*IMAGES, "data.image_size=[160,224]", "data.crop_percent=0.9", "data.interpolation=bicubic"],
    [*IMAGES, "data.image_size=224", "data.fit=letterbox", "data.crop_percent=1"],
    [*IMAGES, "augment.random_resized_crop.scale=[0.08,1.0]"],
    DATASET,
    ["+optimizer.dampening=0.1", "optimizer.nesterov=false", "+callbacks.timer.interval=epoch"],
    [*SCHEDULE, RESTARTS, "+scheduler.T_0=3", "+scheduler._interval_=epoch"],
    [*SCHEDULE, CYCLE, "+scheduler.max_lr=0.1"],
    [*SCHEDULE, PLATEAU, "+scheduler.patience=3"],
    ["logger=[wandb,tensorboard]"],
    ["logger=none"],
    ["optimizer._target_=torch.optim.RMSprop", *WITHOUT, *NO_DECAY],
    *([callback(kind, more)] for kind, more in WORKING.items()),
]


@pytest.mark.parametrize("texts", PASSING)
def test_check_passes(texts: Sequence[str]) -> None:
    assert errors(*texts) == []


def test_callbacks_of_lightning_known() -> None:
    known = sorted({*WORKING, *callback_rules.INSTEAD, "Timer"})
    assert known == sorted(lightning.pytorch.callbacks.__all__)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model.head_only=false", "set model.head_only=true"),
        ("+parameters={head: {pattern: null, lr_factor: 2}}", "parameters"),
        ("scheduler=cosine", "scheduler"),
        ("callbacks=ema", "callbacks=ema"),
        ("trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches=2"),
        ("trainer.gradient_clip_norm=1", "trainer.gradient_clip_norm=1.0"),
        ("trainer.graph=true", "trainer.graph=true"),
        ("trainer.virtual_shards=2", "trainer.virtual_shards=2"),
        ("module._target_=tests.support.own_modules.Plain", "module"),
    ],
)
def test_newton_refuses(text: str, name: str) -> None:
    found = errors(*PROBE, text)
    assert [line for line in found if name in line and "optimizer=newton" in line], found


@pytest.mark.parametrize(
    ("package", "texts", "keys"),
    [
        ("timm", ["model=timm", "model.name=resnet18"], ["model"]),
        ("wandb", ["logger=wandb"], ["logger.wandb"]),
        ("wandb", [LIGHTNINGS], ["logger.mine"]),
        ("wandb", ["logger=wandb", LIGHTNINGS], ["logger.wandb", "logger.mine"]),
        ("wandb", ["logger=tensorboard"], []),
    ],
)
def test_missing_package(monkeypatch: pytest.MonkeyPatch, package: str, texts: list[str], keys: list[str]) -> None:
    monkeypatch.setattr(signatures, "is_there", lambda name: name != package)
    found = errors(*texts)
    assert_starts(found, keys)
    assert [error for error in found if f"pip install {package}" not in error] == []


def test_overfit_without_augmentation() -> None:
    augment = config_of("debug=overfit", "experiment=cifar10").augment
    assert augment.used == {}
    named = yaml.safe_load((ROOT / "conf" / "debug" / "overfit.yaml").read_text())["augment"]
    qualifiers = {"crop_border", "cutout_inside", "rand_augment.magnitude", "random_resized_crop.ratio"}
    assert dict(leaves(named, "")).keys() == dict(leaves(augment.model_dump(), "")).keys() - qualifiers


def test_all_errors_once() -> None:
    found = errors(
        "trainer.max_epoch=3",  # unknown
        "seed=-1",  # out of range
        "name=${nope}",  # unresolvable
        "optimizer.dampening=0.1",  # to be added
        "data=nope",  # no option
        "optimizer.lr",  # no override
    )
    keys = ["trainer.max_epoch", "seed", "name", "optimizer.dampening", "data=nope", "'optimizer.lr'"]
    assert len(found) == len(keys)
    assert [key for key in keys if sum(key in error for error in found) != 1] == []


def test_wrong_lines_of_yaml_files(conf: Path) -> None:
    with (conf / "trainer" / "default.yaml").open("a") as file:
        file.write("max_epoch: 3\n")
    callbacks = conf / "callbacks" / "default.yaml"
    callbacks.write_text(callbacks.read_text().replace("timer:\n", "timer:\n  duraton: 3\n"))
    assert_starts(sorted(errors("seed=x", conf=conf)), ["seed=x", "trainer.max_epoch is not a setting"])
    assert_starts(errors("~trainer.max_epoch", conf=conf), ["callbacks.timer.duraton is not a setting"])


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("experiment/x.yaml", "trainer: [\n", ["x.yaml", "line 2"]),
        (
            "experiment/x.yaml",
            "# @package _global_\ndefaults:\n  - override /data: nope\n",
            ["experiment=x: ", "data/nope"],
        ),
        ("config.yaml", "trainer: [\n", ["config.yaml"]),
    ],
)
def test_broken_yaml_file(conf: Path, name: str, text: str, parts: list[str]) -> None:
    (conf / name).write_text(text)
    (found,) = errors("experiment=x" if "experiment" in name else "seed=1", conf=conf)
    assert [part for part in parts if part not in found] == []


# -- sweeps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["optimizer.lr=0.1,0.2", "seed=range(0,3)", "model=glob(resnet18*)"], []),
        (["optimizer.lr=0.1,x,-1"], ["optimizer.lr=x must", "optimizer.lr=-1 must"]),
        (["optimizer.lr=0.1,0.2", "seed=x"], ["seed=x must"]),
        (["seed=range(-2,3)"], ["seed=-2 must"]),
        (["data.val_fraction=range(0.5,1.2,0.1)", "data.test_fraction=0.01"], ["data.val_fraction=1.1 and"]),
        (["data=glob(*)"], ["data.train has no value", "data.root has no value", "data.file has no value"]),
        (["data=digits,nope"], ["data=nope is not an option"]),
        (["data=glob(x*)"], ["data=glob(x*) matches no option"]),
        (["optimizer.lr=interval(0.1,1)"], ["optimizer.lr=interval(0.1,1)"]),
    ],
)
def test_every_value_of_a_sweep(texts: list[str], expected: list[str]) -> None:
    assert_starts(errors(*texts, is_multirun=True), expected)


def test_of_a_large_sweep_the_first_jobs_are_checked() -> None:
    wide = f"seed={','.join(map(str, range(200)))}"
    assert errors(wide, "global_batch_size=64,0", is_multirun=True) == ["global_batch_size=0 must be int >= 1"]
    assert len(overrides.check([wide], is_multirun=True).configs) == MAX_CHECKED


# -- the command -------------------------------------------------------------------------------------------------------


def test_neither_the_check_nor_the_help_imports_torch() -> None:
    code = (
        "import sys; from lockstep.cli import help; from lockstep.config import errors, overrides\n"
        "overrides.check(['optimizer=adamw', 'callbacks=early_stopping'], is_multirun=False)\n"
        "try: overrides.check(['seed=x', 'optimizer.lrr=1', '+callbacks.timer.foo=1'], is_multirun=False)\n"
        "except errors.ConfigError: pass\n"
        "help.show_help()\n"
        "assert not {'torch', 'lightning', 'numpy', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], env=environ(), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


# -- resume ------------------------------------------------------------------------------------------------------------


def resumed(saved: Config, *texts: str) -> Config:
    (config,) = overrides.check(texts, saved=saved).configs
    return config


def test_a_resume_takes_what_does_not_change_the_mathematics() -> None:
    saved = config_of("experiment=cifar10", "seed=0", "optimizer.lr=0.3")
    texts = ["trainer.max_epochs=40", "trainer.devices=2", "strategy=cpu", "callbacks.timer=null", "logger=none"]
    texts += ["+callbacks.last.verbose=true"]
    config = resumed(saved, "resume=x", *texts)
    before, after = (dict(leaves(config_file.to_tree(each), "")) for each in (saved, config))
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    assert changed.items() >= {"trainer.max_epochs": 40, "trainer.devices": 2, "strategy.name": "cpu"}.items()
    assert (changed["callbacks.last.verbose"], config.callbacks["timer"], config.logger) == (True, None, {})
    assert {key.partition(".")[0] for key in changed} == {"trainer", "strategy", "callbacks", "logger"}


REFUSED = [
    (
        ["optimizer.lr=0.1"],
        ["seed=1", "optimizer.lr=0.2", "data=synthetic", "trainer.limit_train_batches=3", "trainer.loads=[1,1]"],
        ["seed=1", "data._target_", "optimizer.lr=0.2", "trainer.limit_train_batches=3", "trainer.loads=[1,1]"],
    ),
    ([], ["trainer.gradient_clip_norm=1"], ["trainer.gradient_clip_norm=1"]),
    ([], ["trainer.precision=float32"], ["trainer.precision=float32"]),
    ([], ["trainer.check_val_every_n_epoch=2"], ["trainer.check_val_every_n_epoch=2"]),
    ([], ["callbacks=ema"], ["callbacks.ema._target_=lockstep.callbacks.AveragedWeights"]),
    (
        [],
        ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"],
        ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"],
    ),
    (
        [],
        ["+callbacks.last.monitor=val/loss", "+callbacks.last.mode=min"],
        ["callbacks.last.monitor=val/loss", "callbacks.last.mode=min"],
    ),
    (["experiment=cifar10", "debug=fast"], ["experiment=fashion_mnist"], ["augment.cutout=0"]),
    (
        ["optimizer=adamw"],
        ["data.num_worker=1", "optimizer.momentum=0.5", "optimizer.eps=1.0"],
        ["data.num_worker is not a setting", "optimizer.momentum", "optimizer.eps=1.0"],
    ),
]


@pytest.mark.parametrize(("before", "texts", "expected"), REFUSED)
def test_resume_refuses_changes(before: list[str], texts: list[str], expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resumed(config_of(*before), "resume=x", *texts)
    found = str(caught.value).splitlines()
    assert [start for start in expected if not any(error.startswith(start) for error in found)] == []


def test_resume_keeps_options() -> None:
    saved = config_of("data=image_folder", "data.root=x", "optimizer=adamw", "scheduler=cosine")
    changed = {"num_workers": 1, "memory": "stream", "cache": None, "root": "y"}
    typed = ["data.num_workers=1", "data.memory=stream", "data.cache=null", "data.root=y"]
    assert resumed(saved, "resume=x", *typed).data.model_dump() == saved.data.model_dump() | changed


def test_a_resume_resolves_no_text_of_the_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", "elsewhere")
    saved = config_of("data=image_folder", "data.root=x", "cluster=none")
    for root in ("${oc.env:FOLDER}", "a\\${seed}", "${", "\\\\${nothing}"):
        here = saved.model_copy(update={"data": saved.data.model_copy(update={"root": root})})
        assert resumed(here, "resume=x", "data.num_workers=1").data.root == root  # pyright: ignore[reportAttributeAccessIssue]
    assert resumed(saved, "resume=x", "data.root=${oc.env:FOLDER}").data.root == "elsewhere"  # pyright: ignore[reportAttributeAccessIssue]


def test_a_resume_takes_the_whole_command_again() -> None:
    texts = ["experiment=cifar10", "debug=fast", "optimizer.lr=0.3", "seed=0"]
    saved = config_of(*texts)
    assert resumed(saved, *texts, "resume=x") == saved


def test_auto_of_a_resume_is_the_view_that_the_run_has() -> None:
    texts = ["data=image_folder", "data.root=x"]
    saved = build.settle_config(config_of(*texts))
    assert resumed(saved, *texts, "resume=x") == saved
    with pytest.raises(ConfigError, match=r"data\.crop_percent=0\.5 cannot change on resume, this run has 1\.0"):
        resumed(saved, *texts, "data.crop_percent=0.5", "resume=x")


# -- what a configuration is ------------------------------------------------------------------------------------------


def test_scaling_multiplies_batch_and_rate_by_the_workers_once() -> None:
    config = config_of("scale_with_workers=true", "strategy=cpu", "trainer.devices=3", "optimizer.lr=0.1")
    scaled = build.settle_config(config)
    assert (scaled.global_batch_size, scaled.optimizer.lr) == (3 * config.global_batch_size, pytest.approx(0.3))
    assert build.settle_config(scaled) == scaled
    assert build.settle_config(config_of("trainer.devices=3")) == config_of("trainer.devices=3")


def test_the_fingerprint_is_equal_for_equal_configurations_alone() -> None:
    prints = [config_file.fingerprint(config_of(*texts)) for texts in ([], ["seed=0"], ["seed=1"], ["model.width=8"])]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    config_file.save(config_of("optimizer=adamw", "name='1e5'", "trainer.loads=[1]"), path)
    return path


def test_a_saved_configuration_comes_back_equal(saved: Path) -> None:
    config = config_of("optimizer=adamw", "name='1e5'", "trainer.loads=[1]")
    assert config_file.load(saved) == config
    assert config_file.fingerprint(config_file.load(saved)) == config_file.fingerprint(config)


def test_a_saved_configuration_that_does_not_fit_is_reported_with_its_path(saved: Path) -> None:
    tree = yaml.safe_load(saved.read_text())
    tree["trainer"]["old_key"] = tree["trainer"].pop("deterministic")
    broken = ("- 1\n", "contains no configuration"), ("a: [\n", "cannot be read")
    wrong = "trainer.deterministic is missing", "trainer.old_key is not a setting"
    for text, reason in (*((yaml.safe_dump(tree), each) for each in wrong), *broken):
        saved.write_text(text)
        with pytest.raises(ConfigError, match=rf"{re.escape(str(saved))}.*{reason}"):
            config_file.load(saved)


def test_a_trial_of_a_search_is_evaluated_and_resumed_as_any_run() -> None:
    trial = overrides.plan(["search=tpe", "optimizer.lr=interval(0.01,1)"], is_multirun=True).configs[0]
    (again,) = overrides.plan(["trainer.max_epochs=9"], saved=trial).configs
    assert (again.search, again.trainer.max_epochs) == (trial.search, 9)


# -- names of other frameworks -----------------------------------------------------------------------------------------

ALL_GROUPS = groups(*compose.DEFAULT.folders)


@pytest.mark.parametrize("line", FOREIGN_NAMES)
def test_a_line_has_keys_and_groups_of_today(line: str) -> None:
    words = [word for word in line.split() if "=" in word]
    config = composed_once([word for word in words if "..." not in word], with_hydra=True)
    keys = dict(leaves(OmegaConf.to_container(config, resolve=False), ""))
    assert {word.partition("=")[0] for word in words} <= {*keys, *ALL_GROUPS}


@pytest.mark.parametrize(
    ("line", "name"), [(line, name) for line, names in FOREIGN_NAMES.items() for name in names.split()]
)
def test_a_name_is_refused_with_its_line_which_no_near_name_gives(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 1)
    with pytest.raises(ConfigError) as caught:
        overrides.check([name if "=" in name else f"{name}=3" if "." in name else f"trainer.{name}=3"])
    assert str(caught.value).endswith((f": write {line}", f": write {line.replace('...', '3')}"))
    meant = meant_key(compose.plain_tree(composed_once([]))[0], [name], ALL_GROUPS)
    assert [f"{key}=..." for key in meant] != [line]


@pytest.mark.parametrize("text", ["callbacks.early_stopping.monitor=x", "+callbacks.early_stopping.patience=3"])
def test_missing_section(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write callbacks=early_stopping$"):
        overrides.check([text])
