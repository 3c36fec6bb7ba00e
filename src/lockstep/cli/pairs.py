"""The sheet of pictures of `lockstep data check`: pairs of copies, one below the other, the worst first."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.callbacks import plots
from lockstep.data.copies import Copies
from lockstep.data.splits import Splits
from lockstep.system.wording import plural

MOST_PAIRS = 24


def draw_pairs(path: Path, splits: Splits, copies: Sequence[Copies]) -> str:
    """Draw the first two images of each group of copies into a PNG file. Returns what was written, for people."""
    if not copies:
        return "no pictures: there are no copies"
    stacks, captions = list[list[plots.Image]]([[], []]), list[str]()
    for each in copies[:MOST_PAIRS]:
        lines = [*each.kind.split(" and ", 1), f"distance {each.distance:.4f}" if each.distance else "equal"]
        for stack, (split, name, target, (part, position), *_) in zip(stacks, each.images, strict=False):
            stack.append(plots.picture(splits.parts[part].pixels, position))
            lines += [plots.short_name(name, 20, is_end=True), plots.short_name(f"{split}, {target}", 20)]
        captions.append("\n".join(lines))
    count = plural(len(copies), "pair") if len(captions) == len(copies) else f"{MOST_PAIRS} of {len(copies):,} pairs"
    plots.write_sheet(path, stacks, captions, [not each.kinds for each in copies], f"Copies: {count}")
    return f"pictures of {count} in {path}"
