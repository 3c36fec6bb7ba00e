"""The text of `python train.py --help`."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from lockstep.cli import help, train
from lockstep.config import overrides
from lockstep.config.composing import typed_text
from lockstep.config.saved import project
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system import hardware
from tests.support.harness import ROOT


def text_of(capsys: pytest.CaptureFixture[str], *texts: str) -> str:
    help.show_help(texts)
    return capsys.readouterr().out


def test_every_training_of_the_first_lines_is_a_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers").mkdir()
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    lines = [line for line, _ in help.EXAMPLES if line.startswith("{command}") and "--help" not in line]
    for line in (line.removeprefix("{command}") for line in lines):
        words = typed_text.hydra_overrides(shlex.split(line))
        assert overrides.check([word for word in words if word != "-m"], is_multirun="-m" in words).configs


@pytest.mark.parametrize(
    ("words", "contained", "all_begin"),
    [
        ("trainer", "trainer.max_epochs=", "trainer"),
        ("model model=timm", "model._target_=lockstep.models.timm", "model"),
        ("experiment", "experiment=cifar10 | ", "experiment"),
        ("callbacks callbacks=ema", "callbacks.ema._target_=", "callbacks"),
        ("augment.color_jitter", "augment.color_jitter.hue=", "augment.color_jitter."),
        ("trainer.max_epochs", "trainer.max_epochs=", "trainer.max_epochs="),
        ("seed", "seed=0", "seed="),
        ("optimizer scheduler", "scheduler._target_=", "optimizer scheduler"),
    ],
)
def test_a_name_prints_its_group_its_section_or_its_setting_alone(
    capsys: pytest.CaptureFixture[str], words: str, contained: str, all_begin: str
) -> None:
    text = text_of(capsys, *words.split())
    assert contained in text
    shown = [line.strip() for line in text.splitlines() if re.match(r"  [a-z][\w.]*=", line)]
    assert all(line.startswith(tuple(all_begin.split())) for line in shown)
    assert "Groups and their options" not in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("trainr", "did you mean trainer?"),
        ("epochs", "did you mean trainer.max_epochs?"),
        ("optimizer.lrr", "did you mean optimizer.lr?"),
        ("gpus", "write trainer.devices=..."),
        ("everything", "python train.py --help"),
        ("model model=tim", "did you mean timm?"),
    ],
)
def test_help_unknown_name(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, error: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["train.py", *words.split(), "--help"])
    monkeypatch.setattr(project, "enter", lambda *_: None)
    with pytest.raises(SystemExit, match=str(EXIT_CONFIG)):
        train.run_command(ROOT)
    assert error in capsys.readouterr().err
