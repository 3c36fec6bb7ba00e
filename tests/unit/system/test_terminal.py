"""Texts and tables: no word is broken and a command can be copied; a log has whole lines."""

import io
import re

import pytest
from rich.text import Text

from lockstep.callbacks.console import live_line
from lockstep.system import terminal
from lockstep.system.terminal import Terminal, new_table, print_table, show_table

HEADER = [
    (
        "data",
        "1,293 train, 144 val, 360 test images of 1x8x8, 10 classes, in host memory "
        "(1 MiB of pixels)",
    ),
    ("workers", "2 x CPU, 1 thread each"),
    ("batch", "64 images a step in 4 micro-batches"),
    (
        "layout",
        "contiguous (memory order; channels_last is often faster, but wrong on this CPU "
        "for layer2)",
    ),
    (
        "evaluate",
        "lockstep eval outputs/2026-11-22/13-19-53_digits_resnet18 --split val --devices 2",
    ),
]


def test_terminal_without_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out = Terminal(
        file=io.TextIOWrapper(raw, "ascii"), width=80, force_terminal=True, color_system=None
    )
    monkeypatch.setattr(terminal, "terminal", lambda: out)
    show_table("Lockstep", HEADER)
    out.print(live_line(80, "1/10", 0.5, ["step 1/2"]))
    print_table(new_table(["a", "b"], [["1", "2"]], out), out)
    out.file.flush()
    assert raw.getvalue().decode("ascii").splitlines()[1] == "-" * 78


def test_table_styled_value(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    monkeypatch.setattr(terminal, "terminal", lambda: out)
    show_table("Data", [("leaks", Text("in more than one split, see data.group=", style="red"))])
    lines = out.file.getvalue().splitlines()[2:-1]
    assert lines == ["leaks  in more than one split, see", "       data.group="]


@pytest.mark.parametrize(
    ("width", "rest"), [(80, "step 120/5000  6:40 left  612 images/s"), (40, "step 120/5000")]
)
def test_live_line_cropped(width: int, rest: str) -> None:
    out = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    facts = ["step 120/5000", "6:40 left", "612 images/s", "1:08:00 until the end"]
    out.print(live_line(width, "1/10", 0.5, facts))
    (line,) = out.file.getvalue().splitlines()
    assert re.match(rf" +1/10  ━+╸? +{rest}", line)
    assert len(line) <= width
