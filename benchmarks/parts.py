"""The parts of a start, in seconds of processor time, which is meaningful on a busy machine, too.

`python -m benchmarks.parts` measures one start of one worker, and prints it as JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import ROOT

if TYPE_CHECKING:
    from benchmarks.table import Row

# of a command that is measured: Python keeps its compiled files, even if this process disabled that
ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
# what a training no longer imports; each in a process that has imported torch and numpy
WAITING = ("scipy.signal", "matplotlib.pyplot", "torch._dynamo", "torchvision", "torchmetrics", "lightning")


def parts(num_rounds: int = 5) -> "list[Row]":
    """Return the parts of a start to the first step, then what would be imported if nothing waited."""
    from benchmarks.table import row  # it imports torch, which is one of the parts

    _last_line("-m", __name__)  # compiles the imported modules, if they are not yet compiled
    rounds = [json.loads(_last_line("-m", __name__)) for _ in range(num_rounds)]
    rows = [row(name, [one[name] for one in rounds], "{:.2f} s") for name in rounds[0]]
    for name in WAITING:
        code = f"import torch, time; a = time.process_time(); import {name}; print(time.process_time() - a)"
        rows.append(row(f"plain import {name}", [float(_last_line("-c", code)) for _ in range(num_rounds)], "{:.2f} s"))
    return rows


def _last_line(*words: str) -> str:
    line = [sys.executable, *words]
    done = subprocess.run(line, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def _measured(folder: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}

    @contextmanager
    def part(name: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        seconds[name] = time.process_time() - begin

    with part("import Hydra, pydantic"):
        from lockstep.config.checks import validation
        from lockstep.config.composing import compose
        from lockstep.config.saved import config_file
        from lockstep.launch import worker
        from lockstep.runs.folder import RunFolder
        from lockstep.system.libraries import lazy
    with part("composition and check of the configuration"):
        step = folder / "first step"
        clock = f"+callbacks.clock={{_target_:benchmarks.first_step.FirstStep,path:'{step}',clock:process_time}}"
        composed = compose.compose_config(["debug=fast", "strategy=cpu", "trainer.devices=1", "silent=true", clock])
        config_file.save(validation.check_config(composed), RunFolder(folder).config)
    with lazy():
        with part("import torch"):
            import torch
        with part("import lightning"):
            import lightning  # noqa: F401
        with part("import lockstep.training.train"):
            worker.task_function(worker.TRAIN)
        with part("import TensorBoard"):
            import torch.utils.tensorboard.summary  # noqa: F401
    begin = time.process_time()
    code = worker.run_here(worker.Job(worker.TRAIN, str(folder), {"command": "", "has_test": False}), None)
    assert code == 0, RunFolder(folder).failure.read_text()
    seconds["data, network of 11 million parameters, first step"] = float(step.read_text()) - begin
    with part("import torchvision by a module of the user's own"):
        import torchvision  # noqa: F401
    return seconds


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        print(json.dumps(_measured(Path(path))), flush=True)
    os._exit(0)
