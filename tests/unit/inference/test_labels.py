"""The predictions of a sweep as `lockstep labels` reads them: a file in a folder, which may be a stranger's."""

from pathlib import Path

import pytest
from PIL import Image

from lockstep.inference.labels import _draw  # pyright: ignore[reportPrivateUsage]
from lockstep.inference.tables import read
from tests.support.sources import few_digits

GOOD = "file,truth,prediction,'=a,b,fold\n'-1.png,'=a,b,0.25,0.75,0\n2.png,b,b,0.1,0.9,1\n"


def test_cells_that_are_safe_in_a_spreadsheet_are_read_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text(GOOD)
    lines, classes, labels, probabilities = read([tmp_path / "all.csv", tmp_path / "all.csv"])
    assert ([line[0] for line in lines], classes) == (["-1.png", "2.png"] * 2, ["=a", "b"])
    assert (labels.tolist(), probabilities[:, 1].tolist()) == ([0, 1] * 2, [0.75, 0.9] * 2)


def test_pictures_are_of_judged_images_that_are_there(tmp_path: Path) -> None:
    images = few_digits(count=5)
    names = [str(name) for name in images.train.names]
    rows = [
        [names[0], "0", "1", 0.1, 1, "test"],
        ["gone.png", "0", "1", 0.2, 0, "test"],
        [names[1], "0", "", "", 0, "train"],
    ]
    _draw(rows, images, tmp_path / "labels.png", "title")
    with Image.open(tmp_path / "labels.png") as sheet:
        assert sheet.size == (936, 279)


def test_a_link_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.csv").write_text(GOOD)
    (tmp_path / "all.csv").symlink_to("elsewhere.csv")
    with pytest.raises(ValueError, match=r"all\.csv does not have the probability of each class"):
        read([tmp_path / "all.csv"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD.partition("\n")[0] + "\n",
        GOOD.replace("0.75", "nan"),
        GOOD.replace("0.75", "1.5"),
        GOOD.replace("0.75", "much"),
        GOOD.replace("0.75,", ""),
        GOOD.replace("2.png,b", "2.png,c"),
        "file,truth,prediction,a,fold\n1.png,a,a,1.0,0\n",
        "file\n1.png\n",
        GOOD.replace("0.75", "0" * 200_000),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "all.csv").write_text(text)
    with pytest.raises(ValueError, match=r"all\.csv does not have the probability of each class in each row: the com"):
        read([tmp_path / "all.csv"])
