"""The layers of the package and its promise, and the picture of them in docs/design.md.

`python -m tests.support.architecture > docs/images/architecture.svg` draws it; tests check layers,
promise and picture.
"""

import ast
import textwrap
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

import lockstep

PACKAGE = Path(lockstep.__file__).parent
# lowest first; a module imports from its own package and from lower layers
LAYERS = (
    ("system",), ("runs",), ("distributed",), ("tasks",), ("data", "models"),
    ("callbacks", "config", "monitoring"), ("assembly", "trials"), ("inference",), ("training",),
    ("launch",), ("starter", "verify"), ("cluster",), ("benchmark", "sweeps"), ("board",),
    ("cli", "python", "testing"), ("__main__",),
)  # fmt: skip
# what makes N workers compute what one would: it imports nothing else of lockstep, and works in a
# plain loop
PROMISE = (
    *("distributed", "tasks", "callbacks.custom_module", "callbacks.stop"),
    *("data.balance", "data.loader", "data.sampler", "data.transforms"),
    *("data.images.dataset_samples", "data.splits"),
    "data.splitting",
    *(
        "models.classifier",
        "models.counts",
        "models.graphs",
        "models.layout",
        "models.loss_scale",
        "models.parameter_groups",
    ),
    *("models.schedules", "models.step", "models.virtual", "models.weights_hash"),
    *("system.internals", "system.types", "system.signals", "system.tracebacks"),
)


def sources() -> dict[str, Path]:
    """Return modules by their names below lockstep, e.g. `data.sampler`.

    The name of the package itself is empty.
    """
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[:2] == ("starter", "files"):  # of new projects
            continue
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = sources()


def part_of(name: str) -> str:
    return name.split(".")[0]


def lazy_names() -> dict[str, str]:
    """Return the modules of the public names, which are imported on first use.

    For example, lockstep.data.digits is in data.sources.builtin.
    """
    return {
        f"lockstep.{package}.{alias.name}": f"lockstep.{package}.{node.module}"
        for package in {part_of(name) for name in MODULES} - {""}
        if (stub := PACKAGE / package / "__init__.pyi").is_file()
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


LAZY = lazy_names()


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """Yield the full names of all modules that a file imports, also inside functions.

    `for_types` includes imports for type checkers.
    """
    for node in nodes(path) if for_types else _runtime_nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            assert node.module is not None
            # `from lockstep.runs import naming` names a module, `from lockstep.runs.naming import
            # find` does not
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            known = (
                name if name.removeprefix("lockstep.") in MODULES else LAZY.get(name)
                for name in inner
            )
            yield from {name or node.module for name in known}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def _runtime_nodes(path: Path) -> Iterator[ast.AST]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body.clear()
    return ast.walk(tree)


def own_imports(path: Path) -> set[str]:
    """The packages and top modules of lockstep that a file imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("lockstep.")}


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def is_promise(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in PROMISE)


def outward_imports() -> set[str]:
    """The imports of the promise that point to other modules of lockstep, as `module -> module`."""
    found = set()
    for module in filter(is_promise, MODULES):
        for other in imports(MODULES[module], for_types=False):
            name = other.removeprefix("lockstep.")
            if name in MODULES and not is_promise(name):
                found.add(f"{module} -> {name}")
    return found


WIDTH, MARGIN, GAP, LINE, HEAD, SQUARE = 1060, 24, 12, 17, 40, 9  # pixels
IN_A_ROW = 20  # squares
LEGEND = (
    "A square is a module. Dark: what makes N workers compute what one would; "
    "it imports only dark modules."
)
RULE = "Imports point to lower layers."
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; \
fill: #424a53 }
  .name { font: 600 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .package { fill: #f6f8fa; stroke: #afb8c1 }
  .promise { fill: #0a5bc4 }
  .other { fill: #6ea8e8 }
  @media (prefers-color-scheme: dark) {
    text { fill: #c3ccd5 }
    .name { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .package { fill: #161b22; stroke: #484f58 }
    .promise { fill: #58a6ff }
    .other { fill: #2f5f98 }
  }"""


def purpose(package: str) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text())) or ""
    return " ".join(text.replace("`", "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def squares(package: str, right: int, top: int) -> Iterator[str]:
    """A square for each module of a package, those of the promise first; they end at `right`."""
    names = [
        name for name in MODULES if part_of(name) == package and MODULES[name].name != "__init__.py"
    ]
    names.sort(key=lambda name: not is_promise(name))
    top -= SQUARE // 2 if len(names) > IN_A_ROW else 0
    for number, name in enumerate(names):
        row, column = divmod(number, IN_A_ROW)
        left, y = right - SQUARE * (min(len(names), IN_A_ROW) - column), top + SQUARE * row
        ring = "promise" if is_promise(name) else "other"
        yield (
            f'<rect class="{ring}" x="{left}" y="{y}" width="{SQUARE - 2}" height="{SQUARE - 2}"/>'
        )


def legend() -> Iterator[str]:
    for number, text in enumerate((LEGEND, RULE)):
        yield f'<text x="{MARGIN}" y="{MARGIN + 10 + LINE * number}">{text}</text>'


def drawing() -> str:
    """Return the SVG of a row of boxes for each layer, the highest first.

    It is light or dark as the page around it.
    """
    parts, top = [*legend()], MARGIN + HEAD + LINE
    for names in reversed(LAYERS[:-1]):  # __main__ is no package
        width = (WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) // len(names)
        texts = [textwrap.wrap(purpose(name), (width - 24) // 7) for name in names]
        height = HEAD + LINE * max(map(len, texts))
        for number, (name, lines) in enumerate(zip(names, texts, strict=True)):
            left = MARGIN + number * (width + GAP)
            parts.append(
                f'<rect class="package" x="{left}" y="{top}" '
                f'width="{width}" height="{height}" rx="7"/>'
            )
            parts.append(f'<text class="name" x="{left + 12}" y="{top + 24}">{name}</text>')
            parts += squares(name, left + width - 10, top + 15)
            for row, line in enumerate(lines):
                parts.append(
                    f'<text x="{left + 12}" y="{top + 45 + LINE * row}">{escape(line)}</text>'
                )
        top += height + GAP
    height = top + MARGIN - GAP
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            "<title>The packages of Lockstep in layers, and their modules</title>",
            f"<style>{STYLE}\n</style>",
            '<rect class="page" x="0.5" y="0.5" '
            f'width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>",
        )
    )


if __name__ == "__main__":
    print(drawing())
