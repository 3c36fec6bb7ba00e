"""The generated pages: every setting, and every public name.

`python -m tests.support.reference configuration > docs/configuration.md`, and the same of `api`.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

from omegaconf import OmegaConf

import lockstep
from lockstep.cli import descriptions
from lockstep.config.composing.compose import CONF, compose_config, groups
from lockstep.config.errors import literal
from lockstep.config.schema.configuration import CALLED
from lockstep.config.schema.key_scopes import scope
from lockstep.config.schema.sections import Scope
from lockstep.system.trees import at, leaves

CONFIGURATION = """\
# Configuration: settings, their types and ranges

Written by `python -m tests.support.reference configuration > docs/configuration.md` from the \
schema and `conf/`; a test
fails when it is not current. `python train.py --help` prints the same for the options that you \
choose there. Options of `callbacks` and `logger` that are off by default, and \
settings of Hydra, are in the files of `conf/`.

A setting is set by `setting=value`, a group by `group=option`. Options with the same settings \
share a table, with one
value for all of them, or one for each. The effect of a setting decides when it may change:

| decides | that is | on `resume=` | when a sweep resumes | between the jobs of a sweep |
| --- | --- | --- | --- | --- |
"""
CHANGES = {
    Scope.NUMBERS: ("no", "no", "yes"),
    Scope.LENGTH: ("yes", "no", "yes"),
    Scope.PLACE: ("yes", "yes", "yes"),
    Scope.WATCHING: ("yes", "yes", "yes"),
    Scope.OUTPUT: ("yes", "yes", "no"),
    Scope.SWEEP: ("yes", "yes", "no"),
    Scope.SUBMISSION: ("always the command's", "yes", "no"),
}
COLUMNS = (
    "| setting | value | type and range | decides | meaning |\n| --- | --- | --- | --- | --- |"
)


API = """\
# Public names: functions, classes and their parameters

Written by `python -m tests.support.reference api > docs/api.md` from signatures and docstrings; \
a test fails when it is
not current.

