"""The check of a configuration: valid ones, the message of every error, and saved ones."""

import shutil
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
from lockstep.config.composing.compose import Source, groups
from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.legal_keys import FOREIGN_NAMES
from lockstep.system import hardware
from lockstep.system.trees import leaves
from tests.support.composed import composed_once, config_of

GROUPS = groups(compose.CONF)

pytestmark = pytest.mark.usefixtures("no_launcher", "no_gpus")


def errors(*texts: str, is_multirun: bool = False, **places: Any) -> list[Error]:
    try:
        overrides.check(texts, Source(**places), is_multirun=is_multirun)
    except ConfigError as error:
        return error.errors
    return []


def codes(found: Sequence[Error]) -> list[str]:
    """The code and the key of each error, `"unknown optimizer.lrr"`."""
    return [f"{error.code} {error.key}" for error in found]


# -- what passes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice", [f"{group}={option}" for group, options in GROUPS.items() for option in options]
)
def test_group_options_pass(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # SLURM's tools are not on every machine
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(signatures, "is_there", lambda package: True)  # neither are all loggers
    needed = {
        "data=image_folder": ["data.root=here"],
        "data=list": ["data.file=here.csv"],
        "data=dataset": ["data.train={_target_:torch.utils.data.TensorDataset}"],
        "model=torchvision": ["model.name=resnet18"],
        "model=timm": ["model.name=resnet18.a1_in1k"],
        "experiment=finetune": ["data.root=here"],
        "experiment=probe": ["data.root=here"],
        "optimizer=newton": [
            "scheduler=constant",
            "model=torchvision",
            "model.name=resnet18",
            "model.head_only=true",
        ],
        "cluster=slurm": ["cluster.time_min=1", "cluster.warn_s=9", "strategy=cpu"],
    }.get(choice, [])
    if choice.startswith("benchmark="):  # which training does not read
        overrides.check([f"+{choice}"], is_multirun=False, is_benchmark=True)
    else:
        assert errors(choice, *needed, is_multirun=choice.startswith("search=")) == []


def test_experiments_with_debug_presets() -> None:
    pairs = [f"experiment={','.join(GROUPS['experiment'])}", f"debug={','.join(GROUPS['debug'])}"]
    assert errors(*pairs, "data=image_folder", "data.root=here", is_multirun=True) == []


MODULE = """
class Net:
    def __init__(self, *, in_channels, num_classes, depth: int): ...
class Greedy:
    def __init__(self, in_channels, num_classes, *, bias=True, **more): ...
class Gray:
    def __init__(self, *, num_classes): ...
def sgd(params, lr, **more): ...
def images(**more): ...
"""
EXPERIMENT = "# @package _global_\nmodel:\n  _target_: lockstep_custom.Greedy\n"
FILES = {
    "model/net": "_target_: lockstep_custom.Net\ndepth: 3\n",
    "model/gray": "_target_: lockstep_custom.Gray\n",
    "model/greedy": "_target_: lockstep_custom.Greedy\nwidth: 64\nstem: small\n",
    "model/bare": "width: 64\n",
    "experiment/changed": EXPERIMENT,
    "experiment/wider": f"{EXPERIMENT}  width: 32\n",
}
GREEDY = "model._target_=lockstep_custom.Greedy"
SGD = "optimizer._target_=lockstep_custom.sgd"
OF_EVERY_SOURCE = {
    "memory": "auto",
    "num_workers": "auto",
    "copy_to": None,
    "folds": None,
    "balance": 0.0,
    "near_duplicates": 0.1,
    "fold": 0,
    "shared_groups": "refuse",
    "validate_on_test": False,
    "drop_last": False,
}


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
        (["model=net", "model.depth=deep"], ["value model.depth=deep"]),
        (["model=net", "model.dept=4"], ["unknown model.dept"]),
        (["model=net", "~model.depth"], ["missing model.depth"]),
        (["model=net", "+model.num_classes=4"], ["conflict model.num_classes"]),
        (["model=gray"], ["unsupported model._target_=lockstep_custom.Gray"]),
        ([SGD], ["missing optimizer.lr"]),
    ],
)
def test_custom_target_parameters(custom: Path, texts: list[str], expected: list[str]) -> None:
    assert codes(errors(*texts, added=custom)) == expected


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
    group = {SGD: "optimizer", "data._target_=lockstep_custom.images": "data"}.get(
        texts[-1], "model"
    )
    section = config_file.to_tree(config)[group]
    assert {key: value for key, value in section.items() if not key.startswith("_")} == expected


