"""A copy has the files of the source after any number of runs, kills and errors."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem

from lockstep.assembly import run_parts
from lockstep.config.schema.target_sections import Data
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_table import COPY_RECORD, list_classes
from lockstep.data.splits import Splits, whole
from tests.support.commands import Command
from tests.support.copies import contents, listed, make, read, section, shown, times
from tests.support.harness import ROOT
from tests.support.image_files import CHANGES, VIEW, write_folder, write_image, write_list


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
    (root / "grey fox").symlink_to(root / "red fox")  # a class folder may be a link
    folder = make(root, scratch)
    assert contents(folder) == {name: (root / name).read_bytes() for name in list_classes(str(root)).names}
    for link in filter(Path.is_symlink, folder.rglob("*")):
        assert link.resolve().is_relative_to(folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == [COPY_RECORD, "my images"]
    before = times(folder)
    assert make(root, scratch) == folder  # a second run copies nothing
    assert times(folder) == before


def test_links_are_one_image_in_a_copy_too(root: Path, scratch: Path) -> None:
    for path in sorted((root / "red fox").glob("*.png")):
        (root / "red fox" / f"a {path.name}").symlink_to(path)
    _, direct = loaded(section(root, None))
    for _ in range(2):  # copied, and found
        place, copied = loaded(section(root, scratch))
        assert place != str(root)
        assert [part.names for part in copied.parts.values()] == [part.names for part in direct.parts.values()]


@pytest.mark.parametrize("change", ["changed", "added", "renamed"])
def test_changed_source_is_copied_again(root: Path, scratch: Path, change: str) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    old = make(root, scratch)
    before = contents(old)
    CHANGES[change](path)
    new = make(root, scratch)
    assert contents(new) == contents(root)
    assert contents(old) == before  # another run may read it


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda folder: (folder / "red fox" / "bild ü 01.png").unlink(),  # as old files of a scratch disk are
    "no record": lambda folder: (folder.parent / COPY_RECORD).unlink(),
    "written to": lambda folder: write_image(folder / "red fox" / "bild ü 01.png", seed=9),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_copy_is_made_again(root: Path, scratch: Path, damage: str) -> None:
    folder = make(root, scratch)
    DAMAGES[damage](folder)
    assert make(root, scratch) == folder
    assert contents(folder) == contents(root)


def test_copy_and_source_have_one_cache(root: Path, scratch: Path) -> None:
    one = list_classes(str(root))
    for _ in range(2):
        folder = make(root, scratch)
        other = list_classes(str(folder))
        assert one.folder != other.folder
        assert (one.digest, one.origin, one.names) == (other.digest, other.origin, other.names)
        entries = [Decoding(table=table, view=VIEW, channels=3, cache="cache").path for table in (one, other)]
        assert entries[0] == entries[1]
        shutil.rmtree(folder.parent)  # the next one has other files and times: the same state of the source
    folder = make(root, scratch)
    write_image(folder / "red fox" / "not of the source.png")
    changed = list_classes(str(folder))
    assert changed.digest != one.digest
    assert changed.origin == str(folder.resolve())


# -- lists -------------------------------------------------------------------------------------------------------------


def loaded(data: Data) -> tuple[str, Splits]:
    """The root a run reads, and its images."""
    return read(data, lambda local: (local.root, run_parts.source(local)))


@pytest.mark.parametrize("is_absolute", [False, True])
def test_list_is_copied_with_its_images_only(tmp_path: Path, scratch: Path, is_absolute: bool) -> None:
    folder = tmp_path / "photos"
    names = [str(write_image(folder / f"deep er/{i:02d}.png", seed=i).relative_to(folder)) for i in range(20)]
    write_image(folder / "not in the list.png")
    prefix = f"{folder}/" if is_absolute else "./"
    rows = [{"path": f"{prefix}{name}", "label": "ab"[i % 2]} for i, name in enumerate(names)]
    file = write_list(folder / "list.csv", [*rows, rows[0]])  # one is listed twice
    settings = {"cache": str(tmp_path / "cache")}
    _, direct = loaded(listed(file, None, **settings))
    root, copied = loaded(listed(file, scratch, **settings))
    assert contents(Path(root)) == {name: (folder / name).read_bytes() for name in names}
    for split, part in direct.parts.items():
        assert part.names == copied.parts[split].names
        assert torch.equal(whole(part.pixels), whole(copied.parts[split].pixels))
    assert len(list((tmp_path / "cache").glob("*/*.rows"))) == 1
    loaded(listed(write_list(folder / "other.csv", rows[:12]), scratch, **settings))
    assert len(shown(scratch)) == 2  # none takes away the files of the other


def test_list_with_image_above_its_folder_is_refused(tmp_path: Path, scratch: Path) -> None:
    write_image(tmp_path / "above.png")
    rows = [{"path": write_image(tmp_path / f"photos/{i}.png").name, "label": "ab"[i % 2]} for i in range(9)]
    file = write_list(tmp_path / "photos" / "list.csv", [{"path": "../above.png", "label": "a"}, *rows])
    with pytest.raises(ValueError, match=r"data\.copy_to=.*: \.\./above\.png is not below"):
        loaded(listed(file, scratch))
    assert not list(scratch.rglob("*.png"))


# -- other processes ---------------------------------------------------------------------------------------------------


KILLED = """
import sys, time
from pathlib import Path
from fsspec.implementations.local import LocalFileSystem
from lockstep.data.transfer import copying
from tests.support.copies import make

get_file, count = LocalFileSystem.get_file, 0
copying.NUM_THREADS = 1

def fourth(self, source, path):
    global count
    count += 1
    if count > 4:
        Path(path).write_bytes(Path(source).read_bytes()[:10])
        print("half", flush=True)
        time.sleep(600)
    get_file(self, source, path)

LocalFileSystem.get_file = fourth
make(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.full
@pytest.mark.processes
def test_waits_for_another_process_and_copies_after_it_was_killed(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", KILLED, str(root), str(scratch)]
    with Command(command, ROOT, stdout=subprocess.PIPE, text=True) as copier:
        assert copier.stdout is not None
        try:
            assert copier.stdout.readline() == "half\n"
            (part,) = shown(scratch)
            assert len(contents(part)) == 5
            monkeypatch.setattr("builtins.print", lambda text, **_: text.startswith("Waiting") and copier.kill())
            folder = make(root, scratch)
        finally:
            copier.kill()
    assert contents(folder) == contents(root)
    assert shown(scratch) == [folder.parent]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_full_disk(root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalFileSystem, source: str, path: str) -> None:
        Path(path).write_bytes(Path(source).read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device", path)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFileSystem, "get_file", full)
        with pytest.raises(ValueError, match=r"data\.copy_to=.*No space left"):
            make(root, scratch)
    assert contents(make(root, scratch)) == contents(root)


def test_copy_inside_its_source_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.copy_to=.*inside"):
        make(root, root / "red fox")


def test_copy_of_another_user_is_refused(root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
