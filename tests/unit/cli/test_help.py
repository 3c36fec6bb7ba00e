"""The text of `python train.py --help`."""

import shlex
from pathlib import Path

import pytest

from lockstep.cli import help, train
from lockstep.config import overrides
from lockstep.config.composing import typed_text
from lockstep.config.saved import project
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system import hardware
from tests.support.harness import ROOT


@pytest.mark.usefixtures("in_tmp_path")
def test_example_commands_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flowers").mkdir()
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    lines = [
        line for line, _ in help.EXAMPLES if line.startswith("{command}") and "--help" not in line
    ]
    for line in (line.removeprefix("{command}") for line in lines):
        words = typed_text.hydra_overrides(shlex.split(line))
        assert overrides.check(
            [word for word in words if word != "-m"], is_multirun="-m" in words
        ).configs


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("", "trainer.max_epochs="),
        ("trainer", "trainer.max_epochs="),
        ("model model=timm", "model._target_=lockstep.models.timm"),
        ("experiment", "experiment=cifar10 | "),
        ("augment.color_jitter", "augment.color_jitter.hue="),
        ("seed", "seed=0"),
    ],
)
def test_help_known_name(capsys: pytest.CaptureFixture[str], words: str, part: str) -> None:
    help.show_help(words.split())
    assert part in capsys.readouterr().out


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
    monkeypatch.setattr(project, "enter", lambda *_: None)
    with pytest.raises(SystemExit, match=str(EXIT_CONFIG)):
        train.run_command(ROOT, [*words.split(), "--help"])
    assert error in capsys.readouterr().err
