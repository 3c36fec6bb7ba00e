"""What a user reads of a traceback: their own frames and the error."""

import sysconfig
from pathlib import Path

import pytest

import lockstep
from lockstep.system import tracebacks

OURS = (
    f'  File "{Path(lockstep.__file__).parent}/training/train.py", line 9, in train\n'
    "    trainer.fit(module)\n"
)
STDLIB = f'  File "{sysconfig.get_path("stdlib")}/json/decoder.py", line 3, in decode\n    raise\n'
TORCH = (
    '  File "/venv/lib/python3.11/site-packages/torch/nn/linear.py", line 7, in forward\n'
    "    F.linear(x)\n    ^^^\n"
)
OWN = (
    f'  File "{Path.cwd()}/net.py", line 12, in forward\n'
    "    return self.fc(x)\n           ^^^^^^^^^^\n"
)
OTHER = '  File "/elsewhere/loss.py", line 4, in loss\n    return 1 / 0\n'
HEAD = "rank 0 of 2 failed:\n"
SHORT = "rank 0 of 2 failed:\n  net.py:12 (forward)\n    return self.fc(x)\n"
AT = ", in net.py:12 (forward): return self.fc(x)"
LOST = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
LOADER = (
    "ValueError: Caught ValueError in DataLoader worker process 0.\n"
    f"Original {tracebacks.TITLE}{TORCH}{OWN}"
)


@pytest.mark.parametrize(
    ("text", "shown", "cause"),
    [
        (
            HEAD + tracebacks.TITLE + OURS + OWN + TORCH + "ValueError: x\n",
            SHORT + "ValueError: x",
            "ValueError: x" + AT,
        ),
        (  # the error of a library that follows from it
            HEAD
            + tracebacks.TITLE
            + OWN
            + "ValueError: x"
            + LOST
            + tracebacks.TITLE
            + OURS
            + "TypeError: y\n",
            SHORT + "ValueError: x",
            "ValueError: x" + AT,
        ),
        (  # one that the user raises from another
            HEAD
            + tracebacks.TITLE
            + OTHER
            + "ZeroDivisionError: x"
            + LOST
            + tracebacks.TITLE
            + OWN
            + "ValueError: y\n",
            SHORT + "ValueError: y",
            "ValueError: y" + AT,
        ),
        (
            HEAD + tracebacks.TITLE + OURS + LOADER + "ValueError: x\n",
            SHORT + "ValueError: x",
            "ValueError: x" + AT,
        ),
        (
            HEAD + tracebacks.TITLE + OURS + TORCH + STDLIB + "ValueError: x\n",
            None,
            "ValueError: x",
        ),
        (
            "rank 1 of 2 is silent\nrank 0 waited\n",
            "rank 1 of 2 is silent\nrank 0 waited\n",
            "rank 1 of 2 is silent",
        ),
        ("The loss\nLower it.\n\nSamples: [1]", "The loss\nLower it.", "The loss"),
        ("", "", ""),
    ],
)
def test_shorten_and_cause(text: str, shown: str | None, cause: str) -> None:
    assert tracebacks.shorten(text) == (text if shown is None else shown)
    assert tracebacks.cause(text) == cause


def test_located_error() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        _ = 1 / 0
    line = f"{Path(__file__).relative_to(Path.cwd())}:{caught.tb.tb_lineno}"
    assert tracebacks.located("A zero.", caught.value).startswith(f"A zero, in {line} (")
    assert tracebacks.located("Not raised.", ZeroDivisionError()) == "Not raised."