# -- every error, with its key and its hint --------------------------------------------------------

ERRORS: list[tuple[str, str, str]] = [
    # unknown keys
    ("optimizer.lrr=1", "unknown optimizer.lrr", "optimizer.lr?"),
    ("optimizer.lr.x=1", "unknown optimizer.lr.x", "remove it"),
    ("optimzer.lr=1", "unknown optimzer.lr", "optimizer.lr?"),
    # not itself, which the tree has now
    ("+model.color=1", "unknown model.color", "ResNet18 has width"),
    ("+optimizer.color=1", "unknown optimizer.color", "SGD has lr"),
    ("lr=1", "unknown lr", "optimizer.lr=1?"),
    ("epochs=5", "unknown epochs", "trainer.max_epochs=5?"),
    ("batch_size=8", "unknown batch_size", "global_batch_size=8"),
    ("device=cpu", "unknown device", "strategy=cpu"),
    ("device=fast", "unknown device", "strategy=..."),
    ("batch_siz=8", "unknown batch_siz", "eval_batch_size or global_batch_size?"),
    ("model.foo=1", "unknown model.foo", "width, stem, shortcut_norm"),
    ("+extra=1", "unknown extra", ""),
    ("callbacks.timer.foo=1", "missing callbacks.timer.foo", "+callbacks.timer.foo=1"),
    ("+callbacks.timer.foo=1", "unknown callbacks.timer.foo", "duration, interval, verbose"),
    ("+callbacks.timr.duration=5", "missing callbacks.timr", "callbacks.timer?"),
    ("hydra.rundir=x", "failed hydra.rundir=x", ""),
    # + and ~
    ("optimizer.dampening=0.1", "missing optimizer.dampening", "+optimizer.dampening=0.1"),
    ("+seed=1", "failed +seed=1", ""),
    ("+experiment=cifar10", "failed +experiment=cifar10", ""),
    ("~name", "failed ~name", ""),
    ("~optimizer.lr=0.3", "failed ~optimizer.lr=0.3", ""),
    ("augment={a:1}", "failed augment={a:1}", "+augment={a:1}"),
    ("~seed", "missing seed", "+seed=... (int >= 0)"),
    ("~data", "missing data", "cifar10, dataset, digits"),
    # types and ranges
    ("seed=-1", "value seed=-1", "int >= 0"),
    ("optimizer.lr=fast", "value optimizer.lr=fast", "float > 0"),
    ("optimizer.lr=nan", "value optimizer.lr=NaN", "float > 0"),
    ("compile=reduce-overhead", "value compile=reduce-overhead", "true|false"),
    ("augment.flip=alternate", "value augment.flip=alternate", "true|false or alternating"),
    ("augment.erasing=1.5", "value augment.erasing=1.5", "0 <= float <= 1"),
    ("augment.rotation=270", "value augment.rotation=270", "0 <= float <= 180"),
    ("augment.color_jitter.hue=0.6", "value augment.color_jitter.hue=0.6", "0 <= float <= 0.5"),
    ("augment.color_jitter.hu=0.1", "unknown augment.color_jitter.hu", "augment.color_jitter.hue?"),
    ("augment.color_jitter=0.4", "value augment.color_jitter=0.4", "a section of settings"),
    ("augment.crop_border=constant", "value augment.crop_border=constant", "zeros|reflect"),
    ("trainer.devices=two", "value trainer.devices=two", "auto or int >= 1 or [int >= 0, ...]"),
    ("optimizer._partial_=false", "value optimizer._partial_=false", "true"),
    ("name=2024", "value name=2024", "\"name='2024'\""),
    ("name=a/b", "value name=a/b", "text of letters, digits and _.=+- or null"),
    ("+callbacks.x=5", "value callbacks.x=5", "a section with _target_ or null"),
    # options
    ("data=Digits", "unknown data=Digits", "digits?"),
    ("model=resnet50", "unknown model=resnet50", "model=torchvision model.name=resnet50"),
    ("model=ResNet50", "unknown model=ResNet50", "model=torchvision model.name=resnet50"),
    ("model.name=resnet50", "unknown model.name", "model=torchvision model.name=resnet50"),
    ("data.root=photos", "unknown data.root", "data=image_folder data.root=photos"),
    (
        "model=resnet50.a1_in1k",
        "unknown model=resnet50.a1_in1k",
        "model=timm model.name=resnet50.a1_in1k",
    ),
    ("model=resnet5", "unknown model=resnet5", "resnet18?"),
    ("data=null", "unknown data=null", "cifar10, dataset, digits"),
    ("data=[digits,nope]", "unknown data=[digits,nope]", "cifar10, dataset, digits"),
    ("data@elsewhere=digits", "failed data@elsewhere=digits", ""),
    ("hydra/launcher=basic", "unsupported hydra/launcher=basic", ""),
    # values that are not there
    ("data=image_folder", "missing data.root", "data.root=..."),
    ("name=${nope}", "missing name=${nope}", ""),
    ("seed=${oc.env:LOCKSTEP_NOT_SET}", "missing seed=${oc.env:LOCKSTEP_NOT_SET}", ""),
    # targets
    ("model._target_=nowhere.Net", "unknown model._target_=nowhere.Net", ""),
    ("optimizer._target_=SGD", "value optimizer._target_=SGD", "a name like package.module.Class"),
    (
        "optimizer._target_=torch.optim.SDG",
        "unknown optimizer._target_=torch.optim.SDG",
        "torch.optim.SGD?",
    ),
    ("model=torchvision", "missing model.name", "model.name=..."),
    # parts of the network
    ("+parameters.head.pattern='('", "value parameters.head.pattern=(", "a regular expression"),
    ("+parameters.head={lr_factor: 2}", "missing parameters.head.pattern", ""),
    (
        "+parameters.head={pattern: fc, rate: 2}",
        "unknown parameters.head.rate",
        "pattern, lr_factor",
    ),
    ("+scheduler._interval_=epoch", "conflict scheduler._interval_=epoch", ""),
    ("+scheduler._interval_=batch", "value scheduler._interval_=batch", "step|epoch"),
    ("scheduler.warmup_fraction=1", "value scheduler.warmup_fraction=1", "0 <= float < 1"),
    ("model.stem=tiny", "value model.stem=tiny", "small|imagenet"),
    (
        "callbacks.timer._target_=lightning.pytorch.callback.Timer",
        "unknown callbacks.timer._target_=lightning.pytorch.callback.Timer",
        "lightning.pytorch.callbacks.Timer?",
    ),
    ("+optimizer.params=1", "conflict optimizer.params", ""),
    (
        "+callbacks.stop._target_=lightning.pytorch.callbacks.EarlyStopping",
        "missing callbacks.stop.monitor",
        "",
    ),
    (
        "+callbacks.timer.duration={_target_: datetime.nope}",
        "unknown callbacks.timer.duration._target_=datetime.nope",
        "",
    ),
    ("callbacks.pictures.num_images=abc", "value callbacks.pictures.num_images=abc", "int"),
    ("+optimizer.maximize=2", "value optimizer.maximize=2", "true|false"),
    # one setting against another
    ("trainer.virtual_shards=99", "range trainer.virtual_shards=99", ""),
    ("trainer.accumulate_grad_batches=7", "range trainer.accumulate_grad_batches=7", ""),
    ("optimizer.momentum=0", "failed optimizer._target_=torch.optim.SGD", ""),
    ("+data.copy_to=x", "conflict data.copy_to=x", ""),
    ("data.val_fraction=0.9", "range data.val_fraction=0.9 and data.test_fraction=0.2", ""),
    (
        "callbacks.checkpoint.monitor=val/acc",
        "unknown callbacks.checkpoint.monitor=val/acc",
        "val/accuracy",
    ),
    (
        "callbacks.checkpoint.mode=min",
        "conflict callbacks.checkpoint.mode=min",
        "callbacks.checkpoint.mode=max",
    ),
    ("trainer.check_val_every_n_epoch=99", "range trainer.check_val_every_n_epoch=99", ""),
    (
        "+callbacks.last.train_time_interval={_target_: datetime.timedelta, hours: 1}",
        "unsupported callbacks.last.train_time_interval",
        "callbacks.last.every_n_train_steps",
    ),
    # not an override at all
    ("optimizer.lr", "value 'optimizer.lr'", "setting=value"),
    ("optimizer.lr=0.1,0.2", "conflict optimizer.lr=0.1,0.2", "-m"),
]


