"""A copy has the files of the source after any number of runs and kills, and is removed when it is unused."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep.assembly import data_copies, run_parts, staging
from lockstep.config.errors import ConfigError
from lockstep.config.schema.target_sections import Data
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_table import list_classes
from lockstep.data.splits import Splits, whole
from lockstep.data.transfer import copying
from tests.support.commands import Command
from tests.support.copies import begin, contents, listed, make, section, shown
from tests.support.harness import ROOT
from tests.support.image_files import CHANGES, VIEW, write_folder, write_image, write_list


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my images", count=6)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def test_a_copy_has_the_images_of_the_source_and_nothing_else(
    root: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "notes.tar").write_bytes(b"large")
    (root / "red fox" / "._hidden.png").write_bytes(b"x")
    elsewhere = write_image(root.parent / "linked.png", seed=3)
    (root / "red fox" / "linked.png").symlink_to(elsewhere)
    (root / "grey fox").symlink_to(root / "red fox")  # a class folder may be a link
    folder = make(root, scratch)
    expected = {name: (root / name).read_bytes() for name in list_classes(str(root)).names}
    assert contents(folder) == expected
    for link in filter(Path.is_symlink, folder.rglob("*")):
        assert link.resolve().is_relative_to(folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".copied", "my images"]
    assert shown(scratch) == [folder.parent]
    assert "Copied 20 files of my images (" in capsys.readouterr().out
    before = {path: path.stat().st_ctime_ns for path in folder.rglob("*")}
    assert make(root, scratch) == folder  # a second run copies nothing
    assert {path: path.stat().st_ctime_ns for path in folder.rglob("*")} == before


def test_links_are_one_image_in_a_copy_too(root: Path, scratch: Path) -> None:
    for path in sorted((root / "red fox").glob("*.png")):
        (root / "red fox" / f"a {path.name}").symlink_to(path)
    _, direct = loaded(section(root, None))
    for _ in range(2):  # copied, and found
        place, copied = loaded(section(root, scratch))
        assert place is not None
        assert place != str(root)
        for split, part in direct.parts.items():
            assert part.names == copied.parts[split].names


@pytest.mark.parametrize("change", ["changed", "added", "renamed"])
def test_a_changed_source_is_copied_again_and_its_old_copy_removed_unless_it_is_used(
    root: Path, scratch: Path, change: str
) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    with contextlib.ExitStack() as held:
        old = begin(section(root, scratch), held)
        before = contents(old)
        CHANGES[change](path)
        new = make(root, scratch)
        assert contents(new) == contents(root)
        assert contents(old) == before
    assert make(root, scratch) == new
    assert shown(scratch) == [new.parent]


@pytest.mark.parametrize("damage", ["deleted", "written to", "added", "no record"])
def test_a_damaged_copy_is_made_again(root: Path, scratch: Path, damage: str) -> None:
    folder = make(root, scratch)
    path = folder / "red fox" / "bild ü 01.png"
    if damage == "deleted":
        path.unlink()
    elif damage == "added":
        write_image(path.with_name("new.png"))
    elif damage == "no record":
        (folder.parent / copying.RECORD).write_bytes(bytes(100))  # what a power cut leaves
    else:
        path.write_bytes(path.read_bytes()[::-1])
    assert make(root, scratch) == folder
    assert contents(folder) == contents(root)


def test_a_copy_lists_as_its_source_does_so_that_one_cache_serves_both(root: Path, scratch: Path) -> None:
    folder = make(root, scratch)
    one = list_classes(str(root))
    for is_last in (False, True):
        other = list_classes(str(folder))
        assert (one.digest, one.origin, one.names) == (other.digest, other.origin, other.names)
        assert one.folder != other.folder
        entries = [Decoding(table=table, view=VIEW, channels=3, cache="cache").path for table in (one, other)]
        assert entries[0] == entries[1]
        if not is_last:
            shutil.rmtree(folder.parent)
            make(root, scratch)  # other files, other times: the same state of the source
    write_image(folder / "red fox" / "not of the source.png")
    changed = list_classes(str(folder))
    assert changed.digest != one.digest
    assert changed.origin == str(folder.resolve())


# -- lists -------------------------------------------------------------------------------------------------------------


def loaded(asked: Data) -> tuple[str | None, Splits]:
    """The root a run reads, and its images."""
    with contextlib.ExitStack() as held:
        load = lambda local: (local.root, run_parts.source(local))  # noqa: E731
        return staging.once_a_node(asked, load, rank=0, local_rank=0, is_silent=False, held=held)


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_list_is_copied_with_its_images_only_and_read_as_in_place(
    tmp_path: Path, scratch: Path, is_absolute: bool
) -> None:
    folder = tmp_path / "photos"
    names = [str(write_image(folder / f"deep er/{i:02d}.png", seed=i).relative_to(folder)) for i in range(20)]
    write_image(folder / "not in the list.png")
    rows = [
        {"path": str(folder / name) if is_absolute else f"./{name}", "label": "ab"[i % 2]}
        for i, name in enumerate(names)
    ]
    file = write_list(folder / "list.csv", [*rows, rows[0]])  # one is listed twice
    settings = {"cache": str(tmp_path / "cache")}
    _, direct = loaded(listed(file, None, **settings))
    decoded = list((tmp_path / "cache").glob("*/*.npy"))
    root, copied = loaded(listed(file, scratch, **settings))
    assert root is not None
    assert contents(Path(root)) == {name: (folder / name).read_bytes() for name in names}
    for split, part in direct.parts.items():
        assert part.names == copied.parts[split].names
        assert torch.equal(whole(part.pixels), whole(copied.parts[split].pixels))
    assert list((tmp_path / "cache").glob("*/*.npy")) == decoded  # one cache serves both
    other = write_list(folder / "other.csv", rows[:12])
    loaded(listed(other, scratch, **settings))
    assert len(shown(scratch)) == 2  # none takes away the files of the other
    loaded(listed(file, scratch, **settings, copy_remove=True))
    assert len(shown(scratch)) == 1


def test_a_list_with_an_image_above_its_folder_is_not_copied(tmp_path: Path, scratch: Path) -> None:
    write_image(tmp_path / "above.png")
    rows = [{"path": write_image(tmp_path / f"photos/{i}.png").name, "label": "ab"[i % 2]} for i in range(9)]
    file = write_list(tmp_path / "photos" / "list.csv", [{"path": "../above.png", "label": "a"}, *rows])
    message = r"data\.copy_to=.*: \.\./above\.png of data\.file=.* is not below .*: set data\.root to a folder"
    with pytest.raises(ValueError, match=message):
        loaded(listed(file, scratch))
    assert not scratch.exists() or not shown(scratch)


# -- other processes ---------------------------------------------------------------------------------------------------


KILLED = """
import sys, time
from pathlib import Path
from lockstep.data.transfer import copying
from tests.support.copies import make

