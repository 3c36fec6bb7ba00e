"""`python -m benchmarks.gpu`: a failed stage stops no other one, and results survive a timeout and a signal."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import runner
from benchmarks.gpu.runner import EXIT_UNUSABLE
from benchmarks.gpu.stage import Aim, Bench
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED
from tests.support.harness import PATIENCE_S, ROOT, environ, wait_until

pytestmark = [pytest.mark.full, pytest.mark.processes]
COMMAND = """\
import sys
from pathlib import Path
from benchmarks.gpu.runner import Stage, Stopping, run
stages = [Stage(name, float(limit), [sys.executable, "-c", code]) for name, limit, code in {stages!r}]
sys.exit(run(stages, Path({folder!r}), title="it", data=Path({data!r}), budget_s={budget_s}, stopping=Stopping()))
"""
ROW = """\
import json, sys
with open(sys.argv[1], "a") as file:
    row = {"what": "a number", "result": "1.5", "predicted": "1.4", "aim": "<= 2", "is_met": %s}
    file.write(json.dumps(row) + "\\n")
"""
PASSES = ROW % "True"
MISSES = ROW % "False"
FAILS = PASSES + "print('before'); sys.exit('the reason')"
# starts a process in a session of its own, as torchrun does, which starts one in another
HANGS = (
    PASSES
    + """
import subprocess, time
from pathlib import Path
sleeps = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
starts = '''
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)
time.sleep(600)
'''
print("hanging", flush=True)
pid = Path(sys.argv[3], "pid")
subprocess.Popen([sys.executable, "-c", starts, sleeps, str(pid)], start_new_session=True)
while not pid.exists() or not pid.read_text():
    time.sleep(0.01)
Path(sys.argv[3], "hangs").touch()
time.sleep(600)
"""
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command with stages (name, limit, code), which find `tmp_path` in argv[3]."""

    def started(*stages: tuple[str, float, str], budget_s: float = 300) -> subprocess.Popen[str]:
        code = COMMAND.format(stages=stages, folder=str(tmp_path / "out"), budget_s=budget_s, data=str(tmp_path))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        commands.append(subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environ(), **pipes))
        return commands[-1]

    commands: list[subprocess.Popen[str]] = []
    yield started
    for process in commands:
        process.terminate()  # ends its stage too
        process.wait(PATIENCE_S)


def ends(tmp_path: Path) -> dict[str, tuple[str, str, int]]:
    """State, reason and number of rows of each stage."""
    stages = json.loads((tmp_path / "out" / "results.json").read_text())["stages"]
    return {each["name"]: (each["state"], each["reason"], len(each["rows"])) for each in stages}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_stage_that_fails_misses_its_aim_or_hangs_stops_no_other_one(tmp_path: Path, start: Any) -> None:
    stages = ("fails", 60, FAILS), ("misses", 60, MISSES), ("hangs", 6, HANGS), ("passes", 60, PASSES)
    process = start(*stages)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_FAILED, output
    assert ends(tmp_path) == {
        "fails": ("failed", "the reason", 1),
        "misses": ("failed", "not met: a number", 1),
        "hangs": ("timed out", "killed after 6 s", 1),
        "passes": ("passed", "", 1),
    }
    assert is_gone(int((tmp_path / "pid").read_text()))
    assert "| a number | 1.5 | 1.4 | <= 2 | yes |" in (tmp_path / "out" / "gpu.md").read_text()
    assert "\nhanging\n" in (tmp_path / "out" / "logs.txt").read_text()


def test_a_signal_keeps_the_results_so_far(tmp_path: Path, start: Any) -> None:
    process = start(("passes", 60, PASSES), ("hangs", 300, HANGS), ("never", 60, PASSES))
    wait_until((tmp_path / "hangs").exists, what="the second stage")
    assert ends(tmp_path)["hangs"][0] == "running"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_STOPPED, output
    assert ends(tmp_path) == {
        "passes": ("passed", "", 1),
        "hangs": ("cut", "SIGTERM", 1),
        "never": ("not started", "SIGTERM", 0),
    }
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_stages_end_with_the_budget_and_without_a_gpu(tmp_path: Path, start: Any) -> None:
    process = start(("hangs", 12, HANGS), ("never", 9, PASSES), budget_s=6)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_STOPPED, output
    assert {name: state for name, (state, *_) in ends(tmp_path).items()} == {"hangs": "cut", "never": "not started"}
    process = start(("first", 60, f"print('no GPU'); raise SystemExit({EXIT_UNUSABLE})"), ("never", 60, PASSES))
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == EXIT_UNUSABLE, output
    assert ends(tmp_path) == {"first": ("failed", "no GPU", 0), "never": ("not started", "no GPU", 0)}


def test_a_figure_is_a_median_compared_with_its_aim(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "rows.jsonl", tmp_path, tmp_path, is_rehearsal=False)
    bench.figure("a", [3.0, 1.0, 2.0], "{:.1f} s", Aim("<=", 2.0))
    bench.figure("b", [float("nan")], "{:.1e}", Aim("<=", 1e-12))
    rows = [(row["what"], row["result"], row["aim"], row["is_met"]) for row in runner._read_rows(bench.rows)]
    assert rows == [("a", "2.0 s (1.0 s to 3.0 s, n=3)", "<= 2.0 s", True), ("b", "nan", "<= 1.0e-12", False)]
