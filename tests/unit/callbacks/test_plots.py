"""Images of correct and wrong predictions are readable for any number and names of classes."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lockstep.callbacks import plots
from lockstep.models.predictions import Findings, Quality

AWKWARD = ["$x_1$", "Ж", "日本", "a very long name of a class that does not fit", "", "  ", "<b>"]


def drawn(figure: Figure) -> NDArray[np.uint8]:
    """The pixels of a figure; warnings of its layout are errors here."""
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=60)
        return np.asarray(Image.open(file).convert("RGB"))


@pytest.mark.parametrize("names", [AWKWARD, list(map(str, range(1000)))])
def test_confusion_matrix_any_classes(names: list[str]) -> None:
    noise = np.random.default_rng(0).integers(0, 5, (len(names), len(names)))
    counts = noise + 50 * np.eye(len(names), dtype=np.int64)
    with plots.style():
        pixels = drawn(plots.confusion_matrix(counts, names, "title"))
    assert pixels.std() > 1


@pytest.mark.parametrize("channels", [1, 3])
def test_image_grid(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, channels, 8, 8)).astype(np.uint8)
    figure = plots.image_grid(
        [[*pixels]], [f"no. {n}" for n in range(7)], [n != 6 for n in range(7)], "title"
    )
    (ax,) = figure.axes
    shown = np.asarray(ax.images[6].get_array())
    assert (shown == (pixels[6, 0] if channels == 1 else pixels[6].transpose(1, 2, 0))).all()
    assert drawn(figure).std() > 1


@pytest.mark.parametrize(
    ("shape", "is_calibrated"), [((1,), False), ((300,), True), ((300, 4), True)]
)
def test_reliability_bins(shape: tuple[int, ...], is_calibrated: bool) -> None:
    made = np.random.default_rng(0)
    confidences = made.random(shape) ** 0.3
    hits = (made.random(shape) < confidences**2).astype(np.int64)
    zeros = np.zeros(shape[0])
    raw, own = Quality(zeros, zeros, confidences), Quality(zeros, zeros, confidences**2)
    numbers = np.arange(shape[0]), hits, np.ones(shape, np.int64), confidences
    found = Findings(4, *numbers, raw, own if is_calibrated else None)
    with plots.style():
        figure = plots.reliability(found, "test, step 12")
        assert drawn(figure).std() > 1
    top, _ = figure.axes
    last, front = (own if is_calibrated else raw), top.lines[1].get_xydata()
    at = np.minimum((last.confidences * 15).astype(int), 14)
    expected = [(last.confidences[at == n].mean(), hits[at == n].mean()) for n in np.unique(at)]
    np.testing.assert_allclose(np.asarray(front), expected)
