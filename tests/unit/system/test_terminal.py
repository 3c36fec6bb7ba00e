"""What a narrow terminal shows: no word is broken, and a command can be copied; a log gets every line whole."""

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from lockstep.callbacks.console import live_line
from lockstep.runs.folder import RunFolder
from lockstep.sweeps import views
from lockstep.sweeps.ledger import Trial
from lockstep.sweeps.table import Objective, Row, Table
from lockstep.system import terminal
from lockstep.system.terminal import new_table, print_table, say, show_table

HEADER = [
    ("data", "1,293 train, 144 val, 360 test images of 1x8x8, 10 classes, in host memory (1 MiB of pixels)"),
    ("workers", "2 x CPU, 1 thread each"),
    ("batch", "64 images a step = 4 micro-batches of 16, up to 8 on each worker"),
    ("layout", "contiguous (a CPU without AVX512 cannot train so narrow a network in channels_last)"),
    ("evaluate", "lockstep eval outputs/2026-11-22/13-19-53_digits_resnet18 --split val --devices 2"),
]
Showing = Callable[[int | None], io.StringIO]


def test_a_notebook_gets_plain_text_though_it_asks_for_colours(
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
    """Where everything is shown from now on: on a terminal of so many columns, or in a log."""

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
        for module in (terminal, views):
            monkeypatch.setattr(module, "terminal", lambda *, is_error=False: shown)
        return file

    return on


def words(text: str) -> list[str]:
    return re.findall(r"[^\s─]+", text)


def test_a_text_is_broken_between_words_alone(showing: Showing) -> None:
    text = "Trial 3 finished after 4:05, val/accuracy 0.9812: optimizer.lr=0.1 in a/folder/with/a/long/name and more"
    file = showing(40)
    say(terminal.terminal(), text)
    lines = file.getvalue().splitlines()
    assert words("\n".join(lines)) == words(text)
    assert all(line.startswith("    ") for line in lines[1:])
    assert max(map(len, lines)) <= 40


def test_the_header_of_a_run_keeps_its_words_and_its_columns(showing: Showing) -> None:
    file = showing(80)
    show_table("Lockstep: ResNet18 on digits, going on", HEADER)
    lines = file.getvalue().splitlines()
    assert words(file.getvalue()) == words(" ".join(["Lockstep: ResNet18 on digits, going on", *map(" ".join, HEADER)]))
    assert HEADER[-1][1] in lines[-2], "a command stays in one piece"
    assert max(map(len, [*lines[:-2], lines[-1]])) <= 80
    starts = [f"{name:<8}  " for name, _ in HEADER]
    assert all(line.startswith((*starts, " " * 10)) for line in lines[2:-1]), "a value goes on in its column"


HEADS = ["trial", "state", "val/accuracy", "lr", "width", "crop_padding", "seed", "test_accuracy", "epoch", "time"]


@pytest.mark.parametrize(("width", "heads"), [(80, HEADS[:-2]), (140, [*HEADS, "device"]), (None, [*HEADS, "device"])])
def test_a_sweep_shows_the_most_important_columns(
    showing: Showing, tmp_path: Path, width: int | None, heads: list[str]
) -> None:
    file = showing(width)
    rows = []
    for number, state in enumerate(("finished", "failed", "pruned", "stopped")):
        settings = {"optimizer.lr": f"0.{number + 1}", "model.width": "32", "augment.crop_padding": "2", "seed": "1"}
        trial = Trial(number, tuple(f"{key}={value}" for key, value in settings.items()), RunFolder(tmp_path))
        facts = {"reason": "a reason of many words", "epoch": 3, "max_epochs": 10}
        rows.append(Row(trial, settings, state, (0.98125,), {"test_accuracy": 0.975}, 61.0, facts))
    found = Table((Objective("val/accuracy", True),), tuple(rows[0].settings), tuple(rows))
    views.show(found, "outputs/2026-11-22/13-19-53_sweep")
    lines = file.getvalue().splitlines()
    assert lines[0].split() == heads
    assert max(map(len, lines[:5])) <= (width or 140)
    values = ["finished", "0.9812", "0.1", "32", "2", "1", "0.9750", "3/10", "1:01"]
    assert lines[1].split() == ["0", *values][: len(heads)]
    assert [line.split()[:2] for line in lines[2:5]] == [["1", "failed"], ["2", "pruned"], ["3", "stopped"]]
    assert lines[5] == "Trial 1 failed: a reason of many words"


def test_a_log_gets_a_line_whole(showing: Showing) -> None:
    file = showing(None)
    show_table("Lockstep", HEADER)
    say(terminal.terminal(), "word " * 100)
    lines = file.getvalue().splitlines()
    assert lines[-1].strip() == ("word " * 100).strip()
    assert len(lines) == 3 + len(HEADER) + 1


def test_a_terminal_without_utf_8_gets_letters_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    out = terminal.Terminal(file=io.TextIOWrapper(raw, "ascii"), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(terminal, "terminal", lambda: out)
    show_table("Lockstep", HEADER)
    out.print(live_line(80, "1/10", 0.5, ["step 1/2"]))
    print_table(new_table(["a", "b"], [["1", "2"]], out), out)
    out.file.flush()
    assert raw.getvalue().decode("ascii").splitlines()[1] == "-" * 78
