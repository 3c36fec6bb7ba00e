"""The text of `python train.py --help`."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

import lockstep
from lockstep.cli import declarations, help, train
from lockstep.config import errors, overrides
from lockstep.config.checks import signatures, validation
from lockstep.config.composing import compose, typed_text
from lockstep.config.composing.compose import groups
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import CALLED, fields
from lockstep.config.schema.type_names import kind, kind_of
from lockstep.runs.folder import EXIT_CONFIG
from lockstep.system import hardware, trees
from tests.support.harness import ROOT, environ


def text_of(capsys: pytest.CaptureFixture[str], *texts: str) -> str:
    help.show_help(texts)
    return capsys.readouterr().out


def test_the_version_is_that_of_lockstep(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep train", "--version"])
    assert train.run_command(ROOT) == 0
    assert capsys.readouterr().out == f"lockstep {lockstep.__version__}\n"


def test_every_training_of_the_first_lines_is_a_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flowers").mkdir()
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    lines = [line for line, _ in help.EXAMPLES if line.startswith("{command}") and "--help" not in line]
    for line in (line.removeprefix("{command}") for line in lines):
        words = typed_text.hydra_overrides(shlex.split(line))
        assert overrides.check([word for word in words if word != "-m"], is_multirun="-m" in words).configs


def test_tab_completes_by_the_line_of_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = (line.strip() for line in text_of(capsys).splitlines() if "-sc install=bash" in line)
    typed = "python train.py data=di"
    asked = f'COMP_LINE="{typed}" COMP_POINT={len(typed)} COMP_CWORD=2\nhydra_bash_completion'
    script = f'{line}\n{asked}\necho "${{COMPREPLY[@]}}"'
    variables = {**environ(), "PATH": f"{Path(sys.executable).parent}:{environ()['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["data=digits"]


def test_where_there_is_no_train_py_the_help_names_what_trains_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = text_of(capsys)
    assert "  lockstep train trainer.devices=4 " in text
    assert "train.py" not in text


def test_every_group_stands_with_all_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(text_of(capsys).split())
    lines = {group: f" {group} {', '.join(options)} " for group, options in groups(compose.CONF).items()}
    assert [group for group, line in lines.items() if line not in text] == [help.ELSEWHERE]


def test_every_setting_stands_with_its_value_in_conf(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys)
    plain = compose.compose_config([])  # what a callback watches is found out later
    shown = dict(re.findall(r"^  ([a-z][\w.]*)=(\S*)", text, re.MULTILINE))
    as_written = compose.plain_tree(plain)[0]
    tree = {
        **config_file.to_tree(validation.check_config(plain)),
        **{name: as_written[name] for name in (*CALLED, "callbacks")},
    }
    keys = {key: value for key, value in trees.leaves(tree, "") if not key.endswith("_partial_")}
    assert shown == {key: errors.literal(value) for key, value in keys.items()}


OF_TORCH = {"optimizer.momentum", "optimizer.nesterov", "optimizer.fused", "optimizer.betas", "optimizer.eps"}


@pytest.mark.parametrize(
    "choice",
    [f"{group}={option}" for group, options in groups(compose.CONF).items() if group in CALLED for option in options],
)
def test_every_setting_stands_with_the_type_and_meaning_that_its_signature_has(
    choice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(text_of(capsys, choice).split()).replace(" | ", "|")
    tree = compose.plain_tree(compose.compose_config([choice]))[0]
    keys = [key for key, _ in trees.leaves(tree, "") if key.partition(".")[0] in CALLED]
    for key in (key for key in keys if "._" not in key and key.count(".") == 1):
        field = declarations.meaning(tree, key.split("."))
        assert field is not None or key in OF_TORCH, key
        if field is None:
            continue
        assert field.description, key
        assert f"{field.description} ({kind_of(field)})" in text, key
        group, name = key.split(".")
        if name not in fields(CALLED[group]):
            signature = cast(Any, signatures.find(tree[group]["_target_"]))
            assert kind(signature.types[name]) == kind_of(field), key


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