def callback(kind: str, more: str = "") -> str:
    return f"+callbacks.x={{_target_: lightning.pytorch.callbacks.{kind}{more}}}"


# callbacks of Lightning that work here, with the settings that they need
WORKING = {
    **dict.fromkeys(
        ("Callback", "Checkpoint", "LambdaCallback", "LearningRateMonitor", "ModelSummary"), ""
    ),
    **dict.fromkeys(("EMAWeightAveraging", "RichModelSummary", "WeightAveraging"), ""),
    "DeviceStatsMonitor": "",
    "EarlyStopping": ", monitor: val/loss",
    "ModelCheckpoint": ", every_n_epochs: 5",
    "OnExceptionCheckpoint": ", dirpath: x",
    "ThroughputMonitor": ", batch_size_fn: {_target_: hydra.utils.get_method, path: builtins.len}",
}


LIGHTNINGS = "+logger.mine={_target_:lightning.pytorch.loggers.WandbLogger}"
NOISE = "+augment.custom.noise={_target_:tests.support.transforms.crop,_partial_:true}"
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
ON_TEST = ("data.validate_on_test=true", "calibrate=false")

# errors of several overrides together
TOGETHER: list[tuple[Sequence[str], str, str]] = [
    (
        ["data=synthetic", "data.train_size=99999999999999999999"],
        "value data.train_size=99999999999999999999",
        "2,147,483,647",
    ),
    ([*IMAGES, "data.test_after=2026-06-31"], "value data.test_after=2026-06-31", "YYYY-MM-DD"),
    ([*HEAD, "model.head_only=each_epoch"], "conflict model.dropout=0.1", ""),
    (
        [*IMAGES, "data.fit=letterbox", "data.crop_percent=0.9"],
        "conflict data.crop_percent=0.9",
        "data.fit=letterbox",
    ),
    ([*IMAGES, "data.image_size=null", "data.fit=letterbox"], "conflict data.image_size=null", ""),
    (
        [*IMAGES, "data.image_size=null", "data.crop_percent=0.9"],
        "conflict data.image_size=null",
        "",
    ),
    (
        [*IMAGES, "augment.random_resized_crop.scale=[1.0,0.5]"],
        "value augment.random_resized_crop.scale=[1.0,0.5]",
        "[low, high]",
    ),
    (
        [*IMAGES, "augment.random_resized_crop.ratio=[1]"],
        "value augment.random_resized_crop.ratio=[1]",
        "[low, high]",
    ),
    (
        [*IMAGES, "augment.random_resized_crop.scale=[0.5,1]", "data.memory=device"],
        "conflict data.memory=device",
        "data.memory=auto",
    ),
    (
        [NOISE, "data.memory=device"],
        "conflict data.memory=device",
        "augment.custom.noise",
    ),
    ([NOISE, *PROBE], "conflict augment.custom.noise=tests.support.transforms.crop", ""),
    (
        ["+augment.custom.noise._target_=tests.support.transforms.crop"],
        "missing augment.custom.noise.image",
        "_partial_=true",
    ),
    (["+augment.custom.noise=3"], "value augment.custom.noise=3", ""),
    ([*IMAGES, "data.kept=true"], "unknown data.kept", ""),
    ([*IMAGES, "+data.kept=true"], "conflict data.kept", ""),
    ([*IMAGES, "+data.kept={}"], "conflict data.kept", ""),
    ([*IMAGES, "data.image_size=[224]"], "value data.image_size=[224]", "int >= 8"),
    ([*IMAGES, "data.crop_percent=0"], "value data.crop_percent=0", ""),
    (
        [*DATASET, "augment.random_resized_crop.scale=[0.5,1]"],
        "conflict augment.random_resized_crop.scale",
        "",
    ),
    ([*SCHEDULE, STEPS], "missing scheduler.step_size", ""),
    (
        [*SCHEDULE, CYCLE, "+scheduler.max_lr=0.1", "+scheduler.total_steps=9"],
        "conflict scheduler.total_steps",
        "",
    ),
    ([*SCHEDULE, PLATEAU, "+scheduler.mode=min"], "conflict scheduler.mode", ""),
    (
        [*SCHEDULE, STEPS, "+scheduler.step_size=3", "+scheduler._interval_=batch"],
        "value scheduler._interval_=batch",
        "",
    ),
    (["model=torchvision", "model.name=resnet19"], "unknown model.name=resnet19", "resnet18"),
    (["model=timm", "model.name=resnet19.a1_in1k"], "unknown model.name=resnet19.a1_in1k", ""),
    (
        ["model=timm", "model.name=resnet18", "model.pretrained=1"],
        "value model.pretrained=1",
        "true|false",
    ),
    (
        ["logger=wandb", "logger.wandb.projct=x"],
        "unknown logger.wandb.projct",
        "logger.wandb.project?",
    ),
    (
        ["optimizer._target_=torch.optim.LBFGS", *WITHOUT, *NO_DECAY],
        "unsupported optimizer._target_=torch.optim.LBFGS",
        "",
    ),
    ([callback("ModelCheckpoint", ", save_top_k: -1")], "conflict callbacks.x", "callbacks.last"),
    (["data.validate_on_test=true"], "conflict calibrate=true", "calibrate=false"),
    (
        [*ON_TEST, "callbacks=early_stopping"],
        "conflict callbacks.early_stopping=lightning.pytorch.callbacks.EarlyStopping",
        "callbacks.early_stopping=null",
    ),
    ([*ON_TEST, "search=tpe", "search.num_trials=2"], "conflict search", "-m optimizer.lr=0.1,0.2"),
    ([*ON_TEST, *SCHEDULE, PLATEAU], f"conflict {PLATEAU}", "scheduler=constant"),
    ([*ON_TEST, *PROBE], "conflict optimizer._target_=lockstep.models.Newton", "optimizer=sgd"),
    ([AVERAGED, "callbacks=ema"], "conflict callbacks.x", "callbacks.ema"),
    ([callback("LearningRateMonitor"), "logger=none"], "conflict callbacks.x", ""),
    ([callback("DeviceStatsMonitor"), "logger=none"], "conflict callbacks.x", ""),
    (
        [callback("TQDMProgressBar")],
        "unsupported callbacks.x._target_=lightning.pytorch.callbacks.TQDMProgressBar",
        "",
    ),
    (
        ["augment.trivial=true", "augment.rand_augment.num_ops=2"],
        "conflict augment.trivial=true and augment.rand_augment.num_ops=2",
        "",
    ),
    ([*SCALED, *WITHOUT], "missing scale_with_workers=true", "+optimizer.lr=..."),
    (
        ["data.balance=1", "task.class_weights=balanced"],
        "conflict data.balance=1 and task.class_weights=balanced",
        "use one of them",
    ),
    (
        ["data.balance=1", "trainer.overfit_batches=1"],
        "conflict trainer.overfit_batches=1",
        "data.balance=0",
    ),
    (["data.fold=5", "data.folds=5"], "range data.fold=5", "data.folds=5"),
    (["data.fold=1"], "range data.fold=1", "data.folds=null"),
]


