"""Parameters of a callable, read from its source text: a check of the configuration must not wait seconds for torch.

Follows re-exports, aliases and base classes. What it cannot tell from the text it leaves open (None) rather than guess.
"""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Signature:
    """Names a callable can be given by keyword, those it must be given, and whether it takes any other."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool


class Missing(LookupError):
    """The package, module or name does not exist; `known` are the names that do, where they can be told."""

    def __init__(self, what: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.known = known


def read(target: str) -> Signature | None:
    """The signature of the dotted `target`; None when the text alone does not tell. Raises Missing."""
    top, *rest = target.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a spec, such as __main__
        return None
    if spec is None:
        raise Missing(f"there is no package {top!r}")
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        if spec.origin is None or not spec.origin.endswith(".py"):
            return None
        return _follow(Path(spec.origin), top, rest)
    module = top
    while rest:
        inner = next((f / rest[0] for f in folders if (f / rest[0]).is_dir()), None)
        file = next((f / f"{rest[0]}.py" for f in folders if (f / f"{rest[0]}.py").is_file()), None)
        if inner is not None:
            module, folders, rest = f"{module}.{rest[0]}", [inner], rest[1:]
        elif file is not None:
            return _follow(file, f"{module}.{rest[0]}", rest[1:])
        else:
            break
    init = folders[0] / "__init__.py"
    if not init.is_file():
        raise Missing(f"{module!r} has no module {rest[0]!r}" if rest else f"{module!r} is a module")
    return _follow(init, module, rest)


@cache
def _definitions(file: Path) -> dict[str, ast.stmt]:
    """Top-level names of a module and the statements that define them, also below `if` and `try`."""
    found: dict[str, ast.stmt] = {}

    def visit(statements: list[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, node)
            elif isinstance(node, ast.Assign):
                for name in node.targets:
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, node)
            elif isinstance(node, ast.If | ast.Try):
                for block in (node.body, node.orelse):
                    visit(block)

    visit(ast.parse(file.read_text(encoding="utf-8")).body)
    return found


def _follow(file: Path, module: str, attributes: list[str]) -> Signature | None:
    if not attributes:
        raise Missing(f"{module!r} is a module, not something to call")
    definitions = _definitions(file)
    node = definitions.get(attributes[0])
    if node is None:
        if "*" in definitions or "__getattr__" in definitions:
            return None
        raise Missing(f"{module!r} has no {attributes[0]!r}", tuple(definitions))
    if len(attributes) > 1:
        return None
    if isinstance(node, ast.ImportFrom):
        return _follow_import(file, module, node, attributes[0])
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
        return _follow(file, module, [node.value.id])
    if isinstance(node, ast.FunctionDef):
        return _of_function(node, num_bound=0)
    if isinstance(node, ast.ClassDef):
        return _of_class(file, module, node)
    return None


def _follow_import(file: Path, module: str, node: ast.ImportFrom, name: str) -> Signature | None:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    source = ".".join(part for part in ((package if node.level else ""), node.module or "") if part)
    original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
    return read(f"{source}.{original}")


def _of_class(file: Path, module: str, node: ast.ClassDef) -> Signature | None:
    if node.decorator_list:  # a dataclass, say: its __init__ is not in the text
        return None
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            return _of_function(statement, num_bound=1)
    for base in node.bases:
        if isinstance(base, ast.Name):
            return _follow(file, module, [base.id])
    return None


def _of_function(node: ast.FunctionDef, num_bound: int) -> Signature:
    positional = [*node.args.posonlyargs, *node.args.args][num_bound:]
    num_required = len(positional) - len(node.args.defaults)
    keyword_only = list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    required = [arg.arg for arg in positional[: max(0, num_required)]]
    required += [arg.arg for arg, default in keyword_only if default is None]
    names = [arg.arg for arg in _keywords(node)][num_bound:]
    return Signature(tuple(names), tuple(required), node.args.kwarg is not None)


def _keywords(node: ast.FunctionDef) -> Iterator[ast.arg]:
    yield from node.args.args
    yield from node.args.kwonlyargs
