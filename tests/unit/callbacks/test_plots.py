"""Pictures of what a network got right and wrong: readable for two classes or a thousand, for any names."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from lockstep.callbacks import plots
from lockstep.models.outcomes import Findings, Quality

AWKWARD = ["$x_1$", "Ж", "日本", "a very long name of a class that does not fit", "", "  ", "<b>"]


def counts_of(num_classes: int) -> NDArray[np.int64]:
    made = np.random.default_rng(0)
    return made.integers(0, 5, (num_classes, num_classes)) + 50 * np.eye(num_classes, dtype=np.int64)


def drawn(figure: Figure) -> NDArray[np.uint8]:
    """The pixels of a figure; warnings of its layout are errors here."""
    with io.BytesIO() as file:
        figure.savefig(file, format="png", dpi=60)
        return np.asarray(Image.open(file).convert("RGB"))


def texts(figure: Figure) -> list[str]:
    """All texts inside the axes of a figure."""
    return [text.get_text() for ax in figure.axes for text in ax.texts]


@pytest.mark.parametrize("names", [AWKWARD, [f"class {n}" for n in range(30)], list(map(str, range(1000)))])
def test_every_picture_can_be_drawn_for_any_classes(names: list[str]) -> None:
    counts = counts_of(len(names))
    with plots.style():
        pixels = drawn(plots.confusion_matrix(counts, names, "title"))
    assert pixels.std() > 1
    assert pixels.shape[1] <= 12 * 60  # inches


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("n02099601_golden_retriever", "n02099601_golden…"),
        ("a very long name of a class", "a very long name…"),
        ("eighteen_letters_1", "eighteen_letters_1"),
        ("two\nlines", "two lines"),
        ("日本" * 12, "日本" * 8 + "日…"),
    ],
)
def test_a_long_name_is_cut_also_without_blanks(name: str, cut: str) -> None:
    assert plots.short_name(name) == cut


def test_a_matrix_shows_its_counts_and_of_many_classes_the_least_accurate() -> None:
    counts = np.array([[41, 0], [3, 1017]])
    assert sorted(texts(plots.confusion_matrix(counts, ["a", "b"], "title"))) == ["1,017", "3", "41"]
    many = counts_of(100)
    many[17] = 1
    with plots.style():
        figure = plots.confusion_matrix(many, list(map(str, range(100))), "title")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[0] == "17"
    assert len(labels) == plots.MOST_CLASSES
    assert figure.axes[0].get_title(loc="left") == "title: the 40 least accurate of 100 classes"


@pytest.mark.parametrize("channels", [1, 3])
def test_a_grid_shows_the_pixels_with_mistakes_in_red(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, channels, 8, 8)).astype(np.uint8)
    figure = plots.image_grid([[*pixels]], [f"no. {n}" for n in range(7)], [n != 6 for n in range(7)], "title")
    (ax,) = figure.axes
    shown = ax.images[6].get_array()
    assert shown is not None
    assert (np.asarray(shown) == (pixels[6, 0] if channels == 1 else pixels[6].transpose(1, 2, 0))).all()
    assert [text.get_text() for text in ax.texts] == ["title", *(f"no. {n}" for n in range(7))]
    assert [text.get_color() for text in ax.texts[6:]] == [plots.DARK, plots.RED]
    assert drawn(figure).std() > 1


@pytest.mark.parametrize("channels", [1, 3])
def test_floats_are_shown_from_the_darkest_to_the_brightest(channels: int) -> None:
    pixels = np.linspace(-2, 0.5, 2 * channels * 16, dtype=np.float32).reshape(2, channels, 4, 4)
    figure = plots.image_grid([[*pixels]], ["a\nb\nc\nd", "e"], [True, True], "title")
    for image in figure.axes[0].images:
        shown = np.asarray(image.get_array())
        assert (shown.min(), shown.max()) == pytest.approx((0, 255), abs=0.01)
        assert (shown.ndim, shown.shape[:2]) == (2 if channels == 1 else 3, (4, 4))
    bottom = figure.axes[0].images[0].get_extent()[2]
    assert figure.get_figheight() > bottom + 4 * plots.CAPTION, "four lines of a caption"


@pytest.mark.parametrize(("height", "width"), [(4, 8), (8, 4)])
def test_an_image_of_a_grid_keeps_its_shape_above_its_caption(height: int, width: int) -> None:
    figure = plots.image_grid([[*np.zeros((9, 3, height, width), np.uint8)]], ["caption"] * 9, [True] * 9, "title")
    (ax,) = figure.axes
    assert (ax.get_xlim(), ax.get_ylim()) == ((0, figure.get_figwidth()), (figure.get_figheight(), 0)), "in inches"
    boxes = [image.get_extent() for image in ax.images]
    for (left, right, bottom, top), caption in zip(boxes, ax.texts[1:], strict=True):
        assert (bottom - top) / (right - left) == pytest.approx(height / width)
        assert max(bottom - top, right - left) == pytest.approx(plots.PICTURE)
        assert caption.get_position()[0] == pytest.approx((left + right) / 2)
        assert bottom < caption.get_position()[1] < bottom + 0.1
    assert boxes[0][1] < boxes[1][0], "side by side"
    assert boxes[6][3] > ax.texts[1].get_position()[1] + 0.25, "two lines of a caption fit between two rows"


@pytest.mark.parametrize("shape", [(1,), (30,), (5000,), (300, 4)])
@pytest.mark.parametrize("is_calibrated", [False, True])
def test_a_reliability_diagram_has_its_bins_at_any_number_of_images(
    shape: tuple[int, ...], is_calibrated: bool
) -> None:
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
    top, below = figure.axes
    last, front = (own if is_calibrated else raw), top.lines[1].get_xydata()
    at = np.minimum((last.confidences * 15).astype(int), 14)
    expected = [(last.confidences[at == n].mean(), hits[at == n].mean()) for n in np.unique(at)]
    np.testing.assert_allclose(np.asarray(front), expected)
    legend = top.get_legend()
    assert legend is not None
    names = [text.get_text().partition(",")[0] for text in legend.get_texts()]
    assert names == (["calibrated", "not calibrated"] if is_calibrated else ["not calibrated"])
    assert below.get_ylabel() == ("images" if len(shape) == 1 else "labels")