@pytest.mark.parametrize(
    ("texts", "code", "part"),
    [*(((text,), code, part) for text, code, part in ERRORS), *TOGETHER],
)
def test_check_one_error(texts: Sequence[str], code: str, part: str) -> None:
    found = errors(*texts)
    assert codes(found) == [code]
    assert part in f"{found[0].problem}: {found[0].hint}"


# errors in their order, or none
SEVERAL: list[tuple[Sequence[str], list[str]]] = [
    (
        [*TIMM, "model.head_only=each_epoch"],
        ["conflict model.dropout=0.3", "conflict model.drop_path=0.1"],
    ),
    (
        # with another setting, and this machine
        ["trainer.accumulate_grad_batches=7", "trainer.devices=[0]"],
        ["range trainer.accumulate_grad_batches=7", "machine trainer.devices=[0]"],
    ),
    (
        ["+callbacks.timer.foo=1", "+optimizer.maximize=2", "+logger.x._target_=nowhere.Logger"],
        [
            "value optimizer.maximize=2",
            "unknown callbacks.timer.foo",
            "unknown logger.x._target_=nowhere.Logger",
        ],
    ),
    (["+callbacks.timer.foo=1", "+optimizer.maximize=2", "seed=-1"], ["value seed=-1"]),
    ([*PROBE, "model.head_only=each_epoch"], ["conflict optimizer=newton"]),
]
PASSING = [
    ["seed=99999999999999999999", "data=synthetic", "data.seed=20261122134500"],
    ["name=n${hydra:job.num}", "seed=${hydra:job.num}"],
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


@pytest.mark.parametrize(
    ("texts", "expected"), [*SEVERAL, *((texts, list[str]()) for texts in PASSING)]
)
def test_check_several_errors(texts: Sequence[str], expected: list[str]) -> None:
    assert codes(errors(*texts)) == expected


def test_lightning_callbacks_known() -> None:
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
        ("module._target_=tests.support.custom_modules.Plain", "module"),
    ],
)
def test_newton_refuses(text: str, name: str) -> None:
    lines = [str(error) for error in errors(*PROBE, text) if error.code == "conflict"]
    assert [line for line in lines if name in line and "optimizer=newton" in line], lines


