"""A signal comes before there is a run, or to a command that has nothing to save.

The command prints one line and exits with the right code.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, RunFolder
from tests.support import exact
from tests.support.harness import PATIENCE_S, SMALL, command, environ

pytestmark = [pytest.mark.full, pytest.mark.processes]
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
# sends this very process a signal when it imports a certain module: what follows the signal is up
# to the command
ON_IMPORT = """
import os, signal, sys
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"] and os.environ["SIGNAL"]:
            number, os.environ["SIGNAL"] = int(os.environ["SIGNAL"]), ""
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Signals())
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return exact.trained(
        tmp_path_factory.mktemp("trained") / "run", [*SMALL, "trainer.max_epochs=1"]
    )


def signalled(
    cwd: Path, words: list[str], number: signal.Signals, module: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How a command ends that gets a signal when it imports a module, and the lines it prints."""
    done = with_module(
        cwd, "sitecustomize", ON_IMPORT, words, SIGNAL_AT=module, SIGNAL=str(int(number))
    )
    return done, (done.stdout + done.stderr).splitlines()


def with_module(
    cwd: Path, name: str, text: str, words: list[str], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that imports `text` as the module `name`."""
    (cwd / "site").mkdir()
    (cwd / "site" / f"{name}.py").write_text(text)
    variables = {**environ(), "PYTHONPATH": str(cwd / "site"), **variables}
    return subprocess.run(
        words, cwd=cwd, env=variables, capture_output=True, text=True, timeout=PATIENCE_S
    )


@pytest.mark.parametrize(
    ("number", "module"),
    [
        (signal.SIGINT, "hydra"),
        (signal.SIGTERM, "lockstep.config.checks.validation"),
        (signal.SIGUSR1, "lockstep.launch.runner"),
    ],
)
def test_signal_before_run(tmp_path: Path, number: signal.Signals, module: str) -> None:
    done, lines = signalled(tmp_path, command(*SMALL), number, module)
    assert lines == [f"lockstep: terminated by {number.name}, no run was started"]
    assert done.returncode == 128 + number
    assert not list(tmp_path.glob("outputs/*/*"))


def test_error_before_imports(tmp_path: Path) -> None:
    done = with_module(
        tmp_path, "torch", "import time; time.sleep(1000)", command("optimizer.lrr=1")
    )
    assert done.returncode == EXIT_CONFIG
    assert "optimizer.lrr is not a setting" in done.stderr


def test_failing_torch_import(tmp_path: Path) -> None:
    done = with_module(tmp_path, "torch", "raise ImportError('failed to map segment')", command())
    line, end = done.stderr.splitlines()
    assert done.returncode == EXIT_FAILED
    assert "imports torch" in line
    assert end.startswith("The run failed:")


@pytest.mark.parametrize(
    ("words", "module", "number"),
    [
        (["eval", "{run}", "--devices", "1"], "lockstep.launch.parent", signal.SIGTERM),
        # by the first worker
        (["eval", "{run}", "--devices", "2"], "multiprocessing.popen_forkserver", signal.SIGINT),
        (["benchmark", "trainer.max_epochs=1"], "lockstep.benchmark", signal.SIGTERM),
    ],
)
def test_signal_with_nothing_to_save(
    trained: RunFolder, tmp_path: Path, words: list[str], module: str, number: signal.Signals
) -> None:
    done, lines = signalled(
        tmp_path, [TOOL, *(word.format(run=trained.path) for word in words)], number, module
    )
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"lockstep: terminated by {number.name}")
    assert done.returncode == 128 + number
    assert {path.name for path in tmp_path.iterdir()} == {"site"}
