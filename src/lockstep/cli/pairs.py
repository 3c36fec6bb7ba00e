"""The sheet of pictures of `lockstep data check`: pairs of copies side by side, the worst first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from lockstep.callbacks import pictures, plots
from lockstep.data.copies import Copies, Copy
from lockstep.data.images.image_files import ImageFiles
from lockstep.data.splits import Splits
from lockstep.runs.files import atomic_file
from lockstep.system.wording import plural

MOST_PAIRS = 24
SIDE = 240  # pixels of a picture
MOST_LETTERS = 20  # of a line below a picture


def draw_pairs(path: Path, splits: Splits, copies: Sequence[Copies]) -> str:
    """Draw the first two images of each group of copies into a PNG file. Returns what was written, for people."""
    if not copies:
        return "no pictures: there are no copies"
    shown = copies[:MOST_PAIRS]
    images = [(_picture(splits, each.images[0]), _picture(splits, each.images[1])) for each in shown]
    captions = [(_caption(each.images[0]), _caption(each.images[1])) for each in shown]
    heads = [f"{each.kind}: {f'distance {each.distance:.4f}' if each.distance else 'equal'}" for each in shown]
    count = plural(len(copies), "pair") if len(shown) == len(copies) else f"{len(shown)} of {len(copies):,} pairs"
    with plots.style():
        figure = plots.pair_grid(images, captions, heads, [bool(each.kinds) for each in shown], f"Copies: {count}")
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path.resolve()) as file:
            figure.savefig(file, format="png", dpi=pictures.DPI)
    return f"pictures of {count} in {path}"


def _picture(splits: Splits, copy: Copy) -> NDArray[Any]:
    """Return an image (C, H, W) of 0 to 255: of a file all of it, scaled."""
    split, position = copy.place
    pixels = splits.parts[split].pixels
    if isinstance(pixels, ImageFiles):
        pixels = replace(pixels, view=replace(pixels.view, size=(SIDE, SIDE), fit="letterbox", crop_percent=1.0))
    image = pixels[torch.tensor([position])][0]
    if image.is_floating_point():
        low, high = image.aminmax()
        image = ((image - low) / (high - low).clamp(min=1e-9) * 255).byte()
    return image[: 3 if len(image) >= 3 else 1].numpy()


def _caption(copy: Copy) -> str:
    """Return the end of the name, the split and the target, one a line."""
    name = " ".join(copy.name.split())
    name = name if len(name) <= MOST_LETTERS else f"…{name[1 - MOST_LETTERS :]}"
    return f"{name}\n{copy.split}\n{plots.short_name(copy.target)}"
