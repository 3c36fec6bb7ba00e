"""A copy is the source file by file, whoever makes it, however often and however that ends; and it goes when unused."""

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

from lockstep.data.images import cache as caches
from lockstep.data.images.listing import list_classes
from lockstep.data.transfer import copying
from lockstep.training import assembly, staging
from tests.support.commands import Command
from tests.support.copies import contents, copy_of, make, section
from tests.support.harness import ROOT, wait_until
from tests.support.image_files import CHANGES, write_folder, write_image


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "my images", count=6)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of all files that are copied."""
    names: list[str] = []
    copy_file = copying.copy_file

    def noted(source: Path, path: Path) -> None:
        names.append(source.name)
        copy_file(source, path)

    monkeypatch.setattr(copying, "copy_file", noted)
    yield names
    names.clear()


def test_a_copy_has_the_images_of_the_source_and_nothing_else(
    root: Path, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "notes.tar").write_bytes(b"large")
    (root / "red fox" / "._hidden.png").write_bytes(b"x")
    elsewhere = write_image(root.parent / "linked.png", seed=3)
    (root / "red fox" / "linked.png").symlink_to(elsewhere)
    (root / "grey fox").symlink_to(root / "red fox")  # a class folder may be a link
    copy = make(root, scratch)
    expected = {name: (root / name).read_bytes() for name in list_classes(str(root)).names}
    assert contents(copy.folder) == expected
    assert not any(path.is_symlink() for path in copy.folder.rglob("*"))
    assert sorted(path.name for path in copy.place.iterdir()) == [".copied", ".lock", ".used", "my images"]
    assert "Copied 20 files of my images (" in capsys.readouterr().out


def test_a_second_run_copies_nothing(root: Path, scratch: Path, fetched: list[str]) -> None:
    copy = make(root, scratch)
    assert len(fetched) == 12
    before = {path: path.stat().st_ctime_ns for path in copy.place.rglob("*") if path.is_file()}
    assert make(root, scratch) == copy
    assert {path: path.stat().st_ctime_ns for path in copy.place.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("change", CHANGES)
def test_of_a_changed_source_only_what_changed_is_copied(
    root: Path, scratch: Path, fetched: list[str], change: str
) -> None:
    path = write_image(root / "red fox" / "a.bmp", seed=5)
    make(root, scratch)
    fetched.clear()
    CHANGES[change](path)
    copy = make(root, scratch)
    assert contents(copy.folder) == contents(root)
    assert len(fetched) == (0 if change == "removed" else 1)


def test_a_class_that_is_gone_leaves_no_folder(root: Path, scratch: Path) -> None:
    write_image(root / "owl" / "deep" / "1.png")
    copy = make(root, scratch)
    shutil.rmtree(root / "owl")
    make(root, scratch)
    assert list_classes(str(copy.folder)).class_names == list_classes(str(root)).class_names == ("red fox", "ärger 狐")


@pytest.mark.parametrize("damage", ["deleted", "cut", "written to", "added"])
def test_a_damaged_copy_is_mended(root: Path, scratch: Path, fetched: list[str], damage: str) -> None:
    copy = make(root, scratch)
    fetched.clear()
    path = copy.folder / "red fox" / "bild ü 01.png"
    if damage == "deleted":
        path.unlink()
    elif damage == "added":
        write_image(path.with_name("new.png"))
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else path.read_bytes()[::-1])
    make(root, scratch)
    assert contents(copy.folder) == contents(root)
    assert fetched == ([] if damage == "added" else ["bild ü 01.png"])


def test_a_copy_lists_as_its_source_does_so_that_one_cache_serves_both(root: Path, scratch: Path) -> None:
    copy = make(root, scratch)
    one = list_classes(str(root))
    for is_last in (False, True):
        other = list_classes(str(copy.folder))
        assert (one.digest, one.origin, one.names) == (other.digest, other.origin, other.names)
        assert one.folder != other.folder
        entries = [
            caches.entry("cache", listing, image_size=8, channels=3, background="white") for listing in (one, other)
        ]
        assert entries[0] == entries[1]
        if not is_last:
            copy.remove()
            assert not copy.place.exists()
            make(root, scratch)  # other files, other times: the same state of the source
    write_image(copy.folder / "red fox" / "not of the source.png")
    changed = list_classes(str(copy.folder))
    assert changed.digest != one.digest
    assert changed.origin == str(copy.folder.resolve())


def test_sources_of_one_name_have_places_of_their_own(tmp_path: Path, scratch: Path) -> None:
    one, other = (make(write_folder(tmp_path / name / "images", count=2), scratch) for name in ("a", "b"))
    assert one.place != other.place
    assert one.folder.name == other.folder.name == "images"


KILLED = """
import sys, time
from pathlib import Path
from lockstep.data.transfer import copying
from tests.support.copies import make

