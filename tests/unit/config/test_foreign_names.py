"""Settings as other projects have them: each is one fault, whose cure can be typed as it stands."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.config import overrides
from lockstep.config.compose import CONF, Source
from lockstep.config.faults import ConfigError
from lockstep.config.foreign_names import CURES, cure
from lockstep.system import hardware
from tests.support.composed import composed_once

# values that a cure takes over, by the start of what it writes them behind; elsewhere 3
VALUES = {
    "init_from": "last.ckpt",
    "data.root": "flowers",
    "model.name": "resnet50",
    "data": "digits",
    "name": "baseline",
    "optimizer._target_": "torch.optim.RAdam",
    "model._target_": "lockstep.models.ResNet18",
    "compile": "true",
    "augment.erasing": "0.25",
    "callbacks.early_stopping.monitor": "val/accuracy",
    "callbacks.early_stopping.mode": "min",
    "cluster.partition": "gpu",
    "hydra.run.dir": "mine",
    "logger.wandb.project": "mnist",
    "logger.wandb.offline": "true",
}
# what a * stands for, where the cure takes that over
RESTS = {
    "model.optimizer.*": "momentum=0.8",
    "callbacks.early_stopping.*": "min_delta=0.1",
    "callbacks.model_checkpoint.*": "save_on_train_epoch_end=true",
    "logger.wandb.*": "group=mnist",
    "logger.csv.*": "prefix=mnist",
}
# what an optimizer of another class does without
NEEDED = {"optimizer._target_=torch.optim.RAdam": ["~optimizer.nesterov", "~optimizer.momentum", "~optimizer.fused"]}


@pytest.fixture(autouse=True)
def _a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overrides, "composed", composed_once)
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def typed(pattern: str) -> str:
    """An override that the pattern of an entry fits."""
    if pattern in RESTS:
        return pattern.replace("*", RESTS[pattern])
    text = pattern.replace(".*", ".x").replace("*", "1" if "=" in pattern else ".x")
    if "=" in text:
        return text
    places = [word.partition("=")[0] for line in CURES[pattern].lines for word in line.split() if "{value}" in word]
    return f"{text}={VALUES.get(places[0], '3') if places else '3'}"


def faults(*words: str) -> list[str]:
    is_multirun = "-m" in words
    try:
        overrides.check([word for word in words if word != "-m"], is_multirun=is_multirun)
    except ConfigError as error:
        return error.faults
    return []


@pytest.mark.parametrize("pattern", CURES)
def test_a_setting_of_another_project_is_one_fault_with_the_cure_of_its_entry(pattern: str) -> None:
    key = typed(pattern).partition("=")[0]
    (fault,) = faults(typed(pattern))
    assert "\n" not in fault
    assert key in fault
    start = re.escape((CURES[pattern].lines or ("leave it out",))[0].partition("{")[0])
    assert re.search(f": (write )?{start}", fault), fault
    assert "did you mean" not in fault


@pytest.mark.parametrize("pattern", CURES)
def test_every_line_of_a_cure_can_be_typed_as_it_stands(pattern: str) -> None:
    value = typed(pattern).partition("=")[2]
    rest = RESTS.get(pattern, "").partition("=")[0]
    for line in CURES[pattern].lines:
        words = shlex.split(line.format(value=value, rest=rest))
        if words[0] == "lockstep":
            main._parser().parse_args(words[1:])
        else:
            assert faults(*words, *(more for word in words for more in NEEDED.get(word, ()))) == []


def test_the_value_that_was_typed_is_quoted_for_the_shell_and_one_that_is_missing_is_left_open() -> None:
    assert cure("ckpt_path", "my runs/last.ckpt").startswith(
        ": write resume=outputs/latest or init_from='my runs/last.ckpt' ("
    )
    assert "init_from=... (" in cure("ckpt_path")
    assert cure("global_batch_size", 3) == ""


def test_a_file_of_another_project_gets_the_same_cures(tmp_path: Path) -> None:
    conf = shutil.copytree(CONF, tmp_path / "conf")
    (conf / "experiment" / "theirs.yaml").write_text(
        "# @package _global_\n"
        "trainer: {gradient_clip_val: 0.5, precision: 16-mixed}\n"
        "data: {batch_size: 64}\n"
        "callbacks: {early_stopping: {patience: 3}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        overrides.check(["experiment=theirs"], Source(conf), is_multirun=False)
    told = "\n".join(caught.value.faults)
    for line in ("trainer.gradient_clip_norm=0.5", "trainer.precision=bfloat16", "global_batch_size=64"):
        assert f": write {line}" in told
    assert "callbacks.early_stopping has no _target_: write callbacks=early_stopping" in told


def test_an_option_of_ones_own_takes_the_place_of_a_foreign_one(tmp_path: Path) -> None:
    conf = shutil.copytree(CONF, tmp_path / "conf")
    (conf / "trainer" / "ddp.yaml").write_text("defaults: [default]\ndevices: 2\n")
    assert overrides.check(["trainer=ddp"], Source(conf), is_multirun=False).configs[0].trainer.devices == 2
