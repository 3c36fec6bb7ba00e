"""Texts and tables: no word is broken and a command can be copied; a log has whole lines."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console
from rich.text import Text

from lockstep.callbacks.console import live_line
from lockstep.system import terminal
from lockstep.system.terminal import new_table, print_table, say, show_table

HEADER = [
    ("data", "1,293 train, 144 val, 360 test images of 1x8x8, 10 classes, in host memory (1 MiB of pixels)"),
    ("workers", "2 x CPU, 1 thread each"),
    ("batch", "64 images a step = 4 micro-batches of 16, up to 8 on each worker"),
    ("layout", "contiguous (memory order; channels_last is often faster, but wrong on this CPU for layer2)"),
    ("evaluate", "lockstep eval outputs/2026-11-22/13-19-53_digits_resnet18 --split val --devices 2"),
]
Showing = Callable[[int | None], io.StringIO]


def test_a_notebook_gets_plain_text_despite_force_color(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = terminal.terminal()
    out.print(Text("a line", style="bold"))
    assert not out.is_terminal
    assert capsys.readouterr().out == "a line\n"


@pytest.fixture
def showing(monkeypatch: pytest.MonkeyPatch) -> Showing:
    """Redirect all output to a terminal of so many columns, or to a log."""

    def on(width: int | None) -> io.StringIO:
        file = io.StringIO()
        shown = Console(
            file=file,
            width=width or terminal.LOG_WIDTH,
            force_terminal=width is not None,
            soft_wrap=width is None,
            color_system=None,
            highlight=False,
        )
        monkeypatch.setattr(terminal, "terminal", lambda *, is_error=False: shown)
        return file

    return on


def words(text: str) -> list[str]:
    return re.findall(r"[^\s─]+", text)


def test_a_text_is_broken_between_words(showing: Showing) -> None:
    text = "Trial 3 finished after 4:05, val/accuracy 0.9812: optimizer.lr=0.1 in a/folder/with/a/long/name and more"
    file = showing(40)
    say(terminal.terminal(), text)
    assert words(file.getvalue()) == words(text)
    assert max(map(len, file.getvalue().splitlines())) <= 40


def test_a_log_has_whole_lines(showing: Showing) -> None:
    file = showing(None)
    show_table("Lockstep", HEADER)
    say(terminal.terminal(), "word " * 100)
    assert file.getvalue().splitlines()[-1].strip() == ("word " * 100).strip()


def test_a_terminal_without_utf_8_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out = terminal.Terminal(file=io.TextIOWrapper(raw, "ascii"), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(terminal, "terminal", lambda: out)
    show_table("Lockstep", HEADER)
    out.print(live_line(80, "1/10", 0.5, ["step 1/2"]))
    print_table(new_table(["a", "b"], [["1", "2"]], out), out)
    out.file.flush()
    assert raw.getvalue().decode("ascii").splitlines()[1] == "-" * 78