copy_file, count = copying.copy_file, 0
copying.NUM_THREADS = 1

def fourth(source, path):
    global count
    count += 1
    if count > 4:
        path.write_bytes(source.read_bytes()[:10])
        print("half", flush=True)
        time.sleep(600)
    copy_file(source, path)

copying.copy_file = fourth
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


@pytest.mark.processes
def test_a_killed_copier_leaves_no_whole_copy_and_the_next_one_goes_on(
    root: Path, scratch: Path, fetched: list[str]
) -> None:
    copy = copy_of(root, scratch)
    with half_copied(root, scratch):
        assert copying.note(copy.folder) is None
        assert len(contents(copy.folder)) == 4
        assert len(list(copy.place.glob(".part*"))) == 1
    make(root, scratch)
    assert len(fetched) == 12 - 4
    assert contents(copy.folder) == contents(root)
    assert list(copy.place.glob(".part*")) == []
    assert copying.note(copy.folder) is not None


@pytest.mark.processes
@pytest.mark.parametrize("name", [copying.RECORD, copying.JOURNAL])
def test_a_record_that_a_power_cut_left_as_zeros_is_of_no_file(root: Path, scratch: Path, name: str) -> None:
    copy = make(root, scratch)
    content = (copy.place / copying.RECORD).read_bytes()
    (copy.place / copying.RECORD).unlink()
    first, _, rest = content.partition(b"\n")
    (copy.place / name).write_bytes((first + b"\n" if name == copying.RECORD else b"") + rest[:150] + bytes(100))
    make(root, scratch)
    assert contents(copy.folder) == contents(root)
    assert copying.note(copy.folder) is not None


def test_a_renewal_that_is_killed_is_no_whole_copy_either(root: Path, scratch: Path, fetched: list[str]) -> None:
    copy = make(root, scratch)
    for number in range(6):
        write_image(root / "red fox" / f"new {number}.png", seed=number)
    with half_copied(root, scratch):
        assert copying.note(copy.folder) is None
    fetched.clear()
    make(root, scratch)
    assert len(fetched) == 6 - 4
    assert contents(copy.folder) == contents(root)


@pytest.mark.processes
def test_a_second_run_waits_for_the_copy_of_the_first(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str]
) -> None:
    with half_copied(root, scratch) as copier:
        monkeypatch.setattr(copying.time, "sleep", lambda seconds: copier.kill())
        copy = make(root, scratch)
    assert len(fetched) == 8
    assert contents(copy.folder) == contents(root)


def test_a_file_that_is_cut_short_while_it_is_copied_is_named(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "copy_file", lambda source, path: path.write_bytes(source.read_bytes()[:-1]))
    with pytest.raises(ValueError, match=r"png has \d+ bytes, not \d+: it changed while it was copied"):
        make(root, scratch)
    assert copying.note(copy_of(root, scratch).folder) is None


def test_a_copy_goes_when_the_last_of_its_readers_leaves(root: Path, scratch: Path) -> None:
    asked = section(root, scratch, copy_remove=True)
    copy = copy_of(root, scratch)

    def read(held: contextlib.ExitStack, local_rank: int = 0) -> None:
        staging.once_a_node(asked, lambda _: None, rank=0, local_rank=local_rank, is_silent=True, held=held)

    with contextlib.ExitStack() as outer:
        read(outer)
        with contextlib.ExitStack() as inner:
            read(inner)
        assert contents(copy.folder) == contents(root)
        with contextlib.ExitStack() as failed:
            read(failed)
        assert contents(copy.folder) == contents(root)
    assert list(scratch.iterdir()) == []


def test_a_run_that_does_not_ask_keeps_the_copy_also_from_one_that_asks(root: Path, scratch: Path) -> None:
    copy = copy_of(root, scratch)
    with contextlib.ExitStack() as held:
        staging.once_a_node(section(root, scratch), lambda _: 0, rank=0, local_rank=0, is_silent=True, held=held)
        staging.remove_unused(section(root, scratch, copy_remove=True))
        assert copy.folder.exists()
    assert copy.folder.exists()
    staging.remove_unused(section(root, scratch))
    assert copy.folder.exists()
    staging.remove_unused(section(root, scratch, copy_remove=True))
    assert list(scratch.iterdir()) == []


