"""A run folder that another process holds, or writes into."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from lockstep.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("begun", flush=True)
    sys.stdin.read()
"""


@contextmanager
def begun_by_another_process(script: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()
