"""Chunks of a prediction are joined in order, each once; nothing half written stays."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lockstep.data.splits import ImageError
from lockstep.inference import row_chunks
from lockstep.inference.row_chunks import Chunk
from lockstep.runs import files


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def write(output: Path, *ranks: list[Chunk], is_strict: bool = False) -> list[str]:
    row_chunks.prepare(output)
    table = partial(row_chunks.write_table, output, "h\n")
    with ExitStack() as held:
        paths = [held.enter_context(row_chunks.hidden_file(output)) for _ in ranks]
        found = [row_chunks.write_chunks(path, chunks) for path, chunks in zip(paths, ranks, strict=True)]
        return row_chunks.join(found, table, is_strict=is_strict)


def killed(output: Path) -> Path:
    """What a command leaves that was killed."""
    path = output.with_name(files.temporary_name(output))
    path.write_bytes(b'[0, "0\\n", []')
    return path


def test_join_in_order(output: Path) -> None:
    first = [Chunk(3, "3\n", []), Chunk(0, "0\n\udce9\n", ["broken"])]
    second = [Chunk(1, "", ["worse"]), Chunk(2, "2\n", [])]
    assert write(output, first, [], second) == ["broken", "worse"]
    assert output.read_bytes() == b"h\n0\n\xe9\n2\n3\n"
    assert [*output.parent.iterdir()] == [output]


def test_join_missing_chunk_fails(output: Path) -> None:
    with pytest.raises(KeyError):
        write(output, [Chunk(0, "0\n", []), Chunk(2, "2\n", [])])
    assert [*output.parent.iterdir()] == []


@pytest.mark.parametrize(("rows", "is_strict"), [("0\n", True), ("", False)])
def test_join_strict_or_empty_writes_nothing(output: Path, rows: str, is_strict: bool) -> None:
    with pytest.raises(ImageError, match="broken"):
        write(output, [Chunk(0, rows, ["broken"])], is_strict=is_strict)
    assert [*output.parent.iterdir()] == []


def test_failed_rows_leave_nothing(output: Path) -> None:
    output.write_text("before")

    def failing() -> Iterator[Chunk]:
        yield Chunk(0, "0\n", [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), row_chunks.hidden_file(output) as path:
        row_chunks.write_chunks(path, failing())
    assert [*output.parent.iterdir()] == [output]
    assert output.read_text() == "before"


def test_prepare_removes_leftovers_of_killed(output: Path) -> None:
    folder = output.parent / "new"
    row_chunks.prepare(folder / "out.csv")
    assert [*folder.iterdir()] == []
    killed(output)
    other = [killed(output.with_name("out.csv.npy")), killed(output.with_name("x.out.csv")), output.parent / ".out.csv"]
    other[-1].touch()
    row_chunks.prepare(output)
    assert {*output.parent.iterdir()} == {*other, folder}


def test_prepare_follows_no_link(output: Path) -> None:
    precious = output.with_name("precious")
    precious.touch()
    link = killed(output)
    link.unlink()
    link.symlink_to(precious)
    row_chunks.prepare(output)
    assert precious.exists()


def test_prepare_refuses_output_in_use(output: Path) -> None:
    with row_chunks.hidden_file(output) as path:
        with pytest.raises(ValueError, match=r"out\.csv is being written by another process: .* --output"):
            row_chunks.prepare(output)
        assert path.exists()
