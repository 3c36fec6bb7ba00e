"""Chunks of a prediction are joined in order, each once, and outlive a process that was killed while it wrote."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockstep.data.splits import ImageError
from lockstep.inference import row_chunks
from lockstep.inference.row_chunks import Chunk, Index
from lockstep.runs import files
from lockstep.runs.folder import RunFolder

INPUTS = {"checkpoint": "a", "images": "b", "settings": "c"}
REFUSED = r"out\.csv\.part is not a folder of this prediction: remove it, or choose another --output"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out.csv.part"


@contextlib.contextmanager
def opened(folder: Path, inputs: dict[str, str] = INPUTS) -> Iterator[Index]:
    with contextlib.ExitStack() as held:
        yield row_chunks.open_folder(folder, inputs, held)


def write(folder: Path, *found: Chunk) -> Path:
    path = row_chunks.new_file(folder)
    path.write_bytes(b"".join(map(row_chunks.line_of, found)))
    return path


def join(folder: Path, num_chunks: int, *, is_strict: bool = False) -> list[str]:
    found = row_chunks.index(folder.glob(row_chunks.FILES))
    write_file = partial(row_chunks.write_table, folder.with_suffix(""), "h\n")
    return row_chunks.join(folder, found, num_chunks, write_file, is_strict=is_strict)


def test_chunks_of_several_workers_are_joined_in_order_and_the_folder_goes(folder: Path) -> None:
    with opened(folder) as found:
        assert found == {}
        write(folder, Chunk(3, "3\n", []), Chunk(0, "0\n\udce9\n", ["broken"]))
        write(folder, Chunk(1, "", ["worse"]), Chunk(2, "2\n", []))
        write(folder)  # a worker that came too late
        assert join(folder, 4) == ["broken", "worse"]
    assert folder.with_suffix("").read_bytes() == b"h\n0\n\xe9\n2\n3\n"
    assert not folder.exists()


@pytest.mark.parametrize(
    "rest",
    [
        *(b'[1, "1\\n', b'[1, "1\\n", []', b"\0\0\0\n", b"[\n", b"\xff\n", b"[" * 10**5, b"1\n", b"null\n", b"{}\n"),
        *(b'[[1], "", []]\n', b'{"a": 1, "b": 2, "c": 3}\n', b"[1, null, []]\n", b'[1, "", {}]\n', b'[1, "", [2]]\n'),
        *(
            b'[1, "\\ud800", []]\n',
            b'[1, "", ["\\ud800"]]\n',
            b'[true, "", []]\n',
            b'[1, "", [], 4]\n',
            b"[1]\n",
            b"[]\n",
        ),
    ],
)
def test_a_line_that_is_damaged_or_was_cut_short_is_computed_again(folder: Path, rest: bytes) -> None:
    with opened(folder):
        path = write(folder, Chunk(0, "0\n", []))
        path.write_bytes(path.read_bytes() + rest)
    with opened(folder) as found:
        assert [*found] == [0]
        with pytest.raises(RuntimeError, match="1 of 2 chunks"):
            join(folder, 2)
        write(folder, Chunk(1, "1\n", []))
        join(folder, 2)
    assert folder.with_suffix("").read_text() == "h\n0\n1\n"


@pytest.mark.parametrize("changed", INPUTS)
def test_chunks_of_other_inputs_are_removed(folder: Path, changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(folder):
        write(folder, Chunk(0, "0\n", []))
    with opened(folder) as found:
        assert [*found] == [0]
    assert capsys.readouterr().out == ""
    with opened(folder, INPUTS | {changed: "other"}) as found:
        assert found == {}
    assert f"{changed} changed: the rows in {folder} are computed again" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "is_strict"), [("0\n", True), ("", False)])
def test_nothing_is_written_of_what_strict_refuses_or_without_a_row(folder: Path, rows: str, is_strict: bool) -> None:
    with opened(folder):
        write(folder, Chunk(0, rows, ["broken"]))
        with pytest.raises(ImageError, match="broken"):
            join(folder, 1, is_strict=is_strict)
    assert [*folder.parent.iterdir()] == []


def test_a_folder_of_something_else_or_in_use_is_refused(folder: Path) -> None:
    with opened(folder), pytest.raises(ValueError, match="is being written by another process"), opened(folder):
        pass
    assert not folder.exists()  # it has no chunk
    folder.mkdir()
    (folder / "photo.jpg").touch()
    with pytest.raises(ValueError, match=REFUSED), opened(folder):
        pass
    (folder / "photo.jpg").unlink()
    folder.rmdir()
    folder.touch()
    with pytest.raises(ValueError, match="cannot be written"), opened(folder):
        pass


def plant(folder: Path, kind: str) -> None:
    """Put something into a folder of a prediction that this prediction did not make."""
    other, rows = folder.parent / "other", folder / "0.jsonl"
    if kind == "copy":
        shutil.copytree(folder, other)
        shutil.rmtree(folder)
        other.rename(folder)
    elif kind == "link":
        folder.rename(other)
        folder.symlink_to(other)
    elif kind == "lock only":
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / ".lock").touch(0o600)
        (folder / "thesis.tex").touch()
    elif kind == "no object":
        RunFolder(folder).facts_file.write_text("[")
    elif kind == "linked rows":
        other.write_bytes(row_chunks.line_of(Chunk(1, "1\n", [])))
        rows.symlink_to(other)
    elif kind == "hard link":
        other.touch()
        os.link(other, rows)
    elif kind == "linked lock":
        other.touch()
        (folder / ".lock").unlink()
        os.link(other, folder / ".lock")
    elif kind == "pipe":
        os.mkfifo(rows)
    elif kind == "linked pictures":
        other.mkdir()
        (other / "photo.png").touch()
        (folder / row_chunks.PICTURES).symlink_to(other)
    else:
        rows.write_bytes(row_chunks.line_of(Chunk(1, "1\n", [])))
        os.chown({"folder": folder, "rows": rows, "lock": folder / ".lock"}[kind], 61001, 61001)


PLANTED = [
    "copy", "link", "lock only", "no object", "linked rows", "hard link", "linked lock", "pipe", "linked pictures",
]  # fmt: skip
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")


@pytest.mark.parametrize("kind", [*PLANTED, *(pytest.param(it, marks=NEEDS_ROOT) for it in ("folder", "rows", "lock"))])
def test_a_folder_that_was_not_made_by_this_prediction_is_refused_and_stays(folder: Path, kind: str) -> None:
    with opened(folder):
        write(folder, Chunk(0, "0\n", []))
    plant(folder, kind)

    def contents() -> list[tuple[str, int, int]]:
        return sorted((str(path), path.lstat().st_mode, path.lstat().st_size) for path in folder.parent.rglob("*"))

    before = contents()
    with pytest.raises(ValueError, match=REFUSED), opened(folder, INPUTS | {"images": "d"}):
        pass
    assert contents() == before


def test_a_folder_that_was_moved_continues(folder: Path) -> None:
    with opened(folder):
        write(folder, Chunk(0, "0\n", []))
    moved = folder.rename(folder.with_name("b.csv.part"))
    with opened(moved) as found:
        assert [*found] == [0]
    assert moved.exists()


def test_pictures_are_kept_for_the_same_inputs_and_moved_to_an_empty_folder(folder: Path) -> None:
    pictures, path = row_chunks.pictures_of(folder.with_suffix("")), folder.parent / "a" / "looked"
    for inputs in (INPUTS, {**INPUTS, "images": "d"}):
        with opened(folder, inputs):
            assert not pictures.exists()
            pictures.mkdir()
            (pictures / "1.png").touch()
            write(folder, Chunk(0, "0\n", []))
    path.mkdir(parents=True)
    with opened(folder, inputs):
        files.move(pictures, path)
    assert [file.name for file in path.iterdir()] == ["1.png"]
