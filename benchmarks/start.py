"""Time commands and the first steps of a training and a sweep.

`python -m benchmarks.start`, or one of `commands` and `sweeps`. A round takes seconds.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ENVIRON, ROOT, TRAIN
from benchmarks.table import Row, alternate, measure, row

NUM_TRIALS = 4
NUM_AT_ONCE = 2


@dataclass(frozen=True)
class Measured:
    """The seconds of one sweep.

    `later_steps_s` are from the end of a trial to the first step of the one that follows.
    """

    total_s: float
    first_step_s: float
    later_steps_s: list[float]


def _seconds(*command: str, code: int = 0) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return time.perf_counter() - started


def _import_torch() -> float:
    """Return seconds from the command to the end of importing torch.

    Leaving takes more than a second more.
    """
    code = "import torch, time; print(time.time())"
    started = time.time()
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True)
    return float(done.stdout) - started


def _first_step(num_workers: int) -> float:
    """Seconds from the command to the end of the first step of the default training."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "time"
        callback = f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {path}}}"
        started = time.time()
        words = (callback, f"trainer.devices={num_workers}", "strategy=cpu", "debug=fast")
        _seconds(*TRAIN, *words, f"hydra.run.dir={folder}/run")
        return float(path.read_text()) - started


def commands(num_rounds: int = 7) -> list[Row]:
    """Time help, an error, and the first step of one worker and of three.

    They are compared with importing only torch.
    """
    _first_step(1)  # Python compiles what it imports, where it has not yet
    times = alternate(
        num_rounds,
        torch=_import_torch,
        help=lambda: _seconds(*TRAIN, "--help"),
        error=lambda: _seconds(*TRAIN, "optimizer.lrr=1", code=2),
        one=lambda: _first_step(1),
        three=lambda: _first_step(3),
    )
    return [
        row("import torch", times["torch"], "{:.2f} s"),
        row("train.py --help", times["help"], "{:.2f} s"),
        row("train.py with an error", times["error"], "{:.2f} s"),
        row("first step of train.py debug=fast", times["one"], "{:.2f} s"),
        row("first step with trainer.devices=3", times["three"], "{:.2f} s"),
    ]


def sweep() -> Measured:
    """One sweep of short trainings, two in parallel."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        file = f"{folder}/${{hydra:job.num}}"
        clock = f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {file}}}"
        words = [
            "-m",
            f"hydra.sweep.dir={folder}/sweep",
            clock,
            "sweep.test=none",
            "strategy=cpu",
            "debug=fast",
        ]
        seeds = ",".join(map(str, range(NUM_TRIALS)))
        started = time.time()
        total_s = _seconds(
            *TRAIN, *words, "trainer.devices=1", f"seed={seeds}", f"launcher.parallel={NUM_AT_ONCE}"
        )
        steps = sorted(float((folder / str(number)).read_text()) for number in range(NUM_TRIALS))
        summaries = [
            folder / "sweep" / str(number) / "summary.json" for number in range(NUM_TRIALS)
        ]
        ends = sorted(path.stat().st_mtime for path in summaries)
    followed = zip(steps[NUM_AT_ONCE:], ends[:-NUM_AT_ONCE], strict=True)
    return Measured(total_s, steps[0] - started, [step - end for step, end in followed])


def sweeps(num_rounds: int = 7) -> list[Row]:
    """Four trials of a few steps, on two cores side by side."""
    measured = alternate(num_rounds, sweep=sweep)["sweep"]
    later_s = [statistics.median(each.later_steps_s) for each in measured]
    return [
        row(
            "from -m to the first step of the first trial",
            [each.first_step_s for each in measured],
            "{:.2f} s",
        ),
        row("from the end of a trial to the first step of the next", later_s, "{:.2f} s"),
        row(
            f"{NUM_TRIALS} short trials, two in parallel",
            [each.total_s for each in measured],
            "{:.2f} s",
        ),
    ]


if __name__ == "__main__":
    measure(commands=("start", commands), sweeps=("start", sweeps))
