"""A copy has the files of the source after any number of runs, kills and errors."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lockstep.assembly import run_parts
from lockstep.config.schema.target_sections import Data
from lockstep.data.images.image_table import COPY_RECORD, list_classes
from lockstep.data.splits import Splits, all_pixels
from tests.support.copies import contents, listed, make, read, times
from tests.support.image_files import CHANGES, write_folder, write_image, write_list


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my images", count=6)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def test_copy_contains_only_images(root: Path, scratch: Path) -> None:
    (root / "notes.tar").write_bytes(b"large")
    (root / "red fox" / "._hidden.png").write_bytes(b"x")
    elsewhere = write_image(root.parent / "linked.png", seed=3)
    (root / "red fox" / "linked.png").symlink_to(elsewhere)
    (root / "gray fox").symlink_to(root / "red fox")  # a class folder may be a link
    folder = make(root, scratch)
    assert contents(folder) == {
        name: (root / name).read_bytes() for name in list_classes(str(root)).names
    }
    before = times(folder)
    assert make(root, scratch) == folder  # a second run copies nothing
    assert times(folder) == before


@pytest.mark.parametrize("change", ["changed", "added", "renamed"])
def test_changed_source_copied_again(root: Path, scratch: Path, change: str) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    old = make(root, scratch)
    before = contents(old)
    CHANGES[change](path)
    new = make(root, scratch)
    assert contents(new) == contents(root)
    assert contents(old) == before  # another run may read it


DAMAGES: dict[str, Callable[[Path], object]] = {
    # as old files of a scratch disk are
    "deleted": lambda folder: (folder / "red fox" / "bild ü 01.png").unlink(),
    "no record": lambda folder: (folder.parent / COPY_RECORD).unlink(),
    "written to": lambda folder: write_image(folder / "red fox" / "bild ü 01.png", seed=9),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_copy_replaced(root: Path, scratch: Path, damage: str) -> None:
    folder = make(root, scratch)
    DAMAGES[damage](folder)
    assert make(root, scratch) == folder
    assert contents(folder) == contents(root)


# -- lists -----------------------------------------------------------------------------------------


def loaded(data: Data) -> tuple[str, Splits]:
    """The root a run reads, and its images."""
    return read(data, lambda local: (local.root, run_parts.source(local)))


@pytest.mark.parametrize("is_absolute", [False, True])
def test_list_copy_listed_images(tmp_path: Path, scratch: Path, is_absolute: bool) -> None:
    folder = tmp_path / "photos"
    names = [
        str(write_image(folder / f"deep er/{i:02d}.png", seed=i).relative_to(folder))
        for i in range(20)
    ]
    write_image(folder / "not in the list.png")
    prefix = f"{folder}/" if is_absolute else "./"
    rows = [{"path": f"{prefix}{name}", "label": "ab"[i % 2]} for i, name in enumerate(names)]
    file = write_list(folder / "list.csv", [*rows, rows[0]])  # one is listed twice
    _, direct = loaded(listed(file, None))
    root, copied = loaded(listed(file, scratch))
    assert contents(Path(root)) == {name: (folder / name).read_bytes() for name in names}
    for split, part in direct.by_name.items():
        assert part.names == copied.by_name[split].names
        assert torch.equal(all_pixels(part.pixels), all_pixels(copied.by_name[split].pixels))


def test_list_image_above_folder_refused(tmp_path: Path, scratch: Path) -> None:
    write_image(tmp_path / "above.png")
    rows = [
        {"path": write_image(tmp_path / f"photos/{i}.png").name, "label": "ab"[i % 2]}
        for i in range(9)
    ]
    file = write_list(
        tmp_path / "photos" / "list.csv", [{"path": "../above.png", "label": "a"}, *rows]
    )
    with pytest.raises(ValueError, match=r"data\.copy_to=.*: \.\./above\.png is not below"):
        loaded(listed(file, scratch))
    assert not list(scratch.rglob("*.png"))


# -- what goes wrong -------------------------------------------------------------------------------


def test_copy_inside_source_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.copy_to=.*inside"):
        make(root, root / "red fox")


def test_foreign_copy_refused(root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(root, scratch).parent
    shutil.rmtree(place)
    (elsewhere := scratch.parent / "elsewhere").mkdir()
    place.symlink_to(elsewhere)  # set up by another user of /tmp
    with pytest.raises(ValueError, match="belongs to another user"):
        make(root, scratch)
    place.unlink()
    place.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="belongs to another user"):
        make(root, scratch)
    assert list(elsewhere.iterdir()) == []
