"""Chunks of a prediction are joined in order, each once; nothing half written stays."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lockstep.data.splits import ImageError
from lockstep.inference import row_chunks
from lockstep.inference.row_chunks import Chunk


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def write(output: Path, *ranks: list[Chunk], is_strict: bool = False) -> list[str]:
    table = partial(row_chunks.write_table, output, ["h"])
    with ExitStack() as held:
        paths = [held.enter_context(row_chunks.hidden_file(output)) for _ in ranks]
        found = [
            row_chunks.write_chunks(path, chunks) for path, chunks in zip(paths, ranks, strict=True)
        ]
        return row_chunks.join(found, table, is_strict=is_strict)


def test_join_in_order(output: Path) -> None:
    first = [Chunk(3, "3\n", []), Chunk(0, "0\n\udce9\n", ["broken"])]
    second = [Chunk(1, "", ["worse"]), Chunk(2, "2\n", [])]
    assert write(output, first, [], second) == ["broken", "worse"]
    assert output.read_bytes() == b"h\n0\n\xe9\n2\n3\n"
    assert [*output.parent.iterdir()] == [output]


@pytest.mark.parametrize(
    ("chunks", "is_strict", "error"),
    [
        ([Chunk(0, "0\n", []), Chunk(2, "2\n", [])], False, KeyError),  # one is missing
        ([Chunk(0, "0\n", ["broken"])], True, ImageError),
        ([Chunk(0, "", ["broken"])], False, ImageError),  # no row
    ],
)
def test_join_fails(
    output: Path, chunks: list[Chunk], is_strict: bool, error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(output, chunks, is_strict=is_strict)
    assert [*output.parent.iterdir()] == []


def test_failed_rows_leave_nothing(output: Path) -> None:
    output.write_text("before")

    def failing() -> Iterator[Chunk]:
        yield Chunk(0, "0\n", [])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), row_chunks.hidden_file(output) as path:
        row_chunks.write_chunks(path, failing())
    assert [(path, path.read_text()) for path in output.parent.iterdir()] == [(output, "before")]
