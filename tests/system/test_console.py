"""The console: columns of a narrow terminal, and progress inside a long epoch."""

import io
import re
from pathlib import Path

import pytest

from lockstep.callbacks.console import live_line
from lockstep.system.terminal import Terminal
from tests.support.harness import ROOT, SMALL
from tests.support.screens import on_terminal


@pytest.mark.parametrize(("width", "rest"), [(80, "step 120/5000  6:40 left  612 images/s"), (40, "step 120/5000")])
def test_live_line_cropped(width: int, rest: str) -> None:
    out = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    facts = ["step 120/5000", "6:40 left", "612 images/s", "1:08:00 in total"]
    out.print(live_line(width, "1/10", 0.5, facts))
    (line,) = out.file.getvalue().splitlines()
    assert re.match(rf" +1/10  ━+╸? +{rest}", line)
    assert len(line) <= width


# -- a long epoch ------------------------------------------------------------------------------------------------------

# five thousand batches; the log has its first line after a tenth of a second, then one every second
LONG = (
    *(text for text in SMALL if not text.startswith(("model.", "data.train_size", "trainer.log_every"))),
    *(f"~model.{name}" for name in ("width", "stem", "shortcut_norm", "bias", "dropout", "init")),
    "+model.hidden=2",
    "data.train_size=80000",
    "+callbacks.impatient._target_=tests.support.callbacks.Impatient",
)


@pytest.mark.full
@pytest.mark.processes
def test_live_line_on_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with on_terminal(80, "train", *LONG, "model._target_=tests.support.networks.Slow", PYTHONPATH=str(ROOT)) as shown:
        text = re.sub(r"\x1b\[[0-9;?]*\w", "", shown.wait_for(" in total"))
    assert re.search(r"1/2  \S*━?\S*  step \d+/5000  [\d:. s]+ left  \d+ images/s  [\d:.]+ in total", text)
