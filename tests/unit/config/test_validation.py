"""The check of a configuration: valid ones, the message of every error, and saved ones."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch.callbacks
import pytest
import yaml

from lockstep.config import build, overrides
from lockstep.config.checks import callback_rules, signatures
from lockstep.config.checks.validation import check_config
from lockstep.config.composing import compose
from lockstep.config.composing.compose import Source, compose_config, groups
from lockstep.config.composing.sweep_space import MAX_CHECKED
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import CALLED, Config, fields
from lockstep.system import hardware, processes
from lockstep.system.trees import leaves
from tests.support.composed import composed_once, config_of
from tests.support.harness import ROOT, command, environ

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


def errors(*texts: str, is_multirun: bool = False, **places: Any) -> list[str]:
    try:
        overrides.check(texts, Source(**places), is_multirun=is_multirun)
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("trainer.devices", ("strategy=cpu",)),
        ("data.train_size", ("data=synthetic",)),
        ("search.num_trials", ("search=random",)),
    ],
)
def test_a_number_above_the_largest_one_is_an_error(key: str, more: tuple[str, ...]) -> None:
    (error,) = (error for error in errors(*more, f"{key}=99999999999999999999") if error.startswith(key))
    assert error == f"{key}=99999999999999999999 is too large: 2,147,483,647 at most"


def test_a_day_that_does_not_exist_is_an_error() -> None:
    (error,) = errors("data=image_folder", "data.root=x", "data.test_after=2026-06-31")
    assert error == "data.test_after=2026-06-31 must be YYYY-MM-DD or null, as image_folder has it"


def test_a_seed_may_be_any_whole_number() -> None:
    assert errors("seed=99999999999999999999", "data=synthetic", "data.seed=20261122134500") == []


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


def test_a_network_of_the_user_passes_with_the_parameters_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lockstep_users.py").write_text(
        "class Net:\n    def __init__(self, *, in_channels, num_classes, depth: int): ...\n"
        "class Grey:\n    def __init__(self, *, num_classes): ...\n"
    )
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "net.yaml").write_text("_target_: lockstep_users.Net\ndepth: 3\n")
    (tmp_path / "conf" / "model" / "grey.yaml").write_text("_target_: lockstep_users.Grey\n")
    added = tmp_path / "conf"
    assert errors("model=net", "model.depth=4", added=added) == []
    assert errors("model=net", "model.depth=deep", added=added) == ["model.depth=deep must be int, as Net has it"]
    assert errors("model=net", "model.dept=4", added=added) == [
        "model.dept is not a setting: did you mean model.depth?"
    ]
    assert errors("model=net", "~model.depth", added=added) == [
        "model.depth is missing: Net needs it, add +model.depth=..."
    ]
    assert errors("model=net", "+model.num_classes=4", added=added) == [
        "model.num_classes is set by the training itself: remove it"
    ]
    assert errors("model=grey", added=added) == [
        "model._target_=lockstep_users.Grey does not take in_channels from the training"
    ]


@pytest.fixture
def greedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of configurations, with a network and an optimizer that take any keyword."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lockstep_greedy.py").write_text(
        "class Net:\n    def __init__(self, in_channels, num_classes, *, bias=True, **more): ...\n"
        "def sgd(params, lr, **more): ...\n"
        "def images(**more): ...\n"
    )
    for folder in ("model", "experiment"):
        (tmp_path / "conf" / folder).mkdir(parents=True)
    (tmp_path / "conf" / "model" / "greedy.yaml").write_text("_target_: lockstep_greedy.Net\nwidth: 64\nstem: small\n")
    experiment = "# @package _global_\nmodel:\n  _target_: lockstep_greedy.Net\n"
    (tmp_path / "conf" / "experiment" / "changed.yaml").write_text(experiment)
    (tmp_path / "conf" / "experiment" / "wider.yaml").write_text(f"{experiment}  width: 32\n")
    (tmp_path / "conf" / "model" / "bare.yaml").write_text("width: 64\n")
    return tmp_path / "conf"


def section_of(group: str, *texts: str, added: Path) -> dict[str, Any]:
    (config,) = overrides.check(texts, Source(added=added)).configs
    return {key: value for key, value in config_file.to_tree(config)[group].items() if not key.startswith("_")}


@pytest.mark.parametrize("text", ["model._target_=lockstep_greedy.Net", "experiment=changed"])
def test_a_custom_target_starts_from_an_empty_section(greedy: Path, text: str) -> None:
    assert section_of("model", text, added=greedy) == {}
    typed = ("model.width=64", "+model.depth=3")  # Hydra composes with the option, which has a width
    assert section_of("model", text, *typed, added=greedy) == {"width": 64, "depth": 3}
    assert section_of("model", text, "model=resnet18_d2l", "~model.width", added=greedy) == {}


def test_an_experiment_writes_keys_of_its_own_target(greedy: Path) -> None:
    assert section_of("model", "experiment=wider", added=greedy) == {"width": 32}
    assert section_of("model", "experiment=wider", "model.width=16", added=greedy) == {"width": 16}


def test_a_custom_optimizer_has_no_key_of_another_one(greedy: Path) -> None:
    assert section_of("optimizer", "optimizer._target_=lockstep_greedy.sgd", "optimizer.lr=1", added=greedy) == {
        "lr": 1
    }
    assert errors("optimizer._target_=lockstep_greedy.sgd", added=greedy) == [
        "optimizer.lr is missing: sgd needs it, add +optimizer.lr=..."
    ]


def test_a_custom_source_has_the_keys_of_every_source(greedy: Path) -> None:
    expected = {"memory": "auto", "num_workers": "auto", "copy_to": None, "x": 1}
    expected |= {"balance": 0.0, "near_duplicates": 0.1, "folds": None, "fold": 0, "shared_groups": "refuse"}
    assert section_of("data", "data._target_=lockstep_greedy.images", "+data.x=1", added=greedy) == expected


def test_a_target_in_a_file_of_its_own_has_the_keys_it_has_there(greedy: Path) -> None:
    assert section_of("model", "model=greedy", added=greedy) == {"width": 64, "stem": "small"}
    assert section_of("model", "model=bare", "+model._target_=lockstep_greedy.Net", added=greedy) == {}


def test_values_that_only_hydra_knows_are_left_to_the_job() -> None:
    assert errors("name=${hydra:job.num}", "callbacks.pictures.num_images=${hydra:job.num}") == []


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
    own = {*section} - of_the_run
    if group == "optimizer":
        assert own <= {*signature.names} - supplied  # the others of torch's are added with +
    else:
        assert own == {*signature.names} - supplied - of_the_run


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


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_names_its_key_and_a_fix(text: str) -> None:
    found = errors(text)
    assert len(found) == 1
    assert "\n" not in found[0]
    for part in ERRORS[text]:
        assert part in found[0]


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_a_probe_has_any_task(task: str) -> None:
    assert errors("experiment=probe", "data.root=here", f"task={task}") == []


@pytest.mark.parametrize("head_only", ["false", "each_epoch"])
def test_dropout_is_refused_of_a_frozen_network_alone(head_only: str) -> None:
    network = ("model=torchvision", "model.name=efficientnet_b0", "model.dropout=0.1", f"model.head_only={head_only}")
    problem = "model.dropout=0.1 has no effect below the last layer with model.head_only: remove one of them"
    assert errors(*network) == ([] if head_only == "false" else [problem])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "model.head_only=false",
            "optimizer=newton solves the last layer of a frozen network: set model.head_only=true",
        ),
        ("model.head_only=each_epoch", "set model.head_only=true"),
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
def test_what_a_solved_head_has_no_use_for_is_refused(text: str, name: str) -> None:
    found = errors("experiment=probe", "data.root=here", text)
    assert [line for line in found if name in line and "optimizer=newton" in line], found


def test_dropout_and_stochastic_depth_are_refused_only_where_the_head_alone_is_trained() -> None:
    words = "model=timm", "model.name=test_resnet", "model.dropout=0.3", "model.drop_path=0.1"
    assert errors(*words) == errors(*words, "model.head_only=false") == []
    found = errors(*words, "model.head_only=each_epoch")
    assert [line.partition(" has no effect")[0] for line in found] == ["model.dropout=0.3", "model.drop_path=0.1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["data.image_size=[160,224]", "data.crop_percent=0.9", "data.interpolation=bicubic"], []),
        (["data.image_size=224", "data.fit=letterbox", "data.crop_percent=1"], []),
        (["data.fit=letterbox", "data.crop_percent=0.9"], ["data.fit=letterbox keeps the whole image"]),
        (["data.image_size=null", "data.fit=letterbox"], ["data.image_size=null keeps images as they are"]),
        (["data.image_size=null", "data.crop_percent=0.9"], ["data.image_size=null keeps images as they are"]),
        (["augment.random_resized_crop.scale=[0.08,1.0]"], []),
        (["augment.random_resized_crop.scale=[1.0,0.5]"], ["must be [low, high], 0 < low <= high <= 1 or null"]),
        (["augment.random_resized_crop.ratio=[1]"], ["must be [low, high], 0 < low <= high"]),
        (["augment.random_resized_crop.scale=[0.5,1]", "data.memory=device"], ["crops in host memory: use data.mem"]),
        (["data.kept=true"], ["data.kept is not a setting"]),
        (["+data.kept=true"], ["data.kept is set by the training itself: remove it"]),
        (["+data.kept={}"], ["data.kept is set by the training itself: remove it"]),
        (["data.image_size=[224]"], ["data.image_size=[224] must be int >= 8 or [height, width] or null"]),
        (["data.crop_percent=0"], ["data.crop_percent=0 must be auto or 0 < float <= 1"]),
    ],
)
def test_the_view_of_an_image_is_checked(words: list[str], expected: list[str]) -> None:
    found = errors("data=image_folder", "data.root=images", *words)
    assert len(found) == len(expected)
    assert all(text in error for text, error in zip(expected, found, strict=True))


def test_a_dataset_is_cropped_by_its_own_transforms() -> None:
    texts = ("data=dataset", "data.train={_target_:torch.utils.data.TensorDataset}")
    (error,) = errors(*texts, "augment.random_resized_crop.scale=[0.5,1]")
    assert "random_resized_crop.scale is not for data=dataset" in error
    assert errors(*texts) == []


def test_a_parameter_of_the_class_can_be_added_with_plus() -> None:
    assert errors("+optimizer.dampening=0.1", "optimizer.nesterov=false", "+callbacks.timer.interval=epoch") == []


def schedule(name: str, *more: str) -> list[str]:
    return errors("scheduler=constant", f"scheduler._target_=torch.optim.lr_scheduler.{name}", *more)


def test_a_schedule_of_torchs_gets_what_it_asks_for_and_no_more() -> None:
    assert schedule("CosineAnnealingWarmRestarts", "+scheduler.T_0=3", "+scheduler._interval_=epoch") == []
    assert schedule("OneCycleLR", "+scheduler.max_lr=0.1") == []
    assert schedule("ReduceLROnPlateau", "+scheduler.patience=3") == []
    assert schedule("StepLR") == ["scheduler.step_size is missing: StepLR needs it, add +scheduler.step_size=..."]
    (error,) = schedule("OneCycleLR", "+scheduler.max_lr=0.1", "+scheduler.total_steps=9")
    assert error == "scheduler.total_steps is set by the training itself: remove it"
    (error,) = schedule("ReduceLROnPlateau", "+scheduler.mode=min")
    assert error == "scheduler.mode is set by the training itself: remove it"
    (error,) = schedule("StepLR", "+scheduler.step_size=3", "+scheduler._interval_=batch")
    assert error == "scheduler._interval_=batch must be step|epoch"


def test_an_unknown_network_of_a_library_is_reported_with_near_names(monkeypatch: pytest.MonkeyPatch) -> None:
    (error,) = errors("model=torchvision", "model.name=resnet19")
    assert error.startswith("model.name=resnet19 is not a network of torchvision: did you mean resnet18 or ")
    (error,) = errors("model=timm", "model.name=resnet19.a1_in1k")
    assert error.startswith("model.name=resnet19.a1_in1k is not a network of timm: did you mean ")
    (error,) = errors("model=timm", "model.name=resnet18", "model.pretrained=1")
    assert error == "model.pretrained=1 must be true|false or a path, as timm has it"
    monkeypatch.setattr(signatures, "is_there", lambda package: package != "timm")
    (error,) = errors("model=timm", "model.name=resnet18")
    assert error.endswith("needs the package timm: install it with: pip install timm")


def test_a_logger_whose_package_is_not_installed_is_reported_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors("logger=wandb") == errors("logger=[wandb,tensorboard]") == []
    assert errors("logger=wandb", "logger.wandb.projct=x") == [
        "logger.wandb.projct is not a setting: did you mean logger.wandb.project?"
    ]
    monkeypatch.setattr(signatures, "is_there", lambda package: package != "wandb")
    hint = "needs the package wandb: install it with: pip install wandb"
    assert errors("logger=wandb") == [f"logger.wandb {hint}"]
    lightnings = "+logger.mine={_target_:lightning.pytorch.loggers.WandbLogger}"
    assert errors(lightnings) == [f"logger.mine {hint}"]
    assert errors("logger=wandb", lightnings) == [f"logger.wandb {hint}", f"logger.mine {hint}"]
    assert errors("logger=tensorboard") == []


@pytest.mark.parametrize("name", ["LBFGS", "RMSprop"])
def test_an_optimizer_that_computes_the_loss_again_is_refused(name: str) -> None:
    removed = [f"~optimizer.{key}" for key in ("momentum", "nesterov", "weight_decay", "fused")]
    found = errors(f"optimizer._target_=torch.optim.{name}", *removed)
    expected = f"optimizer._target_=torch.optim.{name} computes the loss several times a step: choose another"
    assert [error.startswith(expected) for error in found] == ([True] if name == "LBFGS" else [])


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


def test_of_lightnings_callbacks_it_is_known_which_work() -> None:
    (error,) = errors(callback("TQDMProgressBar"))
    assert error.endswith(
        "TQDMProgressBar does not work in Lockstep's training: " + callback_rules.INSTEAD["TQDMProgressBar"]
    )
    assert sorted({*WORKING, *callback_rules.INSTEAD, "Timer"}) == sorted(lightning.pytorch.callbacks.__all__)


@pytest.mark.parametrize("kind", WORKING)
def test_a_callback_of_lightnings_that_works_passes(kind: str) -> None:
    assert errors(callback(kind, WORKING[kind])) == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (callback("ModelCheckpoint", ", save_top_k: -1"), "callbacks.last"),
        ("+callbacks.x={_target_: lockstep.callbacks.AveragedWeights, multi_avg_fn: null}", "callbacks.ema"),
    ],
)
def test_two_callbacks_whose_states_lightning_cannot_tell_apart_are_refused(text: str, kept: str) -> None:
    group = kept.removeprefix("callbacks.")
    (error,) = errors(text, f"callbacks={group if group in ('early_stopping', 'ema') else 'default'}")
    assert error.startswith("callbacks.x is a second ")
    assert error.endswith(f"that Lightning cannot distinguish from {kept}: change {kept} instead")


@pytest.mark.parametrize("kind", ["LearningRateMonitor", "DeviceStatsMonitor"])
def test_without_a_logger_nothing_needs_one(kind: str) -> None:
    assert errors("logger=none") == []
    monitor = callback(kind, WORKING[kind])
    assert errors(monitor) == []
    (error,) = errors(monitor, "logger=none")
    assert error.startswith("callbacks.x needs a logger")


def test_overfitting_switches_every_augmentation_off() -> None:
    augment = config_of("debug=overfit", "experiment=cifar10").augment
    assert augment.used == {}
    named = yaml.safe_load((ROOT / "conf" / "debug" / "overfit.yaml").read_text())["augment"]
    qualifiers = {"crop_border", "cutout_inside", "rand_augment.magnitude", "random_resized_crop.ratio"}
    assert dict(leaves(named, "")).keys() == dict(leaves(augment.model_dump(), "")).keys() - qualifiers


def test_two_sets_of_the_same_operations_are_refused() -> None:
    assert errors("augment.trivial=true", "augment.rand_augment.num_ops=2") == [
        "augment.trivial=true and augment.rand_augment.num_ops=2 are the same operations: use one"
    ]


def test_scaling_needs_a_learning_rate_to_scale() -> None:
    texts = ["scale_with_workers=true", "optimizer._target_=torch.optim.Adagrad"]
    texts += [f"~optimizer.{name}" for name in ("lr", "momentum", "nesterov")]
    (error,) = errors(*texts)
    assert error.startswith("scale_with_workers=true multiplies optimizer.lr")
    assert "add +optimizer.lr=..." in error


def test_all_errors_come_in_one_message_and_none_twice() -> None:
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
    for key in keys:
        assert sum(key in error for error in found) == 1, key
    conflicts = errors("trainer.accumulate_grad_batches=7", "trainer.devices=[0]")  # with each other, and this machine
    assert [error.partition("=")[0] for error in conflicts] == ["trainer.accumulate_grad_batches", "trainer.devices"]


def test_all_errors_of_what_is_called_come_in_one_message_where_there_are_no_others() -> None:
    texts = ["+callbacks.timer.foo=1", "+optimizer.maximize=2", "+logger.x._target_=nowhere.Logger"]
    expected = ["optimizer.maximize=2 must", "callbacks.timer.foo is not a setting", "logger.x._target_=nowhere.Logger"]
    for error, start in zip(errors(*texts), expected, strict=True):
        assert error.startswith(start)
    assert errors(*texts, "seed=-1") == ["seed=-1 must be int >= 0"]


def test_a_wrong_line_in_a_yaml_file_is_found_like_one_on_the_command_line(conf: Path) -> None:
    with (conf / "trainer" / "default.yaml").open("a") as file:
        file.write("max_epoch: 3\n")
    callbacks = conf / "callbacks" / "default.yaml"
    callbacks.write_text(callbacks.read_text().replace("timer:\n", "timer:\n  duraton: 3\n"))
    found = errors("seed=x", conf=conf)
    assert sorted(found) == [
        "seed=x must be int >= 0",
        "trainer.max_epoch is not a setting: did you mean trainer.max_epochs?",
    ]
    assert errors("~trainer.max_epoch", conf=conf) == [
        "callbacks.timer.duraton is not a setting: did you mean callbacks.timer.duration?"
    ]


def test_a_broken_yaml_file_is_named_with_its_line(conf: Path) -> None:
    (conf / "experiment" / "broken.yaml").write_text("trainer: [\n")
    (conf / "experiment" / "lost.yaml").write_text("# @package _global_\ndefaults:\n  - override /data: nope\n")
    (found,) = errors("experiment=broken", conf=conf)
    assert "broken.yaml" in found
    assert "line 2" in found
    (found,) = errors("experiment=lost", conf=conf)
    assert found.startswith("experiment=lost: ")
    assert "Could not find 'data/nope' Available options in 'data': cifar10 dataset digits" in found
    (conf / "config.yaml").write_text("trainer: [\n")
    (found,) = errors("seed=1", conf=conf)
    assert "config.yaml" in found


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_every_value_of_a_sweep_is_tried() -> None:
    def swept(*texts: str) -> list[str]:
        return errors(*texts, is_multirun=True)

    assert swept("optimizer.lr=0.1,0.2", "seed=range(0,3)", "model=glob(resnet18*)") == []
    wanted = "must be float > 0 or null"
    assert swept("optimizer.lr=0.1,x,-1") == [f"optimizer.lr=x {wanted}", f"optimizer.lr=-1 {wanted}"]
    assert swept("optimizer.lr=0.1,0.2", "seed=x") == ["seed=x must be int >= 0"]
    assert swept("seed=range(-2,3)") == ["seed=-2 must be int >= 0"]
    assert swept("data.val_fraction=range(0.5,1.2,0.1)", "data.test_fraction=0.01") == [
        "data.val_fraction=1.1 and data.test_fraction=0.01 leave nothing to train on: use smaller ones"
    ]
    needed = ("train", "root", "file")  # of dataset, image_folder and list
    assert swept("data=glob(*)") == [f"data.{key} has no value: add data.{key}=..." for key in needed]
    assert swept("data=digits,nope")[0].startswith("data=nope is not an option: choose from")
    assert swept("data=glob(x*)")[0].startswith("data=glob(x*) matches no option: choose from cifar10")
    assert "list them, optimizer.lr=0.1,...,1.0" in swept("optimizer.lr=interval(0.1,1)")[0]


def test_of_a_large_sweep_the_first_jobs_are_checked() -> None:
    wide = f"seed={','.join(map(str, range(200)))}"
    assert errors(wide, "global_batch_size=64,0", is_multirun=True) == ["global_batch_size=0 must be int >= 1"]
    plan = overrides.check([wide], is_multirun=True)
    assert len(plan.configs) == MAX_CHECKED


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_both_errors_and_exits_with_code_2() -> None:
    run = subprocess.run(
        command("optimizer.lrr=1", "seed=-1"), env=environ(), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.splitlines() == [
        "config error: optimizer.lrr is not a setting: did you mean optimizer.lr?",
        "config error: seed=-1 must be int >= 0",
        "2 errors; nothing was started. See --help.",
    ]


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
    assert (config.trainer.max_epochs, config.trainer.devices, config.strategy.name) == (40, 2, "cpu")
    assert config.callbacks["timer"] is None
    last = config.callbacks["last"]
    assert last is not None
    assert last.arguments()["verbose"] is True
    assert config.logger == {}
    assert config.resume is None
    for name in ("seed", "data", "model", "optimizer", "scheduler", "augment", "global_batch_size"):
        assert getattr(config, name) == getattr(saved, name)


def test_a_resume_refuses_another_run_with_every_error() -> None:
    saved = config_of("optimizer.lr=0.1")
    texts = ["seed=1", "optimizer.lr=0.2", "data=synthetic", "trainer.limit_train_batches=3", "trainer.loads=[1,1]"]
    with pytest.raises(ConfigError) as caught:
        resumed(saved, "resume=x", *texts)
    found = str(caught.value).splitlines()
    starts = ["seed=1 ", "data._target_=", "optimizer.lr=0.2 cannot change on resume, this run has 0.1: remove it"]
    starts += ["trainer.limit_train_batches=3 ", "trainer.loads=[1,1] has 2 entries for 1 worker"]
    assert len(found) == len(starts)
    for error, start in zip(found, starts, strict=True):
        assert error.startswith(start)


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (
            ["trainer.gradient_clip_norm=1"],
            "trainer.gradient_clip_norm=1 cannot change on resume, this run has null:",
        ),
        (["trainer.precision=float32"], "trainer.precision=float32 cannot change on resume, this run has auto:"),
        (["trainer.check_val_every_n_epoch=2"], "trainer.check_val_every_n_epoch=2 cannot"),
        (["callbacks=ema"], "callbacks.ema._target_=lockstep.callbacks.AveragedWeights cannot"),
        (
            ["callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"],
            "callbacks.checkpoint.monitor=val/loss",
        ),
        (["+callbacks.last.monitor=val/loss", "+callbacks.last.mode=min"], "callbacks.last.monitor=val/loss cannot"),
    ],
)
def test_a_resume_refuses_what_changes_weights_or_the_choice_of_the_best(texts: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resumed(config_of(), "resume=x", *texts)
    assert str(caught.value).startswith(error)
    assert str(caught.value).endswith("remove it, or start a new run")


def test_overrides_of_a_resume_apply_to_the_options_of_the_run() -> None:
    saved = config_of("data=image_folder", "data.root=x", "optimizer=adamw", "scheduler=cosine")
    config = resumed(saved, "resume=x", "data.num_workers=1", "data.memory=stream", "data.cache=null", "data.root=y")
    changed = {"num_workers": 1, "memory": "stream", "cache": None, "root": "y"}
    assert config.data.model_dump() == saved.data.model_dump() | changed
    with pytest.raises(ConfigError) as caught:
        resumed(saved, "resume=x", "data.num_worker=1", "optimizer.momentum=0.5", "optimizer.eps=1.0")
    assert str(caught.value).startswith("data.num_worker is not a setting: did you mean data.num_workers?")
    assert any("optimizer.momentum" in error for error in str(caught.value).splitlines())
    assert "optimizer.eps=1.0 cannot change on resume, this run has 1e-08" in str(caught.value)


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
    with pytest.raises(ConfigError, match=r"augment\.cutout=0 cannot change on resume, this run has 8"):
        resumed(saved, "experiment=fashion_mnist", "resume=x")


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
    assert scaled.global_batch_size == 3 * config.global_batch_size
    assert scaled.optimizer.lr == pytest.approx(3 * 0.1)
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
    assert check_config(compose_config([])) != config


def test_a_trial_of_an_earlier_search_of_several_objectives_is_read(tmp_path: Path) -> None:
    path, config = tmp_path / "config.yaml", config_of("search=tpe")
    config_file.save(config, path)
    tree = yaml.safe_load(path.read_text())
    tree["search"]["objectives"] = {"val/loss": "min", "training_s": "min"}
    path.write_text(yaml.safe_dump(tree))
    assert config_file.load(path) == config


def test_a_saved_configuration_that_does_not_fit_is_reported_with_its_path(saved: Path) -> None:
    tree = yaml.safe_load(saved.read_text())
    tree["trainer"]["old_key"] = tree["trainer"].pop("deterministic")
    saved.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as caught:
        config_file.load(saved)
    assert all(error.startswith(f"{saved}: ") for error in str(caught.value).splitlines())
    assert "trainer.deterministic is missing" in str(caught.value)
    assert "trainer.old_key is not a setting" in str(caught.value)
    for text, reason in (("- 1\n", "contains no configuration"), ("a: [\n", "cannot be read")):
        saved.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            config_file.load(saved)


def test_a_trial_of_a_search_is_evaluated_and_resumed_as_any_run() -> None:
    trial = overrides.plan(["search=tpe", "optimizer.lr=interval(0.01,1)"], is_multirun=True).configs[0]
    (again,) = overrides.plan(["trainer.max_epochs=9"], saved=trial).configs
    assert (again.search, again.trainer.max_epochs) == (trial.search, 9)