Configurations and projects use these names, which stay where modules move: \
`_target_: lockstep.data.digits`,
`from lockstep.data import Images, Splits`. All else in `lockstep` may change with any version. \
Few parameters have a
default, because `conf/` is the home of values. Types with a range, such as `Fraction`, are in
`lockstep.system.types`; [configuration.md](configuration.md) has range and meaning of each \
parameter.
[custom-network.md](custom-network.md) specifies custom networks, schedules, optimizers and tasks,
[data.md](data.md) custom data, and [custom-module.md](custom-module.md) training steps.
[python.md](python.md) shows how a script or a notebook trains, looks at runs and predicts.
"""
PACKAGES = ("data", "models", "tasks", "callbacks", "distributed")
ENTRY = "+parameters.NAME={pattern:'^fc',lr_factor:1.0,weight_decay:null,frozen_epochs:0}"
Tree = dict[str, Any]
LINE_LENGTH = 100  # of a signature in one line


def configuration() -> str:
    """The page of all settings."""
    options = groups(CONF)
    lines = [
        CONFIGURATION
        + "\n".join(
            f"| {_word(change)} | {change.value} | {' | '.join(row)} |"
            for change, row in CHANGES.items()
        )
    ]
    tree = _tree()
    tops = [key for key in tree if not isinstance(tree[key], dict)]
    lines += _table({"At the top": tree}, tops)
    for name in (key for key in tree if isinstance(tree[key], dict)):
        if name in CALLED:
            trees = {f"`{name}={option}`": _tree(f"{name}={option}") for option in options[name]}
        else:
            trees = {f"`{name}`": tree}
        for alike in _alike(trees, name):
            lines += _table(alike, _keys(next(iter(alike.values())), name))
    for title, name, override in (
        ("`search=tpe`", "search", "search=tpe"),
        ("An entry of `parameters`", "parameters", ENTRY),
        ("`benchmark`, of `lockstep benchmark` alone", "benchmark", "+benchmark=default"),
    ):
        chosen = _tree(override)
        lines += _table({title: chosen}, _keys(chosen, name))
    return "\n".join(lines) + "\n"


def _word(decided: Scope) -> str:
    return decided.name.lower()


def _tree(*overrides: str) -> Tree:
    tree: Any = OmegaConf.to_container(compose_config(overrides))
    return tree


def _keys(tree: Tree, name: str) -> list[str]:
    return [key for key, _ in leaves(tree[name], name) if not key.endswith("._partial_")]


def _alike(trees: Mapping[str, Tree], name: str) -> Iterable[dict[str, Tree]]:
    """Group the trees whose section has the same settings, but for their values."""
    groups: dict[tuple[object, ...], dict[str, Tree]] = {}
    for title, tree in trees.items():
        settings = [(key, *_description(tree, key)) for key in _keys(tree, name)]
        groups.setdefault(tuple(settings), {})[title] = tree
    return groups.values()


def _table(trees: Mapping[str, Tree], keys: list[str]) -> Iterator[str]:
    """A heading with the titles, the purposes of the section, and a row for each key."""
    yield f"\n## {', '.join(trees)}\n"
    section = keys[0].partition(".")[0]
    purposes = [descriptions.purpose(tree, section) for tree in trees.values() if "." in keys[0]]
    if any(purposes):
        yield " ".join(dict.fromkeys(purposes)) + "\n"
    yield COLUMNS
    for key in keys:
        yield _row(trees, key)


def _description(tree: Tree, key: str) -> tuple[str, str, str]:
    """Type and range of a setting, what it decides, and its meaning."""
    kind, meaning = descriptions.describe(tree, key.split("."))
    return kind, _word(scope(key, tree)), meaning


def _row(trees: Mapping[str, Tree], key: str) -> str:
    values = [f"`{literal(at(tree, key.split('.')))}`" for tree in trees.values()]
    value = values[0] if len(set(values)) == 1 else ", ".join(values)
    cells = (f"`{key}`", value, *_description(next(iter(trees.values())), key))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def api() -> str:
    """The page of all public names. Imports torch."""
    lines = [API]
    packages = [import_module(f"lockstep.{name}") for name in PACKAGES]
    homes = {name: package.__name__ for package in packages for name in package.__all__}
    for package in (lockstep, *packages):
        summary = inspect.cleandoc(package.__doc__ or "").partition("\n")[0]
        lines.append(f"## {package.__name__}\n\n{summary}\n")
        for name in package.__all__:
            home = homes.get(name, package.__name__)
            if home == package.__name__:
                lines += _name(f"{home}.{name}", package.__getattr__(name))
            else:
                lines.append(f"`{package.__name__}.{name}` is `{home}.{name}`.\n")
    return "\n".join(lines)


def _name(target: str, definition: Any) -> Iterator[str]:
    """Yield a heading, the signature, the docstring, and the options that use the name."""
    yield f"### {target.rpartition('.')[2]}\n"
    yield f"```python\n{_signature(target, definition)}\n```\n"
    yield f"{inspect.getdoc(definition)}\n"
    yield from _parts(definition)
    options = sorted(
        path.relative_to(CONF).with_suffix("").as_posix().replace("/", "=")
        for path in CONF.rglob("*.yaml")
        if re.search(rf"_target_: {re.escape(target)}$", path.read_text(), re.MULTILINE)
    )
    if options:
        yield f"Chosen by {', '.join(f'`{option}`' for option in options)}.\n"


def _parts(definition: Any) -> Iterator[str]:
    """Yield a table of the properties of a class, and the docstrings of its methods.

    Its `__call__` comes first.
    """
    if not inspect.isclass(definition) or Protocol in definition.__bases__:
        return
    own = {name: part for name, part in vars(definition).items() if not name.startswith("_")}
    rows = [(name, part) for name, part in own.items() if isinstance(part, property)]
    if rows:
        yield "| has | type | which is |\n| --- | --- | --- |"
        for name, part in rows:
            cells = (
                f"`{name}`",
                f"`{_returned(part.fget)}`",
                " ".join((inspect.getdoc(part) or "").split()),
            )
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""
    call = vars(definition).get("__call__")
    if rows and call is not None:
        yield f"A call of it:\n\n{inspect.getdoc(call)}\n"
        for name, part in own.items():
            if inspect.isfunction(part):
                signature = _signature(name, part).replace("self, ", "")
                yield f"`{signature}`:\n\n{inspect.getdoc(part)}\n"


def _returned(function: Any) -> str:
    """The return type of a function as its source has it."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    return "" if node.returns is None else ast.unparse(node.returns).strip("'")