@pytest.mark.parametrize(
    ("package", "texts", "keys"),
    [
        ("timm", ["model=timm", "model.name=resnet18"], ["model._target_=lockstep.models.timm"]),
        ("wandb", ["logger=wandb"], ["logger.wandb"]),
        ("wandb", [LIGHTNINGS], ["logger.mine"]),
        ("wandb", ["logger=wandb", LIGHTNINGS], ["logger.wandb", "logger.mine"]),
        ("wandb", ["logger=tensorboard"], []),
    ],
)
def test_missing_package(
    monkeypatch: pytest.MonkeyPatch, package: str, texts: list[str], keys: list[str]
) -> None:
    monkeypatch.setattr(signatures, "is_there", lambda name: name != package)
    found = errors(*texts)
    assert codes(found) == [f"not-installed {key}" for key in keys]
    assert [error for error in found if not error.hint.endswith(f"pip install {package}")] == []


def test_overfit_without_augmentation() -> None:
    assert config_of("debug=overfit", "experiment=cifar10").augment.used == {}


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
def test_broken_yaml_file(tmp_path: Path, name: str, text: str, parts: list[str]) -> None:
    conf = Path(shutil.copytree(compose.CONF, tmp_path / "conf"))
    (conf / name).write_text(text)
    (found,) = errors("experiment=x" if "experiment" in name else "seed=1", conf=conf)
    assert found.code == "failed"
    assert [part for part in parts if part not in str(found)] == []