copy_file, count = copying.shutil.copyfile, 0
copying.NUM_THREADS = 1

def fourth(source, path):
    global count
    count += 1
    if count > 4:
        path.write_bytes(source.read_bytes()[:10])
        print("half", flush=True)
        time.sleep(600)
    copy_file(source, path)

copying.shutil.copyfile = fourth
make(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@contextlib.contextmanager
def half_copied(root: Path, scratch: Path) -> Iterator[Command]:
    """Another process that has copied four files and stops in the fifth."""
    command = [sys.executable, "-c", KILLED, str(root), str(scratch)]
    with Command(command, ROOT, stdout=subprocess.PIPE, text=True) as copier:
        assert copier.stdout is not None
        try:
            assert copier.stdout.readline() == "half\n"
            yield copier
        finally:
            copier.send_signal(signal.SIGKILL)


@pytest.mark.full
@pytest.mark.processes
def test_a_run_waits_for_the_copy_of_another_one_and_copies_after_that_was_killed(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with half_copied(root, scratch):
        (part,) = shown(scratch)
        assert part.name.endswith("-part")
        assert len(contents(part)) == 5
    data_copies.remove_unused(section(root, scratch, copy_remove=True))
    assert shown(scratch) == []
    printed: list[str] = []
    with half_copied(root, scratch) as copier:
        monkeypatch.setattr("builtins.print", lambda text, **_: (printed.append(text), copier.kill()))
        folder = make(root, scratch)
    assert printed[0] == "Waiting for another process, which copies my images."
    assert contents(folder) == contents(root)
    assert shown(scratch) == [folder.parent]


@pytest.mark.full
def test_copy_remove_removes_the_copy_after_its_last_reader(root: Path, scratch: Path) -> None:
    removing = section(root, scratch, copy_remove=True)
    with contextlib.ExitStack() as outer:
        folder = begin(section(root, scratch), outer)
        with contextlib.ExitStack() as inner:
            assert begin(removing, inner) == folder
        assert contents(folder) == contents(root)
    assert folder.exists()
    make(root, scratch, copy_remove=True)
    assert shown(scratch) == []


def test_a_copy_that_is_being_made_is_not_removed(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(copying, "REMOVE_S", 0.1)
    folder = make(root, scratch)
    (lock,) = scratch.glob(".*.lock")
    with copying.wait_for_lock(lock, "copies"):
        data_copies.remove_unused(section(root, scratch, copy_remove=True))
    assert contents(folder) == contents(root)
    assert "are not removed: " in capsys.readouterr().err


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_file_that_is_cut_short_while_it_is_copied_is_named(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "copyfile", lambda source, path: path.write_bytes(source.read_bytes()[:-1]))
    with pytest.raises(ValueError, match=r"my images: .*png changed while it was copied: start"):
        make(root, scratch)
    assert shown(scratch) == []


def test_a_disk_that_is_too_small_is_named_before_anything_is_copied(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 99, 99))  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(shutil, "copyfile", lambda *_: pytest.fail("is copied"))
    message = (
        rf"data\.copy_to={scratch}: .* cannot be copied \(it has 0\.00 GiB, but the disk has .* GiB free\): .*space"
    )
    with pytest.raises(ValueError, match=message):
        make(root, scratch)


def test_a_disk_that_fills_up_is_named_and_nothing_is_left_on_it(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, path: Path) -> None:
        path.write_bytes(source.read_bytes()[:10])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(
        ValueError, match=r"data\.copy_to=.*No space left on device.*permissions and free space, or use"
    ):
        make(root, scratch)
    assert shown(scratch) == []


def test_a_copy_inside_its_source_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.copy_to=.*lies inside the folder to copy"):
        make(root, root / "red fox")


def test_a_copy_of_another_user_is_refused(root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make(root, scratch).parent
    shutil.rmtree(place)
    (elsewhere := scratch.parent / "elsewhere").mkdir()
    place.symlink_to(elsewhere)  # set up by another user of /tmp
    with pytest.raises(ValueError, match=r"belongs to another user\): .*use a folder of your own"):
        make(root, scratch)
    place.unlink()
    place.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="belongs to another user"):
        make(root, scratch)
    assert list(elsewhere.iterdir()) == []


def test_errors_in_a_copy_name_the_source(root: Path, scratch: Path) -> None:
    (root / "red fox" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ConfigError) as caught, contextlib.ExitStack() as held:
        begin(section(root, scratch), held, run_parts.source)
    copy = make(root, scratch)
    error = f"image {copy / 'red fox' / 'broken.png'} cannot be read (not an image): replace or delete it."
    assert str(caught.value) == f"{error} ({copy} is the copy of {root})"
