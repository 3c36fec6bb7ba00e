"""A signal before there is a run, or to a command that has nothing to save: one line and the right code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.launch import spawn
from lockstep.runs.folder import EXIT_CONFIG, EXIT_STOPPED, RunFolder
from tests.support.harness import PATIENCE_S, SMALL, command, environ, wait_until, write_run
from tests.support.trainings import children_of, is_alive

pytestmark = pytest.mark.processes
TOOL = os.fspath(Path(sys.executable).parent / "lockstep")
# sends this very process a signal when it imports a certain module: what follows the signal is up to the command
ON_IMPORT = """
import os, signal, sys
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SIGNAL_AT"] and os.environ["SIGNAL"]:
            number, os.environ["SIGNAL"] = int(os.environ["SIGNAL"]), ""
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Signals())
"""
# says which process stands by, when the check begins
FAULT = """
import runpy
from lockstep.launch import supervision
stand_by = supervision.stand_by
def told():
    stand_by()
    print(supervision._standby.pid, flush=True)
supervision.stand_by = told
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = write_run(tmp_path_factory.mktemp("trained") / "run", [*SMALL, "trainer.max_epochs=1"])
    assert spawn.run_here(spawn.Job("train", str(folder.path), {"command": "", "has_test": False}), None) == 0
    return folder


def signalled(
    cwd: Path, words: list[str], number: signal.Signals, module: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How a command ends that gets a signal when it imports a module, and the lines it prints."""
    (cwd / "site").mkdir()
    (cwd / "site" / "sitecustomize.py").write_text(ON_IMPORT)
    variables = {"PYTHONPATH": str(cwd / "site"), "SIGNAL_AT": module, "SIGNAL": str(int(number))}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**environ(), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        # as in a terminal, also where the tests run under nohup
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL) and None,
    )
    return done, (done.stdout + done.stderr).splitlines()


@pytest.mark.parametrize("module", ["hydra", "lockstep.config.validation", "lockstep.launch.runner"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_before_there_is_a_run_ends_the_command_with_one_line(
    tmp_path: Path, number: signal.Signals, module: str
) -> None:
    done, lines = signalled(tmp_path, command(*SMALL), number, module)
    assert lines == [f"lockstep: ended by {number.name}, no run is under way"]
    assert done.returncode == 128 + number
    assert not list(tmp_path.glob("outputs/*/*"))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_torch_is_imported_beside_the_check_by_the_process_that_computes(tmp_path: Path, num_workers: int) -> None:
    words = command(*SMALL, "trainer.max_epochs=100000", "silent=true", f"trainer.devices={num_workers}")
    with subprocess.Popen(words, cwd=tmp_path, env=environ(), process_group=0) as process:
        try:
            wait_until(lambda: children_of(process.pid), "the process that computes")
            (computes,) = children_of(process.pid)
            folder = RunFolder(tmp_path / "outputs" / "latest")
            wait_until(lambda: folder.read_status().get("state") == "training", "a step")
            assert children_of(process.pid) == [computes]
            maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (process.pid, computes)]
            assert ["libtorch" in of_process for of_process in maps] == [False, True]
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            assert process.wait(PATIENCE_S) == EXIT_STOPPED
        finally:
            process.kill()
    assert folder.read_status()["reason"] == "signal SIGINT"
    assert not is_alive(computes)


def test_nothing_is_left_of_a_command_with_a_fault(tmp_path: Path) -> None:
    words = [sys.executable, "-c", f"import sys\nsys.argv = {command('optimizer.lrr=1')[1:]}\n{FAULT}"]
    done = subprocess.run(words, cwd=tmp_path, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == EXIT_CONFIG
    assert "unknown key optimizer.lrr" in done.stderr
    wait_until(lambda: not is_alive(int(done.stdout)), "the other process gone")


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["eval", "{run}", "--devices", "1"], "lockstep.cli.main"),
        (["eval", "{run}", "--devices", "1"], "torch"),
        (["eval", "{run}", "--devices", "1"], "lightning"),
        (["predict", "{run}", "test", "--output", "out.csv", "--devices", "2"], "lockstep.system.hardware"),
        (["benchmark", "trainer.max_epochs=1"], "lockstep.benchmark"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_with_nothing_to_save_ends_at_once(
    trained: RunFolder, tmp_path: Path, words: list[str], module: str, number: signal.Signals
) -> None:
    done, lines = signalled(tmp_path, [TOOL, *(word.format(run=trained.path) for word in words)], number, module)
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"lockstep: ended by {number.name}")
    assert done.returncode == 128 + number
    assert {path.name for path in tmp_path.iterdir()} == {"site"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_workers_of_an_evaluation_end_by_one_signal(
    trained: RunFolder, tmp_path: Path, number: signal.Signals
) -> None:
    words = [TOOL, "eval", str(trained.path), "--devices", "2"]
    done, lines = signalled(tmp_path, words, number, "torch.distributed")  # the parent imports it beside its workers
    assert lines == [f"lockstep: ended by {number.name}"]
    assert done.returncode == 128 + number


# a thread that hears of every signal half a second late, as on a busy machine
LATE = """
import os, signal, sys, time
from lockstep.system import signals
read = os.read
def late(*args):
    found = read(*args)
    time.sleep(0.5)
    return found
os.read = late
signals.end_at_once()
flag = signals.SignalFlag()
with flag.installed():
    os.kill(os.getpid(), signal.SIGINT)
    while not flag.received:
        time.sleep(0.01)
time.sleep(2)
print("lives", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""


def test_a_signal_that_was_taken_over_ends_nothing_afterwards_and_the_next_one_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE], env=environ(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "lives\n"
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "lockstep: ended by SIGTERM, no run is under way\n"
