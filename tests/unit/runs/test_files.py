"""Files of a run folder that anybody may have written: nothing waits, explodes or crashes."""

import csv
import gzip
import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs import files, heartbeat
from lockstep.runs.folder import RunFolder


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # its address may have 107 bytes


IRREGULAR: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to(__file__),
}


@pytest.mark.parametrize("what", IRREGULAR)
def test_irregular_file_refused(tmp_path: Path, what: str) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.summary, folder.rank_log(0), folder.lock_file):
        IRREGULAR[what](path)
    for read in (files.read_text, files.read_json, files.read_rows):
        with pytest.raises(OSError, match="not a regular file"):
            read(folder.summary)
    assert folder.is_locked() is None
    assert heartbeat.end_of(folder, 0, "rank 0", -11).startswith("rank 0 was ended by SIGSEGV")


@pytest.mark.timeout(60)  # where it waits, it waits for ever
def test_heartbeat_pipe_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.rank_log(0))
    with pytest.raises(OSError, match="not a regular file"), heartbeat.write_heartbeats(folder, 0):
        pass


def test_read_json_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"counts": [[NaN, 1], [-Infinity, 1e999]], "a": {"b": 0.5}}')
    assert files.read_json(path) == {"counts": [[None, 1], [None, None]], "a": {"b": 0.5}}
    assert json.loads(files.to_json({"a": [float("nan"), 1.5]})) == {"a": [None, 1.5]}


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 200 + "]" * 200, "9" * 5000], ids=range(3))
def test_read_json_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.json").write_text(f'{{"a": {value}}}')
    with pytest.raises(ValueError, match=r"x\.json"):
        files.read_json(tmp_path / "x.json")


def test_read_json_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small archive may be a large text."""
    path = tmp_path / "x.json"
    path.touch()
    os.truncate(path, files.MAX_TEXT_BYTES + 1)  # without blocks on the disk
    with pytest.raises(ValueError, match="larger than"):
        files.read_json(path)
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 1000)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * 1000 + b'{"a": 1}'))
    with pytest.raises(ValueError, match=r"x\.json\.gz"):
        files.read_json(path)


HEADER = "epoch,step,val/loss\n"
ROWS = f"{HEADER}1,20,0.5\n2,40,0.25\n"
DAMAGES: dict[str, tuple[bytes, int]] = {  # and how many rows can be read
    "a spreadsheet's": (b"\xef\xbb\xbf" + ROWS.replace(",", ";").replace("\n", "\r\n").encode(), 2),
    "another one's": (
        "".join(
            f'"{line.replace(",", chr(34) + "," + chr(34))}"\n' for line in ROWS.splitlines()
        ).encode(),
        2,
    ),
    "a cell that csv does not take": (ROWS.replace("20", "2" * 131_073).encode(), 1),
    "a row in another": (ROWS.replace("1,20,0.5\n", "1,20,01,20,0.5\n").encode(), 1),
    "half a header": (ROWS[8:].encode(), 0),
    "no number": (ROWS.replace("2,40", "x,40").encode(), 1),
    "no UTF-8": (ROWS.replace("0.5", "\xff").encode("latin-1"), 2),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_keep_rows_damaged(tmp_path: Path, what: str) -> None:
    """The table is kept, and continued with what can be read."""
    path, (content, num_rows) = tmp_path / "metrics.csv", DAMAGES[what]
    (tmp_path / "metrics.csv.damaged").write_text("an earlier one")
    path.write_bytes(content)
    assert f"{num_rows} readable rows" in files.truncate_rows(path, 2)
    assert (tmp_path / "metrics.csv.damaged-2").read_bytes() == content
    assert (tmp_path / "metrics.csv.damaged").read_text() == "an earlier one"
    files.append_row(path, {"epoch": 3, "step": 60, "val/loss": 0.125})
    *before, last = files.read_rows(path)
    assert len(before) == num_rows
    assert last == {"epoch": "3", "step": "60", "val/loss": "0.125"}
    assert all(row["val/loss"] in ("0.5", "0.25", "\ufffd") for row in before)


@pytest.mark.parametrize("half", [HEADER, f"{HEADER}1", f"{HEADER}1,20,0.2", HEADER[:4]])
def test_append_after_partial_row(tmp_path: Path, half: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(half)
    files.append_row(path, {"epoch": 1, "step": 20, "val/loss": 0.5})
    assert path.read_text() == f"{HEADER}1,20,0.5\n"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    "text", ["=1+1", "x;=1+1", "x\t@a", "x\n+1;y", "x\r-a", 'x;"=1+1"', "';\"=1", "a;-1=2"]
)
def test_csv_formulas_escaped(text: str, separator: str) -> None:
    """No cell is a formula, whichever separator a program assumes."""
    written = files.csv_text([["a", text, 5]])
    for line in re.split(r"[\r\n]", written):
        cells = next(csv.reader([line], delimiter=separator), [])
        assert not [cell for cell in cells if re.match(r'"*[=+@-]', cell)]
    assert files.strip_formula_mark(files.FORMULA.sub("'", text)) == text


def test_csv_numbers_and_round_trip() -> None:
    for text in ("-5", "-0.25", "-1e-05", "-inf;-2", "nan", "a;b", "it's", ""):
        assert files.csv_text([[text, text]]) == f"{text},{text}\n"
    for text in ("'=1", "''-x", "a;'=1", "'-5", "x;\t=1", '"=', "=\n="):
        assert (
            files.strip_formula_mark(files.FORMULA.sub("'", text))
            == text
            != files.FORMULA.sub("'", text)
        )


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_append_through_link(tmp_path: Path, make: Callable[[Path, Path], None]) -> None:
    other, path = tmp_path / "other", tmp_path / "metrics.csv"
    other.write_text("a\n1\n")
    make(other, path)
    with pytest.raises(OSError, match=r"a hard link|not a regular file"):
        files.append_row(path, {"a": 2})
    assert other.read_text() == "a\n1\n"


def test_linked_folder_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("theirs")
    (tmp_path / "link").symlink_to("other")
    for write in (lambda path: files.write_atomically(path, "x"), files.remove):
        with pytest.raises(NotADirectoryError):
            write(tmp_path / "link" / "file")
    assert (tmp_path / "other" / "file").read_text() == "theirs"
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]


def test_keep_rows_partial_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(f"{HEADER}1,20,0.2")
    assert files.truncate_rows(path, 1) == ""
