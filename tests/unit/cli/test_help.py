"""The text of `python train.py --help`."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.cli import declarations, help, train
from lockstep.config import errors, overrides
from lockstep.config.checks import signatures, validation
from lockstep.config.composing import compose
from lockstep.config.composing.compose import groups
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import CALLED, fields
from lockstep.config.schema.type_names import kind, kind_of
from lockstep.system import hardware, trees
from tests.support.harness import ROOT, environ


def text_of(capsys: pytest.CaptureFixture[str], *texts: str) -> str:
    help.show_help(texts)
    return capsys.readouterr().out


def test_the_version_is_that_of_lockstep(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["lockstep train", "--version"])
    assert train.run_command(ROOT) == 0
    assert capsys.readouterr().out == f"lockstep {lockstep.__version__}\n"


def test_common_keys_come_before_the_groups_and_these_before_all_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, groups_, keys = re.split(r"^Groups and their options$|^All keys$", text_of(capsys), flags=re.MULTILINE)
    for name in ("trainer.max_epochs", "global_batch_size", "optimizer.lr", "trainer.devices", "trainer.precision"):
        assert re.search(rf"^  {name}=\S+ +\w", first, re.MULTILINE), name
    for words in (
        "data=image_folder",
        "model=torchvision",
        "resume=",
        "-m ",
        "search=tpe",
        "lockstep --help",
        "-sc install",
    ):
        assert words in first, words
    assert "strategy     auto" in groups_
    assert "augment.cutout" in keys


def test_every_training_of_the_first_lines_is_a_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 4)
    lines = [line.removeprefix("{command}") for line, _ in help.EXAMPLES if line.startswith("{command}")]
    assert len(lines) > 5
    for line in lines:
        words = shlex.split(line)
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
    assert "-sc install" not in text, "Hydra completes what follows one word, or python and a script"


def test_every_group_stands_with_all_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text_of(capsys).splitlines()
    for group, options in groups(compose.CONF).items():
        assert (f"  {group:<12} {', '.join(options)}" in lines) == (group not in help.ELSEWHERE)


def test_every_key_stands_with_its_value_in_conf(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys)
    plain = compose.compose_config([])  # what a callback watches is found out later
    shown = dict(re.findall(r"^  ([a-z][\w.]*)=(\S*)", text, re.MULTILINE))
    as_written = compose.plain_tree(plain)[0]
    tree = {
        **config_file.to_tree(validation.check_config(plain)),
        **{name: as_written[name] for name in (*CALLED, "callbacks")},
    }
    keys = {key: value for key, value in trees.leaves(tree, "") if not key.endswith("_partial_")}
    assert set(shown) == set(keys)
    for key, value in keys.items():
        assert shown[key] == errors.literal(value)


OF_TORCH = {"optimizer.momentum", "optimizer.nesterov", "optimizer.fused", "optimizer.betas", "optimizer.eps"}


@pytest.mark.parametrize(
    "choice",
    [f"{group}={option}" for group, options in groups(compose.CONF).items() if group in CALLED for option in options],
)
def test_every_key_stands_with_the_type_and_meaning_that_its_signature_has(
    choice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(text_of(capsys, choice).split())
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
        signature = signatures.find(tree[group]["_target_"])
        assert signature is not None
        if name not in fields(CALLED[group]):
            assert kind(signature.types[name]) == kind_of(field), key


def test_lines_fit_100_columns_and_keys_align(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text_of(capsys).splitlines()
    assert max(map(len, lines)) <= 100
    starts = {
        match.end() for line in lines if (match := re.match(r"  (seed|model|data|trainer)\S*=\S+  +(?=\S)", line))
    }
    assert len(starts) == 1
