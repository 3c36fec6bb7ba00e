"""Errors for users: one record, composed and printed at one place, in texts that fit the terminal."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep
from lockstep.config.errors import ConfigError, Error, errors_of, exit_with, report

SOURCE = Path(lockstep.__file__).parent
MOST = 120  # letters of an error without the values in it
# longer ones, with a command to write or facts that are needed together
LONGER = {
    "config/checks/workers.py: _world_errors",
}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Error("data.root=x", "does not exist", "correct the path"), "data.root=x does not exist: correct the path"),
        (Error("trainer.devices=4", ", but this machine has 2 GPUs"), "trainer.devices=4, but this machine has 2 GPUs"),
        (Error("optimizer", ": no package", "install it"), "optimizer: no package: install it"),
        (Error("", "2 workers have no GPU"), "2 workers have no GPU"),
        (Error("", "cannot be read").within("node1"), "node1: cannot be read"),
        (
            Error("seed=x", "must be a whole number").within("a/config.yaml"),
            "a/config.yaml: seed=x must be a whole number",
        ),
    ],
)
def test_an_error_is_composed_of_its_key_its_problem_and_its_fix(error: Error, line: str) -> None:
    assert str(error) == line


def test_all_errors_are_printed_once_without_secrets_and_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    secret = Error("logger.wandb.api_token=abcdef", "is not a setting", "remove it")
    found = ConfigError(secret, Error("seed=x", "must be a number"), secret)
    with pytest.raises(SystemExit, match="2"):
        exit_with(found)
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [
        "config error: logger.wandb.api_token=*** is not a setting: remove it",
        "config error: seed=x must be a number",
    ]
    assert last == "2 errors; nothing was started. See --help."
    assert pickle.loads(pickle.dumps(found)).errors == found.errors  # of a worker
    assert list(map(str, errors_of(report(found)))) == str(found).splitlines()


def test_a_text_without_a_line_is_an_error_without_a_text() -> None:
    assert errors_of("") == [Error("", "")]


def _functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in SOURCE.rglob("*.py"):
        if "files" not in path.relative_to(SOURCE).parts:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    yield f"{path.relative_to(SOURCE)}: {node.name}", node


def _length(node: ast.expr, texts: dict[str, int]) -> int:
    """Count the letters of an expression, without the values in it but with those of the `texts` that it names."""
    match node:
        case ast.Constant(value=str(text)):
            return len(text)
        case ast.Name(id=name):
            return texts.get(name, 0)
        case ast.JoinedStr(values=parts):
            return sum(_length(part, texts) for part in parts)
        case ast.FormattedValue(value=value) | ast.Starred(value=value):
            return _length(value, texts)
        case ast.BinOp(left=left, right=right):
            return _length(left, texts) + _length(right, texts)
        case ast.IfExp(body=body, orelse=orelse):
            return max(_length(body, texts), _length(orelse, texts))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return sum(_length(part, texts) for part in parts)
    return 0


def _errors_in(function: ast.FunctionDef) -> Iterator[tuple[ast.Call, int]]:
    """Yield every error that a function makes, and its length."""
    texts: dict[str, int] = {}
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Assign):
            target, values = node.targets[0], [node.value]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                values = node.value.elts
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            texts |= {ast.unparse(name): _length(value, texts) for name, value in zip(names, values, strict=False)}
        elif isinstance(node.func, ast.Name) and node.func.id.endswith("Error"):
            yield node, sum(_length(argument, texts) for argument in node.args)


def test_errors_are_short_and_each_has_a_problem() -> None:
    found = [(name, *error) for name, function in _functions() for error in _errors_in(function)]
    assert len(found) > 300  # else this test has lost them
    long = {f"{name} {length}" for name, _, length in found if length > MOST and name not in LONGER}
    assert not long
    for name, call, _ in found:
        if isinstance(call.func, ast.Name) and call.func.id == "Error" and len(call.args) > 1:
            assert not (isinstance(call.args[1], ast.Constant) and not call.args[1].value), name
