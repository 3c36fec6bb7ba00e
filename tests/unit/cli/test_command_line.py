"""Words of a command line: overrides on any side of options, and commands that do not exist."""

import shlex
import sys

import pytest

from lockstep.cli import main, train
from lockstep.config.saved import project
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system.internals import hydra_parser
from tests.support.harness import ROOT


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        ("seed=1,2 -m model.width=3", "seed=1,2 model.width=3"),
        (
            "seed=1 -m data=digits ~callbacks.timer --config-name lockstep +x=1",
            "seed=1 data=digits ~callbacks.timer +x=1",
        ),
        ("seed=1 --cfg job name=job -m --resolve seed=2 --info", "seed=1 name=job seed=2"),
        ("-m seed=1,2", "seed=1,2"),
        ("-- seed=1 seed=2", "seed=1 seed=2"),
    ],
)
def test_overrides_are_on_any_side_of_options(monkeypatch: pytest.MonkeyPatch, line: str, overrides: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *shlex.split(line)])
    monkeypatch.setattr(project, "enter", lambda *_: None)
    arguments, _ = train._parse_command(ROOT)
    assert arguments.overrides == overrides.split()
    assert arguments.multirun is ("-m" in line)
    for_hydra = hydra_parser().parse_args()
    assert vars(for_hydra) == {name: value for name, value in vars(arguments).items() if name != "is_trusted"}


def test_an_unknown_option_of_a_training_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "seed=1", "-m", "--multi-run", "model.width=3"])
    monkeypatch.setattr(project, "enter", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        train._parse_command(ROOT)
    assert left.value.code == EXIT_CONFIG
    assert capsys.readouterr().err.endswith("error: unrecognized arguments: --multi-run\n")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("trian -m seed=1,2", "trian is not a command of lockstep: did you mean train?"),
        ("Status", "Status is not a command of lockstep: did you mean status?"),
        ("optimise", "optimise is not a command of lockstep: see lockstep --help"),
        ("data chek --json", "chek is not a command of lockstep data: did you mean check?"),
        ("jobs shwo 17", "shwo is not a command of lockstep jobs: did you mean show?"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest_one_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, error: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep", *line.split()])
    assert main._command() == EXIT_CONFIG
    assert capsys.readouterr().err == f"lockstep: {error}\n"


def test_other_wrong_choices_name_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep", "eval", "latest", "--split", "tset"])
    with pytest.raises(SystemExit) as left:
        main._command()
    assert left.value.code == EXIT_CONFIG
    assert "argument --split: invalid choice: 'tset'" in capsys.readouterr().err
