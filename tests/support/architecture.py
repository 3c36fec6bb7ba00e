"""The layers of the package, who imports whom, and a drawing of both.

`python -m tests.support.architecture > docs/images/architecture.svg` draws the picture of docs/architecture.md from the
import statements; tests/unit/test_architecture.py holds the layers, and that the picture is current.
"""

import ast
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import lockstep
from tests.support.svg import page

PACKAGE = Path(lockstep.__file__).parent
# lowest first; a module imports from its own package and from lower layers
LAYERS = (
    ("system",),
    ("runs",),
    ("distributed",),
    ("tasks",),
    ("data", "models"),
    ("callbacks", "config", "monitoring", "board"),
    ("training",),
    ("launch",),
    ("benchmark", "starter", "verify"),
    ("cluster",),
    ("sweeps",),
    ("cli", "python", "testing"),
    ("__main__",),
)


def sources() -> dict[str, Path]:
    """Every module by its name below lockstep, e.g. `data.sampler`; the package itself has the empty name."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[:2] == ("starter", "files"):  # of other people's projects
            continue
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


MODULES = sources()


def imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, wherever in it."""
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
    """The package that a module is in, or the module itself where it is in none."""
    return name.split(".")[0]


def own_imports(path: Path) -> set[str]:
    """The parts of lockstep, modules or packages, that a file imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("lockstep.")}


def layer_of(part: str) -> int:
    """The number of the layer of a part, 0 for the lowest."""
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def arrows() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {part: set() for layer in LAYERS for part in layer}
    for name, path in MODULES.items():
        if name:
            found[part_of(name)] |= own_imports(path) - {part_of(name)}
    return found


def direct(every: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from others: a -> c is left out where there are a -> b and a way from b to c."""

    def below(part: str) -> set[str]:
        return every[part].union(*(below(other) for other in every[part]))

    return {part: to - set().union(*(below(other) for other in to)) for part, to in every.items()}


WIDTH, CENTRE, MARGIN, GAP, LINE = 1060, 440, 24, 16, 17  # pixels
NARROW, WIDE = 241, 460  # boxes of a layer with several, and with one
LANE = 16  # what an arrow that passes a layer needs there
BETWEEN = 42  # layers
HEAD = (
    '<marker id="head" viewBox="0 0 10 10" refX="3" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="head" d="M0 0L10 5L0 10z"/></marker>'
)


