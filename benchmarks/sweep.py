"""Sweeps: time to the first step of each trial, and the gain of parallel trials: python -m benchmarks.sweep."""

import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.parts import ENVIRON
from benchmarks.processes import TRAIN, import_torch
from benchmarks.table import Row, alternate, conditions, markdown, ratios, row

NUM_TRIALS = 4
NUM_AT_ONCE = 2
NUM_OF_TWO = 8  # trials of two workers, one after the other


@dataclass(frozen=True)
class Measured:
    """The seconds of one sweep: `later_steps_s` from the end of a trial to the first step of the one that follows."""

    total_s: float
    first_step_s: float
    later_steps_s: list[float]


def sweep(num_trials: int = NUM_TRIALS, at_once: int = NUM_AT_ONCE, num_workers: int = 1) -> Measured:
    """One sweep of short trainings, with this many in parallel."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        clock = f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {folder}/${{hydra:job.num}}}}"
        words = ["-m", f"hydra.sweep.dir={folder}/sweep", clock, "sweep.test=none"]
        words += [
            "strategy=cpu",
            "debug=fast",
            f"trainer.devices={num_workers}",
            f"seed={','.join(map(str, range(num_trials)))}",
            f"launcher.parallel={at_once}",
        ]
        started = time.time()
        done = subprocess.run([*TRAIN, *words], cwd=ROOT, env=ENVIRON, capture_output=True, text=True)
        total_s = time.time() - started
        assert done.returncode == 0, done.stderr
        steps = sorted(float((folder / str(number)).read_text()) for number in range(num_trials))
        summaries = [folder / "sweep" / str(number) / "summary.json" for number in range(num_trials)]
        ends = sorted(path.stat().st_mtime for path in summaries)
    followed = zip(steps[at_once:], ends[:-at_once], strict=True)
    return Measured(total_s, steps[0] - started, [step - end for step, end in followed])


def sweeps(num_rounds: int = 3) -> list[Row]:
    """Four trials of a few steps: on two cores side by side, against one at a time."""
    side: list[Measured] = []

    def side_by_side() -> float:
        side.append(sweep())
        return side[-1].total_s

    times = alternate(num_rounds, side=side_by_side, one=lambda: sweep(at_once=1).total_s)
    return [
        row(
            "from -m to the first step of the first trial",
            [measurement.first_step_s for measurement in side],
            "{:.1f} s",
        ),
        row(
            "from the end of a trial to the first step of the next",
            [s for measurement in side for s in measurement.later_steps_s],
            "{:.1f} s",
        ),
        row(f"{NUM_TRIALS} short trials, two in parallel", times["side"], "{:.1f} s"),
        row(f"{NUM_TRIALS} short trials, one at a time", times["one"], "{:.1f} s"),
        row("two in parallel : one at a time", ratios(times["side"], times["one"]), "{:.2f}"),
    ]


def of_two_workers(num_rounds: int = 7) -> list[Row]:
    """Short trials of two workers, one after the other, compared with importing only torch."""

    def median_s() -> float:
        return statistics.median(sweep(NUM_OF_TWO, 1, 2).later_steps_s)

    times = alternate(num_rounds, torch=import_torch, later=median_s)
    what = f"{NUM_OF_TWO} trials of 2 workers: from the end of one to the first step of the next"
    return [
        row(what, times["later"], "{:.2f} s"),
        row("that : import torch", ratios(times["later"], times["torch"]), "{:.2f}", aim="<= 0.3"),
    ]


if __name__ == "__main__":
    print(conditions(), markdown("Sweeps", sweeps()), sep="\n\n")
