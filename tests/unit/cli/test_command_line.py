"""Words of a command line: overrides on any side of options, and commands that do not exist."""

import shlex
from collections.abc import Callable

import pytest
import yaml

from lockstep.cli import command_line, composed, train
from lockstep.config.composing.compose import DEFAULT
from lockstep.config.saved import project
from lockstep.runs.folder import EXIT_CONFIG
from tests.support.harness import ROOT


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        ("seed=1,2 -m model.width=3", "seed=1,2 model.width=3"),
        (
            "seed=1 -m data=digits ~callbacks.timer --config-name lockstep +x=1",
            "seed=1 data=digits ~callbacks.timer +x=1",
        ),
        ("seed=1 --cfg job name=job -m --resolve seed=2", "seed=1 name=job seed=2"),
        ("", ""),
        ("-m seed=1,2", "seed=1,2"),
        ("-- seed=1 seed=2", "seed=1 seed=2"),
    ],
)
def test_overrides_around_options(line: str, overrides: str) -> None:
    arguments = command_line.parse(shlex.split(line))
    assert arguments.overrides == overrides.split()
    assert arguments.multirun is ("-m" in line)
    assert arguments.unknown == []


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--epochs 5", "did you mean trainer.max_epochs=5?"),
        ("--lr=0.1", "did you mean optimizer.lr=0.1?"),
        ("--batch-size 32", "write global_batch_size=32"),
        ("--gpus 2", "write trainer.devices=2"),
        (
            "--arch resnet50",
            "write model=torchvision model.name=resnet50, or model=timm model.name=resnet50",
        ),
        (
            "--model vit_b",
            "write model=torchvision model.name=vit_b, or model=timm model.name=vit_b",
        ),
        ("--data-dir flowers", "write data=image_folder data.root=flowers"),
        ("--max-steps 9", "write trainer.max_epochs=... (an epoch: all images once)"),
        ("--pretrained model=timm", "write model=torchvision model.name=... model.pretrained=true"),
        ("--what", "remove it; --help lists the settings"),
        # Hydra's own, cut short
        ("--config mine.yaml", "remove it; --help lists the settings"),
        ("--res", "did you mean resume=...?"),
        ("--info", "write --cfg job, hydra or all (other options of Hydra were removed in 0.3)"),
        # settings
        ("--seed 3", "write seed=3"),
        ("-lr 0.1", "did you mean optimizer.lr=0.1?"),
        ("--optimizer.lr 0.1", "write optimizer.lr=0.1"),
        ("--data image_folder", "write data=image_folder"),
        ("--seed -m", "write seed=..."),
        ("seed=1 --multi-run model.width=3", "write -m"),
    ],
)
def test_option_refused_with_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, hint: str
) -> None:
    words = line.split()
    monkeypatch.setattr(project, "enter", lambda *_: None)
    with pytest.raises(SystemExit, match=str(EXIT_CONFIG)):
        train.run_command(ROOT, words)
    option = next(word for word in words if word.startswith("-")).partition("=")[0]
    assert f"config error: {option} is not an option: {hint}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("trian -m seed=1,2", "did you mean train?"),
        ("Status", "did you mean status?"),
        ("optimise", "see lockstep --help"),
        ("data chek --json", "did you mean check?"),
        ("jobs shwo 17", "did you mean show?"),
    ],
)
def test_unknown_command_suggestion(
    run_lockstep: Callable[..., int], capsys: pytest.CaptureFixture[str], line: str, error: str
) -> None:
    assert run_lockstep(*line.split()) == EXIT_CONFIG
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "sections"), [("job", {"data"}), ("hydra", {"hydra"}), ("all", {"hydra", "data"})]
)
def test_cfg(capsys: pytest.CaptureFixture[str], part: str, sections: set[str]) -> None:
    arguments = command_line.parse(["--cfg", part, "--resolve"])
    composed.show(arguments, ["data=synthetic", "name=of-${seed}"], DEFAULT)
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed.keys() & {"hydra", "data"} == sections
    assert printed.get("name", "of-0") == "of-0"


def test_shell_completion(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "python train.py data=di")
    composed.complete(["query=bash"], DEFAULT)
    assert capsys.readouterr().out.split() == ["data=digits"]
