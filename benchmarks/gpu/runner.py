"""Stages one after the other, each a process with a limit of its own, and what is known on disk after every one.

A stage is killed with all processes it started, and never stops the next one. This module imports the standard library
and no torch: it must react to a signal immediately, and work where packages are missing.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from benchmarks.gpu import page
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_STOPPED

ROOT = Path(__file__).parents[2]
EXIT_UNUSABLE = EXIT_CONFIG  # of a stage: nothing can be measured here, so that no other stage is started
REHEARSAL = "--rehearsal"
POLL_S = 0.1
KILL_S = 10.0  # so long a killed process may take to go; one that waits for a broken driver never goes
LEAST_SHARE = 1 / 3  # of its limit: with less time left a stage is not started
PR_SET_CHILD_SUBREAPER = 36  # prctl.h


class Stage(NamedTuple):
    """A command, which gets three more words: the file for its rows, a folder to work in, the folder of the data."""

    name: str
    limit_s: float
    command: Sequence[str]


class Stopping:
    """Remembers that SIGTERM or Ctrl-C came, and under which name."""

    def __init__(self) -> None:
        self.reason = ""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name


def run(stages: Sequence[Stage], folder: Path, *, title: str, data: Path, budget_s: float, stopping: Stopping) -> int:
    """Run all stages within `budget_s` seconds and keep results.json, gpu.md and logs.txt. Returns the exit code."""
    deadline = time.monotonic() + budget_s
    folder.mkdir(parents=True, exist_ok=True)
    _adopt_orphans()
    results = [
        {"name": stage.name, "state": "not started", "reason": "", "limit_s": stage.limit_s, "rows": []}
        for stage in stages
    ]
    unusable = ""
    for stage, result in zip(stages, results, strict=True):
        rest_s = deadline - time.monotonic()
        if stopping.reason or unusable:
            result["reason"] = stopping.reason or unusable
        elif rest_s < LEAST_SHARE * stage.limit_s:
            result["reason"] = f"{max(0.0, rest_s):.0f} s of the budget were left"
        else:
            result |= {"state": "running", "started": datetime.now().astimezone().isoformat(timespec="seconds")}
            page.write(folder, title, results)
            result |= _run_stage(stage, folder / "logs.txt", data, min(stage.limit_s, rest_s), stopping)
            if result["code"] == EXIT_UNUSABLE:
                unusable = result["reason"]
        page.write(folder, title, results)
        print(page.summary(result), flush=True)
    print(f"written to {folder}", flush=True)
    if unusable:
        return EXIT_UNUSABLE
    states = {result["state"] for result in results}
    if states & {"failed", "timed out"}:
        return EXIT_FAILED
    return EXIT_STOPPED if states - {"passed"} else 0


def _run_stage(stage: Stage, log_file: Path, data: Path, limit_s: float, stopping: Stopping) -> dict[str, Any]:
    """Run one stage to its end or to `limit_s`. Returns what became of it."""
    started = time.monotonic()
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-gpu-", ignore_cleanup_errors=True) as scratch,
        open(log_file, "ab", buffering=0) as log,
    ):
        begin = log.tell()
        log.write(f"==== {stage.name}, {datetime.now():%H:%M:%S}, at most {limit_s:.0f} s\n".encode())
        rows_file = Path(scratch, "rows.jsonl")
        process = subprocess.Popen(
            [*stage.command, str(rows_file), scratch, str(data.resolve())],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # its group can be killed, and Ctrl-C reaches this process alone
        )
        while process.poll() is None and time.monotonic() - started < limit_s and not stopping.reason:
            time.sleep(POLL_S)
        code = process.poll()
        if not _kill(process):
            log.write(f"{stage.name}: a killed process is still there after {KILL_S:.0f} s\n".encode())
        rows = _read_rows(rows_file)
        log.write(f"==== {stage.name} ended with code {code}\n".encode())
    seconds = time.monotonic() - started
    if code is None and stopping.reason:
        state, reason = "cut", stopping.reason
    elif code is None and limit_s < stage.limit_s:
        state, reason = "cut", f"the budget ended after {limit_s:.0f} s"
    elif code is None:
        state, reason = "timed out", f"killed after {limit_s:.0f} s"
    else:
        state, reason = _verdict(code, rows, log_file, begin)
    return {"state": state, "reason": reason, "code": code, "seconds": round(seconds, 1), "rows": rows}


def _verdict(code: int, rows: Sequence[dict[str, Any]], log_file: Path, begin: int) -> tuple[str, str]:
    if code:
        with open(log_file, "rb") as log:
            log.seek(begin)
            lines = [line for line in log.read().decode(errors="replace").splitlines()[1:-1] if line.strip()]
        return "failed", (lines[-1].strip()[:200] if lines else f"code {code}, without a word")
    unmet = [row["what"] for row in rows if row["is_met"] is False]
    return ("failed", f"not met: {'; '.join(unmet)}") if unmet else ("passed", "")


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows a stage wrote; the last one may be cut."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _adopt_orphans() -> None:
    """Have the kernel make this process the parent of what its children leave behind (Linux).

    torchrun and Lockstep start workers in groups of their own, which the end of a stage's group does not reach.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill what is left of a stage. Returns whether all of it is gone."""
    deadline = time.monotonic() + KILL_S
    if process.returncode is None:  # else its number may be that of another group by now
        os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
    while left := [pid for pid in _children() if pid != process.pid]:
        if time.monotonic() > deadline:
            return False
        for pid in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    return process.returncode is not None


def _children() -> list[int]:
    """Return processes whose parent is this one: the stage, and orphans it left."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone since
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid():
                pids.append(int(path.parent.name))
    return pids
