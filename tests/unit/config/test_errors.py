"""Errors for users: one record, composed and printed at one place."""

import pickle
import re
from typing import get_args

import pytest

from lockstep.config.errors import Code, ConfigError, Error, errors_of, exit_with, report
from tests.support.harness import ROOT


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            Error("missing", "data.root=x", "does not exist", "correct the path"),
            "data.root=x does not exist: correct the path",
        ),
        (
            Error("machine", "trainer.devices=4", ", but this machine has 2 GPUs"),
            "trainer.devices=4, but this machine has 2 GPUs",
        ),
        (
            Error("failed", "optimizer", ": no package", "install it"),
            "optimizer: no package: install it",
        ),
        (Error("machine", "", "2 workers have no GPU"), "2 workers have no GPU"),
        (Error("damaged", "", "cannot be read").within("node1"), "node1: cannot be read"),
        (
            Error("value", "seed=x", "must be a whole number").within("a/config.yaml"),
            "a/config.yaml: seed=x must be a whole number",
        ),
    ],
)
def test_error_line(error: Error, line: str) -> None:
    assert str(error) == line


def test_errors_printed_and_pickled(
    capsys: pytest.CaptureFixture[str],
) -> None:
    secret = Error("unknown", "logger.wandb.api_token=abcdef", "is not a setting", "remove it")
    found = ConfigError(secret, Error("value", "seed=x", "must be a number"), secret)
    with pytest.raises(SystemExit, match="2"):
        exit_with(found)
    token, seed, last = capsys.readouterr().err.splitlines()
    assert token.startswith("config error: logger.wandb.api_token=*** ")
    assert seed.startswith("config error: seed=x ")
    assert last.startswith("Nothing was started.")
    assert pickle.loads(pickle.dumps(found)).errors == found.errors  # of a worker
    assert [error.code for error in found.errors] == ["unknown", "value"]
    assert list(map(str, errors_of(report(found)))) == str(found).splitlines()


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("", [Error("failed", "", "")]),
        (ValueError("one\ntwo"), [Error("failed", "", "one"), Error("failed", "", "two")]),
        (FileNotFoundError("no x"), [Error("missing", "", "no x")]),
        (
            ConfigError(Error("value", "seed=x", "must be int")),
            [Error("value", "seed=x", "must be int")],
        ),
    ],
)
def test_errors_parsed(text: object, errors: list[Error]) -> None:
    assert errors_of(text) == errors


def test_codes_in_docs() -> None:
    _, table = (ROOT / "docs" / "python.md").read_text().split("## Errors")
    assert re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE) == [*get_args(Code)]
