"""What a stage is written with: rows of results, commands whose output goes to the log, and parts that may fail."""

import importlib
import json
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.runner import EXIT_UNUSABLE, REHEARSAL, ROOT
from lockstep.runs.folder import RunFolder

# how an exception or a refusal begins, also behind the rank that torchrun puts in front
ERROR = re.compile(r"(\[rank\d+\]: )?[\w. ]*([Ee]rror|Exception|NonFinite\w+): .*")
Part = Callable[["Bench"], None]


class Aim(NamedTuple):
    """What a figure is to be: "<=" or ">=" a bound."""

    sign: str
    bound: float


class Bench(NamedTuple):
    """What a stage works with: the file of its rows, a folder that is removed after it, and the folder of data sets."""

    rows: Path
    scratch: Path
    data: Path
    is_rehearsal: bool

    @property
    def size(self) -> tuple[str, ...]:
        """Overrides of the large trainings: none, or in a rehearsal those that make them small."""
        limits = ("trainer.limit_train_batches=3", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1")
        small = (f"model.width={self.width}", "global_batch_size=16", "eval_batch_size=50", "trainer.max_epochs=2")
        return (*small, *limits) if self.is_rehearsal else ()

    @property
    def width(self) -> int:
        """Width of the networks of these trainings."""
        return 4 if self.is_rehearsal else 64

    def tell(
        self, what: str, result: str, *, predicted: str = "", aim: str = "", is_met: bool | None = None, **values: Any
    ) -> None:
        """Write a row immediately: it survives if the stage is killed later."""
        row = {"what": what, "result": result, "predicted": predicted, "aim": aim, "is_met": is_met, **values}
        with open(self.rows, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"row: {what}: {result}", flush=True)

    def check(self, what: str, is_met: bool, result: str = "") -> None:
        """Add a row of something that must be so."""
        self.tell(what, result or ("so it is" if is_met else "not so"), aim="must be", is_met=is_met)

    def figure(
        self, what: str, values: Sequence[float], form: str, aim: Aim | None = None, *, predicted: str = ""
    ) -> None:
        """Add a row of the median of `values`, with their spread, next to a prediction and an aim if it has them."""
        median = statistics.median(values)
        result = form.format(median)
        if len(values) > 1:
            result += f" ({form.format(min(values))} to {form.format(max(values))}, n={len(values)})"
        is_met, text = None, ""
        if aim is not None:
            is_met = median <= aim.bound if aim.sign == "<=" else median >= aim.bound
            text = f"{aim.sign} {form.format(aim.bound)}"
        self.tell(what, result, predicted=predicted, aim=text, is_met=is_met, values=list(values))

    def attempt(self, what: str, part: Part) -> None:
        """Do a part of the stage; a failure is a row, and the other parts follow."""
        try:
            part(self)
        except Exception as error:  # as at a process border: the other parts follow after any error
            traceback.print_exc()
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.check(what, False, f"failed: {text[:200]}")

    def together(self, *parts: tuple[str, Part], at_once: int | None = None) -> None:
        """Attempt independent parts side by side: most of a short training is its start, on one core."""
        with ThreadPoolExecutor(at_once or len(parts)) as pool:
            list(pool.map(lambda part: self.attempt(*part), parts))

    def train(self, name: str, *overrides: str, code: int = 0) -> tuple[RunFolder, "Done"]:
        """Train in a process of its own, in the folder `name`. Raises RuntimeError where it ends otherwise."""
        folder = RunFolder(self.scratch / re.sub(r"[^\w-]", "-", name))  # Hydra reads =, [ and , in its own way
        done = command(name, "train.py", *overrides, f"hydra.run.dir={folder.path}")
        done.expect(code)
        return folder, done


class Done(NamedTuple):
    """A command that has ended."""

    name: str
    code: int
    output: str
    seconds: float

    def expect(self, code: int) -> None:
        """Raise RuntimeError when it ended with another code."""
        if self.code != code:
            lines = [line for line in self.output.splitlines() if line.strip()]
            why = next(filter(ERROR.match, lines), lines[-1] if lines else "without a word")
            raise RuntimeError(f"{self.name} ended with code {self.code}, not {code}: {why.strip()}")


def command(name: str, *words: str, meanwhile: Callable[[subprocess.Popen[str]], None] | None = None) -> Done:
    """Run this Python with `words` to its end; its output goes line by line to the log.

    `meanwhile` is called with the process while it runs.
    """
    started, lines = time.monotonic(), []
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, **pipe) as process, ThreadPoolExecutor(1) as pool:
        side = pool.submit(meanwhile, process) if meanwhile is not None else None
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            print(f"{name} | {line}", end="", flush=True)
    if side is not None:
        side.result()
    return Done(name, process.returncode, "".join(lines), time.monotonic() - started)


def leave_without_gpu() -> None:
    """End this stage, and with it the command, where torch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: nothing to measure", flush=True)
        sys.exit(EXIT_UNUSABLE)


def main() -> None:
    """Run the stage that is named by the first word: a function of one of the modules here."""
    module, _, function = sys.argv[1].partition(".")
    rows, scratch, data = map(Path, sys.argv[-3:])
    if function != "facts":  # which has something to tell without a GPU
        leave_without_gpu()
    stage = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    stage(Bench(rows, scratch, data, is_rehearsal=REHEARSAL in sys.argv))


if __name__ == "__main__":
    main()
