"""Draw a confusion matrix, a reliability diagram and grids of images, without a display."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from lockstep.data.images.image_files import ImageFiles
from lockstep.data.splits import Pixels
from lockstep.models.predictions import EDGES, Findings, Integers
from lockstep.runs.files import atomic_file

Image = NDArray[Any]  # (C, H, W)
WIDTH = 7.2  # inches, the width of A4 without margins
BLUE, RED, DARK, FAINT, LINE = "#1a73e8", "#d93025", "#202124", "#5f6368", "#dadce0"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.parse_math": False,  # Names may contain a dollar sign.
    "text.color": DARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "pdf.fonttype": 42,
}
MAX_CLASSES = 40  # If there are more classes, the least accurate ones are shown.
MAX_CLASSES_WITH_NUMBERS = 20  # classes of a matrix with numbers
NUM_COLUMNS = 6
# These are the heights of the title of a grid, of an image and of a line below it, in inches.
GRID_TOP, IMAGE_SIDE, CAPTION = 0.42, 1.1, 0.125
GAP = 0.04  # inches between two images of one stack
DPI = 130
SIDE = 240  # pixels of a file in a sheet


@contextmanager
def style() -> Iterator[None]:
    """Apply our fonts and colors in this block.

    A character that is missing from the font is drawn as a box.
    """
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """Create an empty figure without a display. Sizes are in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def confusion_matrix(counts: Integers, class_names: Sequence[str], title: str) -> Figure:
    """Draw counts (C, C), with true classes as rows and predicted classes as columns.

    Cells are shaded by the fraction of the true class.
    """
    class_indices = displayed_classes(counts)
    counts = counts[np.ix_(class_indices, class_indices)]
    labels = [short_name(class_names[number]) for number in class_indices]
    side = max(4.2, min(9.0, 1.8 + 0.42 * len(labels)))
    fig = new_figure(side, width=side + 0.9)
    ax = fig.subplots()
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    heatmap = ax.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    if len(labels) <= MAX_CLASSES_WITH_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if fractions[row, column] > 0.5 else DARK
                ax.text(
                    column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=7.5
                )
    ticks: dict[str, Any] = {"rotation": 45, "ha": "right"} if max(map(len, labels)) > 2 else {}
    ax.set_xticks(range(len(labels)), labels, fontsize=8, **ticks)
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    of_all = (
        ""
        if len(class_indices) == len(class_names)
        else f": the {len(class_indices)} least accurate of {len(class_names):,} classes"
    )
    ax.set_title(title + of_all)
    bar = fig.colorbar(heatmap, ax=ax, shrink=0.6, label="fraction of the true class")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return fig


def displayed_classes(counts: Integers) -> list[int]:
    """Return all classes, or the MAX_CLASSES least accurate ones, worst first."""
    if len(counts) <= MAX_CLASSES:
        return list(range(len(counts)))
    totals = counts.sum(1)
    # Classes without samples come last.
    accuracy = np.where(totals > 0, counts.diagonal() / np.maximum(totals, 1), 2.0)
    worst: list[int] = np.argsort(accuracy, kind="stable").tolist()
    return worst[:MAX_CLASSES]


