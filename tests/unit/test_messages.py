"""The texts of all messages, in one file that a review reads."""

import ast
import re
from collections.abc import Iterator

from syrupy.assertion import SnapshotAssertion

from lockstep.config.errors import Error
from tests.support.harness import ROOT

SRC = ROOT / "src"
PRINTS = {"fail", "print", "print_error", "put_errors", "record_failure", "print_line", "warn"}
TWO_WORDS = re.compile(r"[\w,.:;)}] [\w({]")


def template(node: ast.AST) -> str:
    """Return a text with the source of its expressions in braces."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.IfExp(body=body, orelse=other):
            return f"({template(body)} | {template(other)})"
    return f"{{{ast.unparse(node)}}}"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def message(node: ast.AST) -> str:
    """Return the text of an error, an exception, a printed line, or any text of two words.

    Other nodes give an empty text.
    """
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id="config_error"))):
            return ""  # The call inside has the text.
        case ast.Call(
            func=ast.Name(id="Error" | "config_error"), args=[ast.Constant(value=code), *parts]
        ):
            return f"[{code}] {Error('failed', *map(template, parts))}"
        case ast.Raise(exc=ast.Call(args=[text, *_])) if is_text(text):
            return template(text)
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=parts) if (
            name in PRINTS
        ):
            return " ".join(template(part) for part in parts if is_text(part))
    return template(node) if is_text(node) and TWO_WORDS.search(template(node)) else ""


def messages(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    """Yield line, column and text of the messages of a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and is_text(child.value):  # a docstring
            continue
        if isinstance(child, ast.expr | ast.stmt) and (text := message(child)):
            yield child.lineno, child.col_offset, text.strip().replace("\n", "\\n")
        else:
            yield from messages(child)


def test_texts_of_messages(snapshot: SnapshotAssertion) -> None:
    lines = []
    for path in sorted(SRC.rglob("*.py")):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts)
        texts = sorted(messages(ast.parse(path.read_text("utf-8"))))
        lines += [f"{module}: {text}" for _, _, text in texts]
    assert "\n".join(lines) == snapshot