# -- sweeps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["optimizer.lr=0.1,0.2", "seed=range(0,3)", "model=glob(resnet18*)"], []),
        (["optimizer.lr=0.1,x,-1"], ["value optimizer.lr=x", "value optimizer.lr=-1"]),
        (["optimizer.lr=0.1,0.2", "seed=x"], ["value seed=x"]),
        (["seed=range(-2,3)"], ["value seed=-2", "value seed=-1"]),
        (
            ["data.val_fraction=range(0.5,1.2,0.1)", "data.test_fraction=0.01"],
            [f"range data.val_fraction={each} and data.test_fraction=0.01" for each in (1.0, 1.1)],
        ),
        (
            ["optimizer.lrr=1,2", "optimizer.lr=0.1,-1", "seed=0,-1"],
            ["unknown optimizer.lrr", "value seed=-1", "value optimizer.lr=-1"],
        ),
        (["data=glob(*)"], ["missing data.train", "missing data.root", "missing data.file"]),
        (["data=digits,nope"], ["unknown data=nope"]),
        (["data=glob(x*)"], ["unknown data=glob(x*)"]),
        (["optimizer.lr=interval(0.1,1)"], ["conflict optimizer.lr=interval(0.1,1)"]),
    ],
)
def test_sweep_values(texts: list[str], expected: list[str]) -> None:
    assert codes(errors(*texts, is_multirun=True)) == expected


# -- resume ----------------------------------------------------------------------------------------


def resumed(saved: Config, *texts: str) -> Config:
    (config,) = overrides.check(texts, saved_config=saved).configs
    return config


def test_resume_free_settings() -> None:
    """A resume accepts what does not change the mathematics."""
    saved = config_of("experiment=cifar10", "seed=0", "optimizer.lr=0.3")
    texts = [
        "trainer.max_epochs=40",
        "trainer.devices=2",
        "strategy=cpu",
        "callbacks.timer=null",
        "logger=none",
        "+callbacks.last.verbose=true",
    ]
    config = resumed(saved, "resume=x", *texts)
    before, after = (dict(leaves(config_file.to_tree(each), "")) for each in (saved, config))
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    assert (
        changed.items()
        >= {"trainer.max_epochs": 40, "trainer.devices": 2, "strategy.name": "cpu"}.items()
    )
    assert (changed["callbacks.last.verbose"], config.callbacks["timer"], config.logger) == (
        True,
        None,
        {},
    )
    assert {key.partition(".")[0] for key in changed} == {
        "trainer",
        "strategy",
        "callbacks",
        "logger",
    }