class Cell(NamedTuple):
    """A box, or the lane of an arrow that passes a layer on its way down to the box `name`."""

    name: str
    layer: int

    @property
    def is_box(self) -> bool:
        return self.name in LAYERS[self.layer]

    @property
    def width(self) -> int:
        if not self.is_box:
            return LANE
        return NARROW if len(LAYERS[self.layer]) > 1 else WIDE

    @property
    def lines(self) -> list[str]:
        """What the package is for: the first sentence of its docstring."""
        text = ast.get_docstring(ast.parse(MODULES[self.name].read_text())) or ""
        sentence = " ".join(text.replace("`", "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")
        return textwrap.wrap(sentence, (self.width - 20) // 7)


def cells_and_lines() -> tuple[list[list[Cell]], set[tuple[Cell, Cell]]]:
    """The cells of each layer, lowest first, and the lines from a cell to one of the layer below.

    Arrows to one box share their lane.
    """
    rows = [[Cell(name, number) for name in names] for number, names in enumerate(LAYERS[:-1])]
    lines: set[tuple[Cell, Cell]] = set()
    for name, to in direct(arrows()).items():
        if layer_of(name) == len(rows):  # __main__ is no package
            continue
        for other in sorted(to):
            above = Cell(name, layer_of(name))
            for number in range(above.layer - 1, layer_of(other) - 1, -1):
                below = Cell(other, number)
                if below not in rows[number]:
                    rows[number].append(below)
                lines.add((above, below))
                above = below
    return rows, lines


def places(rows: list[list[Cell]], lines: set[tuple[Cell, Cell]]) -> dict[Cell, int]:
    """The middle of every cell in pixels: the order with the shortest lines of all, layer by layer, several times."""
    near = {cell: [a if b == cell else b for a, b in lines if cell in (a, b)] for row in rows for cell in row}
    middle = {cell: CENTRE for row in rows for cell in row}
    for _ in range(12):
        for row in (*rows, *rows[::-1]):
            wanted = {cell: [middle[other] for other in near[cell]] or [CENTRE] for cell in row}
            wish = {cell: sum(found) // len(found) for cell, found in wanted.items()}
            wish |= {cell: middle[Cell(cell.name, layer_of(cell.name))] for cell in row if not cell.is_box}
            options = [_row(order, wish) for order in itertools.permutations(row)]
            middle |= min(options, key=lambda option: sum(abs(x - y) for c, x in option.items() for y in wanted[c]))
    return middle


def _row(order: Sequence[Cell], wish: dict[Cell, int]) -> dict[Cell, int]:
    """Places of the cells of a layer: its only box is in the centre, and several are near their neighbours."""
    boxes = [number for number, cell in enumerate(order) if cell.is_box]
    if len(boxes) > 1:
        return _spread(order, wish, MARGIN, WIDTH - MARGIN)
    half, number = WIDE // 2 + GAP, boxes[0]
    before = _spread(order[:number], wish, MARGIN, CENTRE - half)
    return before | {order[number]: CENTRE} | _spread(order[number + 1 :], wish, CENTRE + half, WIDTH - MARGIN)


def _spread(order: Sequence[Cell], wish: dict[Cell, int], left: int, right: int) -> dict[Cell, int]:
    """Places for cells in this order between `left` and `right`, near those they wish for and without overlap."""
    found: list[int] = []
    for cell in order:
        found.append(max(wish[cell], left + cell.width // 2))
        left = found[-1] + cell.width // 2 + GAP
    for number in range(len(order) - 1, -1, -1):
        found[number] = min(found[number], right - order[number].width // 2)
        right = found[number] - order[number].width // 2 - GAP
    return dict(zip(order, found, strict=True))


def drawing() -> str:
    """The picture as SVG, light or dark as the page around it."""
    rows, lines = cells_and_lines()
    middle = places(rows, lines)
    tops, heights, y = {}, {}, MARGIN
    for number in range(len(rows) - 1, -1, -1):
        heights[number] = 40 + LINE * max(len(cell.lines) for cell in rows[number] if cell.is_box)
        tops[number] = y
        y += heights[number] + BETWEEN
    parts = []
    for above, below in sorted(lines):
        start = tops[above.layer] + heights[above.layer]
        end = tops[below.layer]
        bend = BETWEEN // 2
        x, to = middle[above], middle[below]
        way = f"M{x} {start} C{x} {start + bend} {to} {end - bend} {to} {end - 7 * below.is_box}"
        if not below.is_box:
            way += f" V{end + heights[below.layer]}"
        head = ' marker-end="url(#head)"' if below.is_box else ""
        parts.append(f'<path class="line" d="{way}"{head}/>')
    for cell in (cell for row in reversed(rows) for cell in row if cell.is_box):
        left, top = middle[cell] - cell.width // 2, tops[cell.layer]
        height = heights[cell.layer]
        parts.append(f'<rect class="room" x="{left}" y="{top}" width="{cell.width}" height="{height}" rx="7"/>')
        parts.append(f'<text class="name" x="{left + 12}" y="{top + 24}">{cell.name}</text>')
        for number, line in enumerate(cell.lines):
            parts.append(f'<text x="{left + 12}" y="{top + 45 + LINE * number}">{escape(line)}</text>')
    note = "An arrow points to what is imported. Arrows that follow from others are left out."
    parts.append(f'<text class="note" x="{MARGIN}" y="{y - 12}">{note}</text>')
    title = "The packages of Lockstep in layers, and which one imports which"
    return page(WIDTH, y + 8, title, [HEAD, *parts])


if __name__ == "__main__":
    print(drawing())
