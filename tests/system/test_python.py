"""Scripts train, read runs and predict, as a notebook does, and their process stays unchanged."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.runs.folder import RunFolder
from tests.support.commands import Command, latest, run
from tests.support.harness import ROOT, SMALL, command, difference, environ, state, wait_until
from tests.support.leaks import open_entries

pytestmark = pytest.mark.processes
VARIABLES = {**environ(), "PYTHONPATH": str(ROOT)}
HEAD = (
    f"import json, os, signal, sys, threading\nimport lockstep\nSMALL = {[*SMALL, 'silent=true']}\n"
)
LONG = "[*SMALL, 'data.train_size=301', 'trainer.max_epochs=500', 'silent=false']"


def write(cwd: Path, text: str) -> list[str]:
    """The command of a script, which has no `if __name__ == "__main__"`: as in a notebook."""
    (cwd / "script.py").write_text(HEAD + text)
    return [sys.executable, str(cwd / "script.py")]


def said(cwd: Path, text: str) -> Any:
    done = run(write(cwd, text), cwd, VARIABLES)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# -- a training is that of the command -------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What `python train.py` trains."""
    cwd = tmp_path_factory.mktemp("alone")
    done = run(command(*SMALL), cwd)
    assert done.returncode == 0, done.stderr
    return latest(cwd)


TRAINED = """
runs = [lockstep.train([*SMALL, f"trainer.devices={count}"]) for count in (1, 2, 1)]
print(json.dumps({
    "runs": [str(run.path) for run in runs],
    "listed": [str(run.path) for run in lockstep.runs()],
    "states": [run.state for run in runs],
    "overrides": runs[1].overrides,
    "rows": runs[0].metrics,
    "summary": runs[0].summary,
}))
"""


@pytest.mark.full
def test_runs_like_command(alone: RunFolder, tmp_path: Path, figure: Any) -> None:
    """With one worker, two, and one again."""
    facts = said(tmp_path, TRAINED)
    one, two, again = (RunFolder(Path(path)) for path in facts["runs"])
    assert difference(alone, one) == difference(alone, again) == 0
    figure(
        f"two workers that a script starts against the command's one: {difference(alone, two):.1e}"
    )
    assert difference(alone, two) <= 1e-12
    assert facts["states"] == ["finished"] * 3
    assert facts["listed"] == facts["runs"][::-1]
    assert facts["overrides"] == [*SMALL, "silent=true", "trainer.devices=2"]
    assert facts["summary"] == one.read_summary()
    assert facts["rows"][1]["val/loss"] == float(alone.read_metrics()[1]["val/loss"])


@pytest.mark.full
def test_script_runs_once(tmp_path: Path) -> None:
    """Multiprocessing would run it again; a source that streams has processes, too."""
    text = """
print("begun")
streamed = [
    "data=dataset",
    "data.train={_target_: tests.support.sources.Turned}",
    "data.num_workers=1",
]
for count in (1, 2):
    plain = [text for text in SMALL if not text.startswith("data")]
    lockstep.train([*plain, *streamed, f"trainer.devices={count}"])
"""
    done = run(write(tmp_path, text), tmp_path, VARIABLES)
    assert (done.returncode, done.stdout.split()) == (0, ["begun"]), done.stderr


@pytest.mark.full
def test_process_unchanged(tmp_path: Path) -> None:
    text = """
import logging, random, warnings
import numpy as np
import torch

def state():
    return {
        "random": [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()],
        "torch": [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark,
                  torch.get_default_dtype(), torch.get_num_threads(),
                  torch.get_float32_matmul_precision(),
                  torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()],
        "signals": [signal.getsignal(number) for number in range(1, signal.NSIG)],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "hook": threading.excepthook,
        "path": list(sys.path),
        "folder": os.getcwd(),
        "variables": dict(os.environ),
        "warnings": list(warnings.filters),
        "logging": [logging.getLogger().level, logging.getLogger().handlers[:]],
        "argv": list(sys.argv),
        "streams": [sys.stdout, sys.stderr],
    }

random.seed(3), np.random.seed(3), torch.manual_seed(3)
before = state()
found = {}
for count in (1, 2):
    lockstep.train([*SMALL, f"trainer.deterministic={count == 1}", f"trainer.devices={count}"])
    now = state()
    found[f"train {count}"] = [name for name in before if now[name] != before[name]]
lockstep.load("latest")(torch.zeros(1, 1, 16, 16))
now = state()
found["load"] = [name for name in before if now[name] != before[name]]
print(json.dumps(found))
"""
    assert said(tmp_path, text) == {"train 1": [], "train 2": [], "load": []}


# -- errors are exceptions -------------------------------------------------------------------------