def _signature(target: str, definition: Any) -> str:
    """The signature of a function or class as its source has it."""
    node = ast.parse(textwrap.dedent(inspect.getsource(definition))).body[0]
    returned = ""
    if isinstance(node, ast.ClassDef) and any(
        ast.unparse(base) == "Protocol" for base in node.bases
    ):
        return f"class {target}(Protocol):\n" + "\n".join(_members(node))
    if isinstance(node, ast.ClassDef):
        inits = [
            item
            for item in node.body
            if isinstance(item, ast.FunctionDef) and item.name == "__init__"
        ]
        parent = definition.__mro__[1]
        if not inits and parent.__module__.startswith("lockstep."):  # it is made as its parent is
            return target + _signature("", parent)
        is_record = dataclasses.is_dataclass(definition) or issubclass(definition, tuple)
        fields = [
            ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign) and is_record
        ]
        parameters = _parameters(inits[0].args)[1:] if inits else fields
    else:
        assert isinstance(node, ast.FunctionDef)
        parameters = _parameters(node.args)
        returned = f" -> {_returned(definition)}" if node.returns is not None else ""
    line = f"{target}({', '.join(parameters)}){returned}"
    if len(line) <= LINE_LENGTH:
        return line
    return (
        f"{target}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){returned}"
    )


class _Types(ast.NodeTransformer):
    """Reduces `Annotated[...]` to the type: docs/configuration.md has ranges and meanings."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        is_annotated = isinstance(node.value, ast.Name) and node.value.id == "Annotated"
        return node.slice.elts[0] if is_annotated and isinstance(node.slice, ast.Tuple) else node


def _members(protocol: ast.ClassDef) -> Iterator[str]:
    """Members of a protocol: properties as attributes, methods with their signatures."""
    for item in protocol.body:
        if isinstance(item, ast.FunctionDef) and item.returns is not None:
            returned = ast.unparse(item.returns).strip("'")
            if item.decorator_list:
                yield f"    {item.name}: {returned}"
            else:
                parameters = ast.unparse(item.args).replace(", /", "")
                yield f"    def {item.name}({parameters}) -> {returned}"


def _parameters(arguments: ast.arguments) -> list[str]:
    """The parameters as the source has them, with the star."""
    arguments = _Types().visit(arguments)
    assert arguments.kwarg is None, f"not known how to show {ast.unparse(arguments)}"
    named = [ast.unparse(argument) for argument in arguments.args]
    for number, default in enumerate(reversed(arguments.defaults), 1):
        named[-number] += f" = {ast.unparse(default)}"
    by_keyword = [
        ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    star = f"*{ast.unparse(arguments.vararg)}" if arguments.vararg else "*"
    return [*named, *([star] if by_keyword or arguments.vararg else []), *by_keyword]


if __name__ == "__main__":
    pages = {"configuration": configuration, "api": api}
    if len(sys.argv) != 2 or sys.argv[1] not in pages:
        sys.exit(f"usage: python -m tests.support.reference {'|'.join(pages)}")
    print(pages[sys.argv[1]](), end="")
