"""Parameters of a callable, read from its source text: a check of the configuration must not wait seconds for torch.

Follows re-exports, aliases and base classes. What the text does not tell it leaves open rather than guess; then only
the import tells.
"""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from lockstep.config import annotations

UNCHANGING = {"no_grad", "_use_grad_for_differentiable"}  # decorators of torch's that keep a signature


@dataclass(frozen=True)
class Signature:
    """Names a callable can be given by keyword, those it must be given, and whether it takes any other.

    `types` are the annotations as they are written, of those that have one; with None where that is the default.
    """

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool
    types: dict[str, str] = field(compare=False, default_factory=dict)


class Missing(LookupError):
    """The package, module or `name` does not exist; `known` are the names that do, where they can be told."""

    def __init__(self, what: str, name: str, known: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.name, self.known = name, tuple(known)


@cache
def find(target: str) -> Signature | None:
    """The signature of the dotted `target`, by import where its text does not tell; None if it has none.

    Raises Missing.
    """
    signature = read(target)
    return signature if signature is not None else _imported(target)


def forget() -> None:
    """Read modules anew that were read before: in a process that lives long, files change."""
    find.cache_clear()
    parse.cache_clear()


def is_there(package: str) -> bool:
    """Whether Python finds a package or module of this name, which has no dots."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a spec, such as __main__
        return True


def load(target: str) -> Any:
    """What the dotted `target` stands for. Raises Missing, ImportError or AttributeError where it is not there."""
    located = locate(target)
    module = located[1] if located is not None else target.rpartition(".")[0]
    loaded: Any = importlib.import_module(module)
    for name in target.removeprefix(f"{module}.").split("."):
        loaded = getattr(loaded, name)
    return loaded


def _imported(target: str) -> Signature | None:
    try:
        parameters = inspect.signature(load(target)).parameters.values()
    except ImportError as error:
        raise Missing(str(error), error.name or target) from error
    except AttributeError as error:
        known = [*dir(error.obj), *getattr(error.obj, "__all__", ())]  # of a face, which imports later
        raise Missing(str(error), error.name or "", known) from error
    except (TypeError, ValueError):  # not callable, or compiled
        return None
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = tuple(p.name for p in named if p.default is p.empty)
    types = {p.name: _typed(_as_text(p.annotation), p.default is None) for p in named if p.annotation is not p.empty}
    return Signature(tuple(p.name for p in named), required, any(p.kind == p.VAR_KEYWORD for p in parameters), types)


def _as_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _typed(annotation: str, is_none: bool) -> str:
    """The annotation of a parameter, which also takes its default: `size: int = None` takes None."""
    return f"{annotation} | None" if is_none and not annotations.fits(annotation, None) else annotation


def read(target: str) -> Signature | None:
    """The signature of the dotted `target`; None when the text alone does not tell. Raises Missing."""
    try:
        return _read(target)
    except RecursionError:  # modules that import a name from each other
        return None


def _read(target: str) -> Signature | None:
    located = locate(target)
    return _follow(*located) if located is not None else None


def locate(target: str) -> tuple[Path, str, list[str]] | None:
    """The file and name of the innermost module of `target`, and what is left of it; None for compiled modules."""
    module, *rest = target.split(".")
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module without a spec, such as __main__
        return None
    if spec is None:
        raise Missing(f"there is no package {module!r} here", module)
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        return (Path(spec.origin), module, rest) if spec.origin and spec.origin.endswith(".py") else None
    while rest:
        name = rest[0]
        inner = [folder / name for folder in folders if (folder / name).is_dir()]
        file = next((f / f"{name}.py" for f in folders if (f / f"{name}.py").is_file()), None)
        if file is not None and not any((folder / "__init__.py").is_file() for folder in inner):
            return file, f"{module}.{name}", rest[1:]
        if any((f / f"{name}{suffix}").is_file() for f in folders for suffix in EXTENSION_SUFFIXES):
            return None
        if not inner:
            break
        module, folders, rest = f"{module}.{name}", inner, rest[1:]
    init = next((folder / "__init__.py" for folder in folders if (folder / "__init__.py").is_file()), None)
    if init is not None:
        return init, module, rest
    if not rest:
        raise Missing(f"{module!r} is a module, not something to call", module)
    raise Missing(f"{module!r} has no module {rest[0]!r}", rest[0], _modules(folders))


def _modules(folders: Iterable[Path]) -> set[str]:
    return {path.stem for folder in folders for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}


@dataclass(frozen=True)
class _Module:
    """Top-level names and the statements that define them, and the statements that import all names of another."""

    names: dict[str, ast.stmt]
    stars: list[ast.ImportFrom]


@cache
def parse(file: Path) -> _Module:
    """What a module defines, also below `if`, `try` and `with`."""
    module = _Module({}, [])

    def define(name: str, node: ast.stmt) -> None:
        module.names.setdefault(name, node)

    def visit(statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if "overload" not in map(_last_name, node.decorator_list):
                    define(node.name, node)
            elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                module.stars.append(node)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    define(alias.asname or alias.name, node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    define(alias.asname or alias.name.partition(".")[0], node)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for name in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(name, ast.Name):
                        define(name.id, node)
            elif isinstance(node, ast.If):
                visit([*node.body, *node.orelse])
            elif isinstance(node, ast.Try):
                for alias in (a for s in node.body if isinstance(s, ast.ImportFrom | ast.Import) for a in s.names):
                    define(alias.asname or alias.name, node)  # which of them it will be, only the import tells
                visit([*node.body, *node.orelse, *(s for handler in node.handlers for s in handler.body)])
            elif isinstance(node, ast.With):
                visit(node.body)

    visit(ast.parse(file.read_text(encoding="utf-8")).body)
    return module


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _follow(file: Path, module: str, attributes: list[str]) -> Signature | None:
    """The signature of a name in a module, wherever it comes from."""
    if not attributes:
        raise Missing(f"{module!r} is a module, not something to call", module)
    name, *rest = attributes
    parsed = parse(file)
    node = parsed.names.get(name)
    if node is None:
        return _follow_stars(file, module, attributes)
    if isinstance(node, ast.ImportFrom):
        original = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
        return _read(".".join([imported_from(file, module, node), original, *rest]))
    if isinstance(node, ast.Import):
        original = next((alias.name for alias in node.names if alias.asname == name), name)
        return _read(".".join([original, *rest]))
    if len(rest) == 1 and isinstance(node, ast.ClassDef):
        return _of_method(file, module, node, rest[0])
    if rest:
        return None
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return _follow_expression(file, module, node.value)
    if isinstance(node, ast.FunctionDef) and not node.decorator_list:
        return _of_function(node, num_bound=0)
    if isinstance(node, ast.ClassDef) and not node.decorator_list:  # a dataclass has no __init__ in its text
        return _of_class(file, module, node)
    return None


def _follow_stars(file: Path, module: str, attributes: list[str]) -> Signature | None:
    """The signature of a name that a module does not define itself."""
    parsed = parse(file)
    is_open = "__getattr__" in parsed.names
    for node in parsed.stars:
        try:
            located = locate(imported_from(file, module, node))
            if located is not None and located[2]:
                continue  # an optional module that is not there
            signature = _follow(*located[:2], attributes) if located is not None else None
        except Missing:
            continue
        if signature is not None:
            return signature
        is_open = True
    if is_open:
        return None
    known = set(parsed.names) | (_modules([file.parent]) if file.name == "__init__.py" else set())
    name = attributes[0]
    raise Missing(f"{module!r} has no {name!r}", name, (other for other in known if not other.startswith("_")))


def _follow_expression(file: Path, module: str, node: ast.expr | None) -> Signature | None:
    """The signature of `name` or `package.name` as it stands in a module."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in parse(file).names:
        return None  # a call, or a builtin
    return _follow(file, module, [node.id, *attributes])


def imported_from(file: Path, module: str, node: ast.ImportFrom) -> str:
    """The module that a `from ... import` names."""
    if not node.level:
        return node.module or ""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def _of_class(file: Path, module: str, node: ast.ClassDef) -> Signature | None:
    # the last of a name counts, those before it are overloads
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    if "__init__" in methods:
        return _of_function(methods["__init__"], num_bound=1)
    if "__new__" in methods or node.keywords or not node.bases:
        return None
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    first = next((base for base in bases if _last_name(base) != "Generic"), None)
    return _follow_expression(file, module, first)


def _of_method(file: Path, module: str, node: ast.ClassDef, name: str) -> Signature | None:
    """The signature of a method of the instances of a class; None of what a decorator may have made of one."""
    method = next((each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name), None)
    if method is not None:
        kinds = {_last_name(each.func if isinstance(each, ast.Call) else each) for each in method.decorator_list}
        return _of_function(method, num_bound=1) if kinds <= UNCHANGING else None
    for base in node.bases:
        names = ast.unparse(base).split(".")
        if names[0] in parse(file).names:
            return _follow(file, module, [*names, name])
    return None


def _of_function(node: ast.FunctionDef, num_bound: int) -> Signature:
    positional = [*node.args.posonlyargs, *node.args.args]
    num_required = len(positional) - len(node.args.defaults)
    keyword_only = list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    required = [arg.arg for arg in positional[num_bound:num_required]]
    required += [arg.arg for arg, default in keyword_only if default is None]
    by_keyword = positional[max(num_bound, len(node.args.posonlyargs)) :]
    named = [*by_keyword, *node.args.kwonlyargs]
    with_default = positional[len(positional) - len(node.args.defaults) :]
    defaults = dict(zip(with_default, node.args.defaults, strict=True)) | dict(keyword_only)
    types = {
        arg.arg: _typed(ast.unparse(arg.annotation), _is_none(defaults.get(arg)))
        for arg in named
        if arg.annotation is not None
    }
    return Signature(tuple(arg.arg for arg in named), tuple(required), node.args.kwarg is not None, types)


def _is_none(default: ast.expr | None) -> bool:
    return isinstance(default, ast.Constant) and default.value is None