def reliability(findings: Findings, subtitle: str) -> Figure:
    """Draw the fraction of right predictions against their probability, in bins of equal width.

    For labels, it is the fraction of labels that are present. A point is at the mean
    probability of its bin, with the 95 % interval of Wilson (1927, doi.org/10.2307/2276774).
    """
    from scipy.stats import binomtest  # The import takes 0.4 s.

    fig = new_figure(5.6, width=5.0)
    top, below = fig.subplots(2, sharex=True, height_ratios=[3.4, 1])
    top.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    ways = {"calibrated": findings.calibrated, "not calibrated": findings.raw}
    qualities = [(name, quality) for name, quality in ways.items() if quality is not None]
    for (name, quality), color in zip(qualities, (BLUE, FAINT), strict=False):
        bins = findings.bins(quality)
        counts, x, y = bins[:, bins[0] > 0]
        label = f"{name}, ECE {abs(y - x) @ counts / counts.sum():.3f}"
        top.plot(x, y, "o-", color=color, markersize=5, linewidth=0.6, label=label)
        if color == BLUE:
            pairs = zip((y * counts).round().astype(int), counts.astype(int), strict=True)
            ends = [binomtest(*pair).proportion_ci(method="wilson") for pair in pairs]
            top.vlines(x, *zip(*ends, strict=True), color=color, linewidth=1)
        below.stairs(bins[0], EDGES, fill=color == BLUE, color=color, alpha=0.8)
    top.legend(loc="lower left", bbox_to_anchor=(-0.03, 0.99), ncols=2, frameon=False)
    event, of = (
        ("labels that are present", "a label")
        if findings.is_multilabel
        else ("right predictions", "the class")
    )
    top.set_title(f"Reliability ({subtitle})", pad=24)
    top.set(ylabel=f"fraction of {event}", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    top.grid(color=LINE, linewidth=0.6)
    below.set_xlabel(f"predicted probability of {of}, in {len(EDGES) - 1} bins")
    below.set_ylabel("labels" if findings.is_multilabel else "images")
    below.yaxis.set_major_formatter("{x:,.0f}")
    fig.align_ylabels()
    return fig


def image_grid(
    stacks: Sequence[Sequence[Image]], captions: Sequence[str], is_right: Sequence[bool], title: str
) -> Figure:
    """Draw images (C, H, W), or vertical stacks of them, with a caption below each.

    Captions of mistakes are red. Floats can be of any range, because each image is drawn from its
    darkest to its brightest value. All images are in one `Axes` whose units are inches, which is
    faster than one for each.
    """
    num_lines = max([2, *(caption.count("\n") + 1 for caption in captions)])
    num_rows = -(-len(captions) // NUM_COLUMNS)
    cell = (IMAGE_SIDE + GAP) * len(stacks) + CAPTION * num_lines + 0.09
    height = GRID_TOP + cell * num_rows
    fig = new_figure(height)
    fig.set_layout_engine("none")
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    ax.set_axis_off()
    ax.text(0.07, 0.08, title, va="top", fontsize=11, fontweight="bold")
    wide = WIDTH / NUM_COLUMNS
    for number, (caption, is_hit, *stack) in enumerate(
        zip(captions, is_right, *stacks, strict=False)
    ):
        row, column = divmod(number, NUM_COLUMNS)
        x, y = (column + 0.5) * wide, GRID_TOP + row * cell
        for image in stack:
            pixels = image[: 3 if len(image) >= 3 else 1].transpose(1, 2, 0)
            if pixels.dtype != np.uint8:
                pixels = (
                    (255 * (pixels - pixels.min()) / max(pixels.max() - pixels.min(), 1e-12))
                    .round()
                    .astype(np.uint8)
                )
            tall, half_width = (
                IMAGE_SIDE * side / max(pixels.shape[:2])
                for side in (pixels.shape[0], pixels.shape[1] / 2)
            )
            extent = (x - half_width, x + half_width, y + IMAGE_SIDE, y + IMAGE_SIDE - tall)
            ax.imshow(
                pixels,
                "gray",
                vmin=0,
                vmax=255,
                interpolation="nearest",
                extent=extent,
                aspect="auto",
            )
            y += IMAGE_SIDE + GAP
        color = DARK if is_hit else RED
        ax.text(x, y, caption, ha="center", va="top", fontsize=7.5, color=color)
    return fig


def write_sheet(
    path: Path,
    stacks: Sequence[Sequence[Image]],
    captions: Sequence[str],
    is_right: Sequence[bool],
    title: str,
) -> None:
    """Write a grid of images to a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with style(), atomic_file(path) as file:
        image_grid(stacks, captions, is_right, title).savefig(file, format="png", dpi=DPI)


def image_at(pixels: Pixels, position: int) -> Image:
    """Return an image (C, H, W) for people. An image file is shown completely, scaled to SIDE."""
    if isinstance(pixels, ImageFiles):
        pixels = replace(
            pixels,
            preprocessing=replace(
                pixels.preprocessing, size=(SIDE, SIDE), fit="letterbox", crop_percent=1.0
            ),
        )
    return pixels[torch.tensor([position])][0].numpy()


def short_name(name: str, max_length: int = 18, *, is_end: bool = False) -> str:
    """Truncate a name to its first or last characters, at most `max_length` of them."""
    line = " ".join(name.split())
    if len(line) <= max_length:
        return line
    return f"…{line[1 - max_length :]}" if is_end else line[: max_length - 1].rstrip(" _-") + "…"