@pytest.mark.parametrize(
    ("before", "texts", "expected"),
    [
        (
            ["optimizer.lr=0.1"],
            ["seed=1", "optimizer.lr=0.2", "data=synthetic", "trainer.limit_train_batches=3"],
            [
                "changed seed=1",
                "changed data._target_=lockstep.data.synthetic",
                "changed optimizer.lr=0.2",
                "changed trainer.limit_train_batches=3",
            ],
        ),
        *(
            ([], texts, [f"changed {text.lstrip('+')}" for text in texts])
            for texts in (
                ["trainer.gradient_clip_norm=1"],
                ["trainer.precision=float32"],
                ["trainer.check_val_every_n_epoch=2"],
                ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"],
                ["+callbacks.last.monitor=val/loss", "+callbacks.last.mode=min"],
            )
        ),
        (
            [],
            ["callbacks=ema"],
            [
                "changed callbacks.ema._target_=lockstep.callbacks.AveragedWeights",
                "changed callbacks.ema.multi_avg_fn._target_="
                "lockstep.callbacks.exponential_average",
            ],
        ),
        (
            ["experiment=cifar10", "debug=fast"],
            ["experiment=fashion_mnist"],
            [
                "changed augment.crop_padding=0",
                "changed augment.flip=false",
                "changed augment.cutout=0",
                "changed data._target_=lockstep.data.fashion_mnist",
                "changed trainer.limit_train_batches=null",
                "changed trainer.limit_val_batches=null",
                "changed trainer.limit_test_batches=null",
            ],
        ),
        (
            ["optimizer=adamw"],
            ["data.num_worker=1", "optimizer.eps=1.0", "optimizer.momentum=0.5"],
            [
                "unknown data.num_worker",
                "missing optimizer.momentum",
                "changed optimizer.eps=1.0",
                "changed optimizer.momentum=0.5",
            ],
        ),
    ],
)
def test_resume_refuses_changes(before: list[str], texts: list[str], expected: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resumed(config_of(*before), "resume=x", *texts)
    assert codes(caught.value.errors) == expected


def test_resume_keeps_options() -> None:
    saved = config_of("data=image_folder", "data.root=x", "optimizer=adamw", "scheduler=cosine")
    changed = {"num_workers": 1, "memory": "stream", "cache": None, "root": "y"}
    typed = ["data.num_workers=1", "data.memory=stream", "data.cache=null", "data.root=y"]
    assert resumed(saved, "resume=x", *typed).data.model_dump() == saved.data.model_dump() | changed


def test_resume_saved_interpolations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of the saved run are not interpolated again."""
    monkeypatch.setenv("FOLDER", "elsewhere")
    saved = config_of("data=image_folder", "data.root=x", "cluster=none")
    for root in ("${oc.env:FOLDER}", "a\\${seed}", "${", "\\\\${nothing}"):
        here = saved.model_copy(update={"data": saved.data.model_copy(update={"root": root})})
        data = resumed(here, "resume=x", "data.num_workers=1").data
        assert data.root == root  # pyright: ignore[reportAttributeAccessIssue]
    data = resumed(saved, "resume=x", "data.root=${oc.env:FOLDER}").data
    assert data.root == "elsewhere"  # pyright: ignore[reportAttributeAccessIssue]


def test_resume_same_command() -> None:
    texts = ["experiment=cifar10", "debug=fast", "optimizer.lr=0.3", "seed=0"]
    saved = config_of(*texts)
    assert resumed(saved, *texts, "resume=x") == saved


def test_resume_auto_preprocessing() -> None:
    """`auto` means the preprocessing that the run has."""
    texts = ["data=image_folder", "data.root=x"]
    saved = build.resolve_config(config_of(*texts))
    assert resumed(saved, *texts, "resume=x") == saved
    with pytest.raises(ConfigError, match=r"this run has 1\.0") as caught:
        resumed(saved, *texts, "data.crop_percent=0.5", "resume=x")
    assert codes(caught.value.errors) == ["changed data.crop_percent=0.5"]


# -- what a configuration is -----------------------------------------------------------------------


def test_scale_with_workers() -> None:
    config = config_of(
        "scale_with_workers=true", "strategy=cpu", "trainer.devices=3", "optimizer.lr=0.1"
    )
    scaled = build.resolve_config(config)
    assert (scaled.global_batch_size, scaled.optimizer.lr) == (
        3 * config.global_batch_size,
        pytest.approx(0.3),
    )
    assert build.resolve_config(scaled) == scaled
    assert build.resolve_config(config_of("trainer.devices=3")) == config_of("trainer.devices=3")


def test_fingerprint() -> None:
    prints = [
        config_file.fingerprint(config_of(*texts))
        for texts in ([], ["seed=0"], ["seed=1"], ["model.width=8"])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    config_file.save(config_of("optimizer=adamw", "name='1e5'", "trainer.worker_weights=[1]"), path)
    return path


def test_save_and_load(saved: Path) -> None:
    config = config_of("optimizer=adamw", "name='1e5'", "trainer.worker_weights=[1]")
    assert config_file.load(saved) == config
    assert config_file.fingerprint(config_file.load(saved)) == config_file.fingerprint(config)


def test_load_invalid_config(saved: Path) -> None:
    tree = yaml.safe_load(saved.read_text())
    tree["trainer"]["old_key"] = tree["trainer"].pop("deterministic")
    wrong = [f"missing {saved}: trainer.deterministic", f"unknown {saved}: trainer.old_key"]
    damaged = [f"damaged {saved}"]
    for text, expected in ((yaml.safe_dump(tree), wrong), ("- 1\n", damaged), ("a: [\n", damaged)):
        saved.write_text(text)
        with pytest.raises(ConfigError) as caught:
            config_file.load(saved)
        assert sorted(codes(caught.value.errors)) == expected


def test_resume_search_trial() -> None:
    trial = overrides.plan(
        ["search=tpe", "optimizer.lr=interval(0.01,1)"], is_multirun=True
    ).configs[0]
    (again,) = overrides.plan(["trainer.max_epochs=9"], saved_config=trial).configs
    assert (again.search, again.trainer.max_epochs) == (trial.search, 9)


def test_dry_run_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    job = ["cluster=slurm", "cluster.time_min=60", "trainer.devices=1"]
    assert codes(errors(*job)) == ["not-installed cluster=slurm"]
    assert config_of(*job, "dry_run=true").dry_run


# -- names of other frameworks ---------------------------------------------------------------------

ALL_GROUPS = groups(*compose.DEFAULT.folders)
HINTS = [
    *FOREIGN_NAMES.items(),
    # in any case
    ("ExecutionEnvironment=parallel-cpu", "write strategy=cpu trainer.devices=..."),
    ("MiniBatchSize=256", "write global_batch_size=256"),
    ("Shuffle=every-epoch", "remove it: training images are shuffled in each epoch"),
]
NAMES = {name: hint for foreign, hint in HINTS for name in foreign.split()}
SETTINGS = [name for name in NAMES if "=" in name or "." in name]


@pytest.mark.parametrize("line", list(FOREIGN_NAMES.values()))
def test_foreign_name_suggestion(line: str) -> None:
    words = [word for word in line.split() if "=" in word]
    choices = [word for word in words if "..." not in word and word.partition("=")[0] in ALL_GROUPS]
    config = composed_once(choices, with_hydra=True)
    keys = dict(leaves(OmegaConf.to_container(config, resolve=False), ""))
    assert {word.partition("=")[0] for word in words} <= {*keys, *ALL_GROUPS}


@pytest.mark.parametrize("typed", SETTINGS)
def test_foreign_setting_refused(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 1)
    (error,) = errors(typed if "=" in typed else f"{typed}=3")
    assert error.hint in (NAMES[typed], NAMES[typed].replace("...", "3"))


def test_foreign_names_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 1)
    names = [name for name in NAMES if name not in SETTINGS]
    found = errors(*(f"trainer.{name}=3" for name in names))
    for name, error in zip(names, found, strict=True):
        endings = (NAMES[name], NAMES[name].replace("...", "3"), "model=timm model.name=3")
        assert error.hint.endswith(endings)
