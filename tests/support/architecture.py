"""The layers of the package, and the picture of them in docs/architecture.md.

`python -m tests.support.architecture > docs/images/architecture.svg` draws it; tests check layers and picture.
"""

import ast
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

import lockstep

PACKAGE = Path(lockstep.__file__).parent
# lowest first; a module imports from its own package and from lower layers
LAYERS = (
    ("system",),
    ("runs",),
    ("distributed",),
    ("tasks",),
    ("data", "models"),
    ("callbacks", "config", "monitoring"),
    ("training",),
    ("launch",),
    ("starter", "verify"),
    ("cluster",),
    ("benchmark", "sweeps"),
    ("board",),
    ("cli", "python", "testing"),
    ("__main__",),
)


def sources() -> dict[str, Path]:
    """Modules by their names below lockstep, e.g. `data.sampler`; the name of the package itself is empty."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[:2] == ("starter", "files"):  # of new projects
            continue
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = sources()


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            assert node.module is not None
            # `from lockstep.config import rules` names a module, `from lockstep.config.rules import METRICS` does not
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name.removeprefix("lockstep.") in MODULES else node.module for name in inner}


def part_of(name: str) -> str:
    return name.split(".")[0]


def own_imports(path: Path) -> set[str]:
    """The packages and top modules of lockstep that a file imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("lockstep.")}


def layer_of(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


WIDTH, MARGIN, GAP, LINE, HEAD = 1060, 24, 12, 17, 40  # pixels
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #424a53 }
  .name { font: 600 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .package { fill: #eef4fb; stroke: #7f9fc4 }
  @media (prefers-color-scheme: dark) {
    text { fill: #c3ccd5 }
    .name { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .package { fill: #17253a; stroke: #4a6a94 }
  }"""


def purpose(package: str) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse(MODULES[package].read_text())) or ""
    return " ".join(text.replace("`", "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def drawing() -> str:
    """A row of boxes for each layer, the highest first, as SVG: light or dark as the page around it."""
    parts, top = [], MARGIN
    for names in reversed(LAYERS[:-1]):  # __main__ is no package
        width = (WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) // len(names)
        texts = [textwrap.wrap(purpose(name), (width - 24) // 7) for name in names]
        height = HEAD + LINE * max(map(len, texts))
        for number, (name, lines) in enumerate(zip(names, texts, strict=True)):
            left = MARGIN + number * (width + GAP)
            parts.append(f'<rect class="package" x="{left}" y="{top}" width="{width}" height="{height}" rx="7"/>')
            parts.append(f'<text class="name" x="{left + 12}" y="{top + 24}">{name}</text>')
            for row, line in enumerate(lines):
                parts.append(f'<text x="{left + 12}" y="{top + 45 + LINE * row}">{escape(line)}</text>')
        top += height + GAP
    height = top + MARGIN - GAP
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
            "<title>The packages of Lockstep in layers: each imports from lower ones only</title>",
            f"<style>{STYLE}\n</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>",
        )
    )


if __name__ == "__main__":
    print(drawing())
