"""Python commands are forks of the product's server.

They save the import of torch, seconds of a core each. Each has its own arguments, folder,
variables, files, signals and exit code. Without OMP_NUM_THREADS it has a thread for each core, as
the command of a user. A fork does not read sitecustomize.py or other numbers of threads again:
tests of those start new processes.
"""

import contextlib
import csv
import os
import runpy
import shutil
import signal
import subprocess
import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Self

import torch

from lockstep.launch import child
from lockstep.runs.folder import RunFolder
from lockstep.system.hardware import num_cores
from tests.support.harness import PATIENCE_S, ROOT, environ

SCRIPTS = Path(sys.executable).parent
INSTALLED = [
    path for path in sys.path if path and Path(path) not in (ROOT, ROOT / "tests", SCRIPTS)
]


class Command:
    """`python ...`, or a script of this environment.

    It is used like `subprocess.Popen`, and has its text mode. `stdout` and `stderr` are open files,
    PIPE (of standard error read at the end) or STDOUT; by default they are kept for `communicate`.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = True,
    ) -> None:
        assert text
        self.args = list(map(str, words))
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._outputs = [os.memfd_create("output") for _ in range(2)]
        for descriptor in self._outputs:
            weakref.finalize(self, os.close, descriptor)
        if stdout == subprocess.PIPE:
            read, out = os.pipe()
            self.stdout = open(read)  # noqa: SIM115
        else:
            out = os.dup(self._outputs[0] if stdout is None else stdout.fileno())
        is_kept = stderr in (None, subprocess.PIPE)
        err = os.dup(
            out if stderr == subprocess.STDOUT else self._outputs[1] if is_kept else stderr.fileno()
        )
        files = [Connection(number, readable=False) for number in (out, err)]
        work = partial(_execute, self.args, str(cwd or Path.cwd()), files, INSTALLED)
        self._process = child.start(work, environ() if env is None else env)
        for file in files:
            file.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        out = None
        if self.stdout is not None and not self.stdout.closed:
            with self.stdout:
                out = self.stdout.read()
        self.wait(timeout)
        return _text(self._outputs[0]) if out is None else out, _text(self._outputs[1])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        if self.stdout is not None:
            self.stdout.close()


def run(
    words: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture its output."""
    process = Command(words, cwd, env)
    try:
        out, err = process.communicate(PATIENCE_S)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.wait(), out, err)


def lockstep(cwd: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `lockstep ...` in a folder, where it finds tests.support."""
    return run(
        [sys.executable, "-m", "lockstep", *words], cwd, {**environ(), "PYTHONPATH": str(ROOT)}
    )


def output_of(cwd: Path, *words: str | Path) -> str:
    """Run `lockstep ...` in a folder, which must succeed. Returns what it printed."""
    done = lockstep(cwd, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def latest(cwd: Path) -> RunFolder:
    """The newest run of the commands in a folder."""
    return RunFolder((cwd / "outputs" / "latest").resolve())


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def copy_with_rule(run_folder: RunFolder, folder: Path, threshold: float) -> RunFolder:
    """Copy a run, with validation images of which those up to the threshold are wrong."""
    shutil.copytree(run_folder.path, folder)
    path = RunFolder(folder).best_checkpoint
    saved = torch.load(path, weights_only=True)
    confidences = torch.cat([torch.ones(150), torch.full((50,), threshold)])
    rows = {"confidences": confidences, "is_right": torch.arange(200) < 150}
    torch.save(saved | {"calibration": saved["calibration"] | {"val": rows, "test": rows}}, path)
    return RunFolder(folder)


def _text(descriptor: int) -> str:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def _execute(
    words: list[str], cwd: str, files: Sequence[Connection], installed: Sequence[str]
) -> int:
    """Run the arguments as `python` does, or the script that comes first."""
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
        file.close()
    os.setpgid(0, 0)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if "OMP_NUM_THREADS" not in os.environ:  # the server has imported torch with that of the tests
        torch.set_num_threads(num_cores())
    if Path(words[0]).name.startswith("python"):
        words = words[1:]
    first = cwd if words[0] in ("-m", "-c") else str(Path(words[0]).resolve().parent)
    sys.path[:] = [
        first,
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        *installed,
    ]
    try:
        if words[0] == "-m":
            sys.argv[:] = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv[:] = ["-c", *words[2:]]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(main))
        else:
            sys.argv[:] = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0
