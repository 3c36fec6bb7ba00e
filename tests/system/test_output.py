"""A training outlives its terminal: output that cannot be printed is dropped, and the run continues."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED
from tests.support.commands import latest
from tests.support.harness import PATIENCE_S, ROOT, SMALL, command, environ, own_network, wait_until
from tests.support.image_files import write_image
from tests.support.screens import on_terminal

pytestmark = [pytest.mark.full, pytest.mark.processes]
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")


def shell(cwd: Path, line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """What bash makes of a line; the exit code is that of the first failing part of a pipe."""
    words = ["bash", "-o", "pipefail", "-c", line]
    return subprocess.run(words, cwd=cwd, env={**environ(), **variables}, capture_output=True, timeout=PATIENCE_S)


@pytest.mark.parametrize(("num_workers", "redirection"), [(2, "2>&1 | head -1"), (1, "> /dev/full 2>&1")])
def test_output_closed_or_full(tmp_path: Path, redirection: str, num_workers: int) -> None:
    train = shlex.join(command(*SMALL, f"trainer.devices={num_workers}"))
    done = shell(tmp_path, f"{train} {redirection}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert latest(tmp_path).read_status()["state"] == "finished"


def test_ascii_terminal(tmp_path: Path) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    train = shlex.join(command(*SMALL, "trainer.devices=2"))
    done = shell(tmp_path, train, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lockstep eval latest" in (done.stdout + done.stderr).decode("ascii")
    listed = shell(tmp_path, f"{TOOL} status && {TOOL} runs", **variables)
    assert "finished" in listed.stdout.decode("ascii"), listed.stderr


def test_terminal_closed(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*SMALL, "trainer.max_epochs=500"),
        cwd=tmp_path, env=environ(), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL) and None,
    )  # fmt: skip
    os.close(theirs)
    try:
        wait_until(lambda: latest(tmp_path).read_status().get("step", 0) >= 2, "step 2")
        os.close(ours)  # from here on writing there is an error
        process.send_signal(signal.SIGHUP)  # what the kernel sends to what the terminal controls
        assert process.wait(PATIENCE_S) == EXIT_STOPPED
    finally:
        process.kill()
        process.wait()
    assert latest(tmp_path).read_status()["reason"] == "signal SIGHUP"


@pytest.mark.parametrize(
    ("num_workers", "keys", "code", "end"),
    [
        (1, "c\n", 0, "Finished 2 epochs"),
        (1, "q\n", EXIT_FAILED, "the debugger was quit"),
        (1, "\x04", EXIT_FAILED, "the debugger was quit"),
        (2, "", EXIT_FAILED, "breakpoint() needs a run of one worker: set trainer.devices=1"),
    ],
)
def test_breakpoint(tmp_path: Path, num_workers: int, keys: str, code: int, end: str) -> None:
    words = ("train", *own_network("Debugged"), f"trainer.devices={num_workers}", f"hydra.run.dir={tmp_path / 'run'}")
    with on_terminal(80, *words, PYTHONPATH=str(ROOT)) as on:
        if keys:
            on.wait_for(r"networks\.py\(\d+\)forward\(\)\r\n-> return super\(\)\.forward\(x\)\r\n\(Pdb\) ")
            on.type("p x.shape[1:]\n")
            on.wait_for(r"torch\.Size\(\[1, 16, 16\]\)\r\n\(Pdb\) ")
            on.type(keys)
        assert on.end() == code, on.text
    assert end in on.text, on.text


EVIL = "\x1b]0;title\x07\x1b[2J\x1b[35;7m\x9b35m"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("status no{evil}thing", "thing is not a run folder"),
        ("data check data=image_folder data.root='{root}' data.image_size=8 data.cache=null", "leaks"),
    ],
)
def test_escape_sequences_in_names(tmp_path: Path, words: str, shown: str) -> None:
    root = tmp_path / f"flo{EVIL}wers"
    for name in ("a", "b"):
        for number in range(10):
            write_image(root / f"{name}{EVIL}" / f"{number}{EVIL}.png")
    with on_terminal(
        80, *(word.format(evil=EVIL, root=root, cache=tmp_path / "cache") for word in words.split())
    ) as on:
        on.end()
    assert re.search(shown, on.text), on.text
    for part in ("\x1b]", "\x07", "\x1b[2J", "\x1b[35", "\x9b"):
        assert part not in on.text, on.text