def test_errors_of_configuration(tmp_path: Path) -> None:
    text = """
def error(overrides):
    try:
        lockstep.train(overrides)
    except lockstep.ConfigError as error:
        return str(error)
print(json.dumps([error(overrides) for overrides in (
    ["optimizer.lrr=1", "trainer.max_epochs=a"],
    ["optimizer.lr=0.1,0.2"],
    ["-m", "seed=1"],
    ["cluster=local"],
    ["hydra.job.chdir=true"],
    "seed=1",
    [1],
    ["trainer.devices=0"],
    ["resume=nowhere"],
)]))
"""
    many, *errors = said(tmp_path, text)
    lines = many.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["optimizer.lrr", "trainer.max_epochs=a"]
    starts = [
        "optimizer.lr=0.1,0.2 ",
        "-m ",
        "cluster=local ",
        "hydra.job.chdir=true ",
        "'seed=1' ",
        "[1] ",
    ]
    starts += ["trainer.devices=0 ", "resume=nowhere "]
    assert [error[: len(start)] for error, start in zip(errors, starts, strict=True)] == starts
    assert not (tmp_path / "outputs").exists()


@pytest.mark.full
def test_failed_training(tmp_path: Path) -> None:
    text = """
try:
    lockstep.train([*SMALL, "optimizer.lr=1e30", "trainer.gradient_clip_norm=null"])
except lockstep.TrainingFailed as error:
    found = [str(error), error.run.state, str(error.run.path)]
again = lockstep.train([*SMALL, "trainer.max_epochs=1"]).state
print(json.dumps([*found, again]))
"""
    message, how, path, again = said(tmp_path, text)
    assert RunFolder(Path(path)).read_status()["reason"] in message
    assert (how, again) == ("failed", "finished")


# -- stopping --------------------------------------------------------------------------------------


@contextmanager
def started(cwd: Path, text: str, step: int = 3) -> Iterator[Command]:
    """A script whose run has done some steps."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = Command(write(cwd, text), cwd, VARIABLES, **pipes)

    def is_there() -> bool:
        assert process.poll() is None, process.stdout and process.stdout.read()
        return latest(cwd).read_status().get("step", 0) >= step

    try:
        wait_until(is_there, f"step {step}")
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.full
def test_interrupt_and_resume(tmp_path: Path) -> None:
    text = f"""
how = [*{LONG}, "trainer.devices=2", "scheduler=constant"]
try:
    lockstep.train(how)
except KeyboardInterrupt:
    print("interrupted", flush=True)
stopped = lockstep.Run("latest")
is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
facts = [stopped.state, stopped.summary, stopped["step"], is_default]
epochs = stopped["epoch"] + 1
went_on = lockstep.train(["resume=outputs/latest", f"trainer.max_epochs={{epochs}}", "silent=true"])
whole = lockstep.train([*how, f"trainer.max_epochs={{epochs}}", "silent=true"])
print(json.dumps([*facts, str(went_on.path), str(whole.path), went_on == stopped]))
"""
    with started(tmp_path, text) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "interrupted" in out.splitlines()
    how, summary, step, has_its_handler, went_on, whole, is_same = json.loads(out.splitlines()[-1])
    assert (how, summary, has_its_handler, is_same) == ("stopped", {}, True, True)
    assert step >= 3
    # the counts of the epoch that was cut are added up over the workers in another order
    assert difference(RunFolder(Path(went_on)), RunFolder(Path(whole))) <= 1e-12


HANDLER = """
def handle(number, frame):
    print(number, lockstep.Run("latest").state, flush=True)
signal.signal(signal.SIGUSR1, handle)
"""
IN_A_THREAD = """
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("head", "tail", "number", "code", "last"),
    [
        ("", "work()", signal.SIGTERM, -signal.SIGTERM, None),
        (HANDLER, "work()", signal.SIGUSR1, 0, "stopped"),
        ("", IN_A_THREAD, None, 0, "stopped"),
    ],
)
def test_stop(
    tmp_path: Path, head: str, tail: str, number: int | None, code: int, last: str | None
) -> None:
    text = f"{head}\ndef work():\n    print(lockstep.train({LONG}).state)\n{tail}"
    with started(tmp_path, text) as process:
        if number is None:
            latest(tmp_path).request_stop("a test")
        else:
            process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == code, out
    assert (out.splitlines()[-1] == "stopped") == (last is not None)
    assert (f"{signal.SIGUSR1:d} stopped" in out.splitlines()) == (number == signal.SIGUSR1)
    assert latest(tmp_path).read_status()["state"] == "stopped"
    assert state(latest(tmp_path))


SHARING = """
os.umask(0o002)
folder = lockstep.train([*SMALL, "trainer.devices=2"]).path
job = lockstep.submit([*SMALL, "cluster=local"])[0]
state = job.wait()
print(json.dumps({"folders": [str(folder), str(job.path)], "state": state, "umask": os.umask(0)}))
"""


@pytest.mark.full
def test_umask_of_group(tmp_path: Path) -> None:
    found = said(tmp_path, SHARING)
    assert (found["state"], found["umask"]) == ("completed", 0o002)
    assert [open_entries(Path(folder)) for folder in found["folders"]] == [[], []]
