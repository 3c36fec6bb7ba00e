"""How long `python train.py cluster=slurm` takes until the shell is free again: `python -m benchmarks.submit [--n 10]`.

Needs SLURM; its jobs are cancelled immediately.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.processes import TRAIN
from benchmarks.table import Row, alternate, conditions, markdown, row

TINY = ("data=synthetic", "model.width=2", "strategy=cpu", "trainer.devices=1", "trainer.max_epochs=1")
JOB = ("cluster=slurm", "cluster.time_min=5", "silent=false")


def latency(num_rounds: int, overrides: Sequence[str] = ()) -> list[Row]:
    """Seconds of a submission from the command to the prompt, of sbatch alone, and of the checks without a job."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".submit-") as folder:
        times = alternate(
            num_rounds,
            job=lambda: _submission([*TRAIN, *TINY, *JOB, *overrides], folder, r"lockstep jobs cancel (\d+)"),
            sbatch=lambda: _submission(["sbatch", "--time=5", "--wrap", "sleep 60"], folder, r"job (\d+)"),
            dry=lambda: _seconds([*TRAIN, *TINY, *JOB, *overrides, "dry_run=true"], folder)[0],
        )
    return [
        row("train.py cluster=slurm", times["job"], "{:.2f} s", aim="<= 2 s"),
        row("sbatch alone", times["sbatch"], "{:.3f} s"),
        row("train.py cluster=slurm dry_run=true", times["dry"], "{:.2f} s"),
    ]


def _submission(command: Sequence[str], folder: str, pattern: str) -> float:
    used, text = _seconds(command, folder)
    match = re.search(pattern, text)
    assert match is not None, text
    subprocess.run(["scancel", match[1]], check=True)
    return used


def _seconds(command: Sequence[str], folder: str) -> tuple[float, str]:
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    used = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    return used, done.stdout


def main() -> int:
    """Measure and print. Overrides such as cluster.partition=debug go to the submissions."""
    parser = argparse.ArgumentParser(description="How long a submission to SLURM takes.")
    parser.add_argument("--n", type=int, default=10, help="submissions; default: 10")
    parser.add_argument("overrides", nargs="*", help="e.g. cluster.partition=debug")
    arguments = parser.parse_args()
    if shutil.which("sbatch") is None:
        print("no SLURM here: nothing to measure", file=sys.stderr)
        return 2
    print(f"{conditions()}\n\n{markdown('Submission', latency(arguments.n, arguments.overrides))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
