"""The live line of the console on a narrow terminal."""

import io
import re

import pytest

from lockstep.callbacks.console import live_line
from lockstep.system.terminal import Terminal


@pytest.mark.parametrize(
    ("width", "rest"), [(80, "step 120/5000  6:40 left  612 images/s"), (40, "step 120/5000")]
)
def test_live_line_cropped(width: int, rest: str) -> None:
    out = Terminal(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    facts = ["step 120/5000", "6:40 left", "612 images/s", "1:08:00 in total"]
    out.print(live_line(width, "1/10", 0.5, facts))
    (line,) = out.file.getvalue().splitlines()
    assert re.match(rf" +1/10  ━+╸? +{rest}", line)
    assert len(line) <= width
