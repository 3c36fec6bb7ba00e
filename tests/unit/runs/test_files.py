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

from lockstep.runs import files, vitals
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
READERS = (files.read_text, files.read_json, files.read_rows)


@pytest.mark.parametrize("what", IRREGULAR)
def test_what_is_no_regular_file_is_neither_read_nor_written(tmp_path: Path, what: str) -> None:
    folder = RunFolder(tmp_path)
    for path in (folder.summary, folder.rank_log(0), folder.lock_file):
        IRREGULAR[what](path)
    for read in READERS:
        with pytest.raises(OSError, match="not a regular file"):
            read(folder.summary)
    assert folder.is_locked() is None
    assert vitals.end_of(folder, 0, "rank 0", -11).startswith("rank 0 was ended by SIGSEGV")


@pytest.mark.timeout(60)  # where it waits, it waits for ever
def test_a_log_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.rank_log(0))
    with pytest.raises(OSError, match="not a regular file"), vitals.write_heartbeats(folder, 0):
        pass
    assert vitals.end_of(folder, 0, "rank 0", -11).startswith("rank 0 was ended by SIGSEGV")


def test_json_that_no_browser_and_no_stack_takes_is_refused_or_null(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"counts": [[NaN, 1], [-Infinity, 1e999]], "a": {"b": 0.5}}')
    assert files.read_json(path) == {"counts": [[None, 1], [None, None]], "a": {"b": 0.5}}
    for text in ('{"a": ' + "[" * 100_000, '{"a": ' + "[" * 200 + "]" * 200 + "}", '{"a": ' + "9" * 5000 + "}"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"x\.json does not contain a JSON object"):
            files.read_json(path)


def test_a_file_beyond_every_need_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.touch()
    os.truncate(path, files.LARGEST + 1)  # without blocks on the disk
    with pytest.raises(ValueError, match=r"x\.json is larger than 67,108,864 bytes"):
        files.read_json(path)
    monkeypatch.setattr(files, "LARGEST_UNPACKED", 1000)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b" " * 900 + b'{"a": 1}'))
    assert files.read_json(path) == {"a": 1}
    path.write_bytes(gzip.compress(b" " * 1000 + b'{"a": 1}'))
    with pytest.raises(ValueError, match=r"x\.json\.gz does not contain a JSON object"):
        files.read_json(path)


ROWS = "epoch,step,val/loss\n1,20,0.5\n2,40,0.25\n"
DAMAGES: dict[str, tuple[bytes, int]] = {  # and how many rows can be read
    "a spreadsheet's": (b"\xef\xbb\xbf" + ROWS.replace(",", ";").replace("\n", "\r\n").encode(), 2),
    "another one's": (
        "".join(f'"{line.replace(",", chr(34) + "," + chr(34))}"\n' for line in ROWS.splitlines()).encode(),
        2,
    ),
    "a cell that csv does not take": (ROWS.replace("20", "2" * 131_073).encode(), 1),
    "a row in another": (ROWS.replace("1,20,0.5\n", "1,20,01,20,0.5\n").encode(), 1),
    "half a header": (ROWS[8:].encode(), 0),
    "no number": (ROWS.replace("2,40", "x,40").encode(), 1),
    "no UTF-8": (ROWS.replace("0.5", "\xff").encode("latin-1"), 2),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_table_is_kept_and_continued_with_what_can_be_read(tmp_path: Path, what: str) -> None:
    path, (content, num_rows) = tmp_path / "metrics.csv", DAMAGES[what]
    (tmp_path / "metrics.csv.damaged").write_text("an earlier one")
    path.write_bytes(content)
    note = files.keep_rows(path, "epoch", lambda epoch, row: epoch < 3)
    assert note == (
        f"{path} was damaged or changed: kept as metrics.csv.damaged1, continued with its {num_rows} readable rows"
    )
    assert (tmp_path / "metrics.csv.damaged1").read_bytes() == content
    assert (tmp_path / "metrics.csv.damaged").read_text() == "an earlier one"
    files.append_rows(path, [{"epoch": 3, "step": 60, "val/loss": 0.125}])
    rows = files.read_rows(path)
    assert len(rows) == num_rows + 1
    assert rows[-1] == {"epoch": "3", "step": "60", "val/loss": "0.125"}
    assert all(row["val/loss"] in ("0.5", "0.25", "\ufffd") for row in rows[:-1])
    assert files.keep_rows(path, "epoch", lambda epoch, row: True) == ""


@pytest.mark.parametrize("half", ["", "1", "1,20,0.2"])
def test_half_a_row_is_not_glued_to_the_next(tmp_path: Path, half: str) -> None:
    path, header = tmp_path / "metrics.csv", ROWS[: ROWS.index("\n") + 1]
    row = {"epoch": 1, "step": 20, "val/loss": 0.5}
    path.write_text(header + half)
    files.append_rows(path, [row])
    assert path.read_text() == f"{header}1,20,0.5\n"
    path.write_text(header + half)
    assert files.keep_rows(path, "epoch", lambda epoch, row: True) == ""
    path.write_text(header[:4])
    files.append_rows(path, [row])
    assert path.read_text() == f"{header}1,20,0.5\n"
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("text", ["=1+1", "x;=1+1", "x\t@a", "x\n+1;y", "x\r-a", 'x;"=1+1"', "';\"=1", "a;-1=2"])
def test_no_separator_makes_a_formula_of_a_text(text: str, separator: str) -> None:
    written = files.csv_text([["a", text, 5]])
    for line in re.split(r"[\r\n]", written):
        cells = next(csv.reader([line], delimiter=separator), [])
        assert not [cell for cell in cells if re.match(r'"*[=+@-]', cell)]
    assert files.uncell(files.FORMULA.sub("'", text)) == text


def test_numbers_are_no_formulas_and_marks_come_off() -> None:
    for text in ("-5", "-0.25", "-1e-05", "-inf;-2", "nan", "a;b", "it's", ""):
        assert files.csv_text([[text, text]]) == f"{text},{text}\n"
    for text in ("'=1", "''-x", "a;'=1", "'-5", "x;\t=1", '"=', "=\n="):
        assert files.uncell(files.FORMULA.sub("'", text)) == text != files.FORMULA.sub("'", text)


def test_json_is_written_for_browsers() -> None:
    assert json.loads(files.to_json({"a": [float("nan"), 1.5]})) == {"a": [None, 1.5]}


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe"])
def test_nothing_is_appended_to_what_lies_elsewhere(tmp_path: Path, kind: str) -> None:
    other, path = tmp_path / "other", tmp_path / "metrics.csv"
    other.write_text("a\n1\n")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        (os.symlink if kind == "link" else os.link)(other, path)
    with pytest.raises(OSError, match=r"a hard link|not a regular file"):
        files.append_rows(path, [{"a": 2}])
    assert other.read_text() == "a\n1\n"


def test_nothing_is_written_or_removed_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("theirs")
    (tmp_path / "link").symlink_to("other")
    for write in (lambda path: files.write_atomically(path, "x"), files.remove):
        with pytest.raises(NotADirectoryError):
            write(tmp_path / "link" / "file")
    assert (tmp_path / "other" / "file").read_text() == "theirs"
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]
