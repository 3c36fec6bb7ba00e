"""A training outlives its terminal: it drops output that cannot be printed, and continues."""

import shlex
import subprocess
from pathlib import Path

import pexpect
import pytest

from lockstep.runs.folder import EXIT_FAILED
from tests.support.commands import latest, lockstep
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, own_network
from tests.support.screens import on_terminal

pytestmark = [pytest.mark.full, pytest.mark.processes]


@pytest.mark.parametrize(
    ("num_workers", "redirection"), [(2, "2>&1 | head -1"), (1, "> /dev/full 2>&1")]
)
def test_output_closed_or_full(tmp_path: Path, redirection: str, num_workers: int) -> None:
    train = shlex.join(command(*SMALL, f"trainer.devices={num_workers}"))
    # the exit code is that of the first failing part of the pipe
    words = ["bash", "-o", "pipefail", "-c", f"{train} {redirection}"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environ(), capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert latest(tmp_path).read_status()["state"] == "finished"


@pytest.mark.parametrize(
    ("keys", "code", "end"),
    [
        ("c\n", 0, "Finished 2 epochs"),
        ("q\n", EXIT_FAILED, "the debugger was quit"),
    ],
)
def test_breakpoint(tmp_path: Path, keys: str, code: int, end: str) -> None:
    words = ("train", *own_network("Debugged"), f"hydra.run.dir={tmp_path / 'run'}")
    with on_terminal(80, *words, PYTHONPATH=str(ROOT)) as shown:
        # Python 3.13 stops at the call, and earlier versions at the next line.
        line = r"(breakpoint\(\)|return super\(\)\.forward\(x\))"
        shown.expect(rf"networks\.py\(\d+\)forward\(\)\r\n-> {line}\r\n\(Pdb\) ")
        shown.send("p x.shape[1:]\n")
        shown.expect(r"torch\.Size\(\[1, 16, 16\]\)\r\n\(Pdb\) ")
        shown.send(keys)
        shown.expect(pexpect.EOF)
        assert shown.wait() == code, shown.before
    assert end in shown.before


def test_breakpoint_of_workers(tmp_path: Path) -> None:
    done = lockstep(tmp_path, "train", *own_network("Debugged"), "trainer.devices=2")
    reason = "breakpoint() needs a run of one worker: set trainer.devices=1"
    assert (done.returncode, reason in done.stderr) == (EXIT_FAILED, True), done.stderr