READER = """
import contextlib, sys, time
from pathlib import Path
from lockstep.training import staging
from tests.support.copies import section
with contextlib.ExitStack() as held:
    asked = section(sys.argv[1], sys.argv[2], copy_remove=True)
    staging.once_a_node(asked, lambda _: 0, rank=0, local_rank=0, is_silent=True, held=held)
    print("reads", flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_a_killed_reader_keeps_no_copy_from_being_removed(root: Path, scratch: Path) -> None:
    asked = section(root, scratch, copy_remove=True)
    command = [sys.executable, "-c", READER, str(root), str(scratch)]
    with Command(command, ROOT, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "reads\n"
            staging.remove_unused(asked)
            assert copy_of(root, scratch).folder.exists()
        finally:
            reader.kill()
    wait_until(lambda: staging.remove_unused(asked) or not list(scratch.iterdir()))


def test_a_place_that_is_removed_while_another_process_waits_for_it_is_made_anew(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = make(root, scratch)
    with open(copy.place / ".lock") as other:
        copying.fcntl.flock(other, copying.fcntl.LOCK_EX)

        def removed(seconds: float) -> None:
            shutil.rmtree(copy.place)
            other.close()

        monkeypatch.setattr(copying.time, "sleep", removed)
        make(root, scratch)
    assert contents(copy.folder) == contents(root)
    assert (copy.place / ".lock").exists()


def test_a_disk_that_is_too_small_is_named_before_anything_is_copied(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 4096, 4096))  # pyright: ignore[reportAttributeAccessIssue]
    message = rf"data\.copy_to={scratch} needs 0\.00 GiB, but its disk has .* GiB free, .*: make room .*copy_to=null"
    with pytest.raises(ValueError, match=message):
        make(root, scratch)
    assert fetched == []


def test_a_disk_that_fills_up_is_named_and_what_is_there_stays(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str]
) -> None:
    copy_file = copying.copy_file

    def full(source: Path, path: Path) -> None:
        copy_file(source, path)
        if len(fetched) > 5:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(copying, "copy_file", full)
        patch.setattr(copying, "NUM_THREADS", 1)
        with pytest.raises(ValueError, match=r"data\.copy_to=.*No space left on device.*: make room"):
            make(root, scratch)
    fetched.clear()
    copy = make(root, scratch)
    assert len(fetched) == 7
    assert contents(copy.folder) == contents(root)


def test_a_folder_that_cannot_be_written_is_named_with_the_cure(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for scratch in (tmp_path / "file", Path("/proc/lockstep")):
        with pytest.raises(ValueError, match=rf"data\.copy_to={scratch} cannot be used .*data\.copy_to=null"):
            make(root, scratch)


def test_a_source_that_is_missing_is_named_and_leaves_no_place(tmp_path: Path, scratch: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.root=.*nowhere does not exist"):
        make(tmp_path / "nowhere", scratch)


def test_a_source_that_cannot_be_read_is_not_the_fault_of_the_scratch_disk(
    root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(source))

    monkeypatch.setattr(copying, "copy_file", refused)
    with pytest.raises(ValueError, match=r"my images: .*png cannot be read \(Permission denied\)"):
        make(root, scratch)


def test_a_copy_inside_its_source_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.copy_to=.*lies in what it is to copy"):
        make(root, root / "red fox")


def test_a_place_of_somebody_else_is_refused(root: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = copy_of(root, scratch)
    scratch.mkdir()
    (scratch.parent / "elsewhere").mkdir()
    copy.place.symlink_to(scratch.parent / "elsewhere")  # set up by another user of /tmp
    with pytest.raises(ValueError, match=r"belongs to somebody else: set data\.copy_to to a folder of your own"):
        make(root, scratch)
    copy.place.unlink()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="belongs to somebody else"):
        make(root, scratch)
    assert list((scratch.parent / "elsewhere").iterdir()) == []


def test_what_is_wrong_in_a_copy_is_told_with_what_it_is_a_copy_of(root: Path, scratch: Path) -> None:
    (root / "red fox" / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken\.png cannot be read.*") as caught:
        make(root, scratch, assembly.source)
    assert str(caught.value).endswith(f"({copy_of(root, scratch).folder} is the copy of {root})")
