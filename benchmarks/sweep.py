"""Sweeps: how soon each trial makes its first step, and what several at once are worth: python -m benchmarks.sweep."""

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.processes import ROOT, TRAIN
from benchmarks.table import Row, alternate, conditions, markdown, ratios, row

NUM_TRIALS = 4


class Measured:
    """One sweep of short trainings, two side by side or one after the other in one process."""

    def __init__(self, launcher: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            callback = (
                f"+callbacks.clock={{_target_: benchmarks.first_step.FirstStep, path: {folder}/${{hydra:job.num}}}}"
            )
            started = time.time()
            done = subprocess.run(
                [
                    *TRAIN,
                    "-m",
                    f"hydra/launcher={launcher}",
                    f"hydra.sweep.dir={folder}/sweep",
                    callback,
                    "strategy=cpu",
                ]
                + ["debug=fast", "trainer.devices=1", f"seed={','.join(map(str, range(NUM_TRIALS)))}"]
                + (["launcher.parallel=2"] if launcher == "workstation" else []),
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            self.total_s = time.time() - started
            steps = [float((Path(folder) / str(number)).read_text()) for number in range(NUM_TRIALS)]
            self.first_step_s = min(steps) - started
            ends = [
                (Path(folder) / "sweep" / str(number) / "summary.json").stat().st_mtime for number in range(NUM_TRIALS)
            ]
            pairs = zip(sorted(steps)[2:], sorted(ends)[: NUM_TRIALS - 2], strict=True)
            self.later_steps_s = [step - end for step, end in pairs]


def sweeps(num_rounds: int = 3) -> list[Row]:
    """Four trials of a few steps: on two cores side by side, against Hydra's own launcher in one process."""
    kept: dict[str, list[Measured]] = {"workstation": [], "basic": []}

    def measured(launcher: str) -> float:
        kept[launcher].append(Measured(launcher))
        return kept[launcher][-1].total_s

    found = alternate(num_rounds, side=lambda: measured("workstation"), one=lambda: measured("basic"))
    side = kept["workstation"]
    return [
        row("from -m to the first step of the first trial", [each.first_step_s for each in side], "{:.1f} s"),
        row(
            "from the end of a trial to the first step of the next",
            [s for each in side for s in each.later_steps_s],
            "{:.1f} s",
        ),
        row(f"{NUM_TRIALS} short trials, two at once", found["side"], "{:.1f} s"),
        row(f"{NUM_TRIALS} short trials in one process", found["one"], "{:.1f} s"),
        row("two at once : one process", ratios(found["side"], found["one"]), "{:.2f}"),
    ]


if __name__ == "__main__":
    print(conditions(), markdown("Sweeps", sweeps()), sep="\n\n")
