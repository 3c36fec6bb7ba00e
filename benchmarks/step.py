"""Steps: the overhead of Lockstep over a raw loop, and its speed compared with common loops."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from benchmarks.loops import Task, lockstep, lockstep_tree, raw, template
from benchmarks.table import Row, alternate, ratios, row
from lockstep.assembly.precision import bfloat16_unit
from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.saved import config_file

RESNET18 = {
    "_target_": "lockstep.models.ResNet18",
    "width": 64,
    "stem": "small",
    "shortcut_norm": True,
    "bias": False,
    "dropout": 0.0,
    "init": "kaiming",
}
TINY = Task({"_target_": "benchmarks.step.Tiny"}, 8, 16, 1500, 2, "float32", log_every_n_steps=50)
FULL = Task(RESNET18, 28, 64, 16, 4, "float32", log_every_n_steps=50)
AIMS = {"raw loop": ">= 0.95", "template": ">= 2"}


class Tiny(nn.Module):
    """A network that costs next to nothing, so that the rest shows."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in_channels, H, W) -> (B, num_classes)."""
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def overhead(num_rounds: int = 7) -> list[Row]:
    """Milliseconds a step that Lockstep adds on one thread, logging every 50 steps."""
    with threads(1):
        times = alternate(num_rounds, raw=lambda: raw(TINY), lockstep=lambda: lockstep(TINY))
    added = [1e3 * (a - b) for a, b in zip(times["lockstep"], times["raw"], strict=True)]
    return [
        row("tiny network, raw loop", [1e3 * value for value in times["raw"]], "{:.3f} ms a step"),
        row("tiny network, Lockstep", [1e3 * value for value in times["lockstep"]], "{:.3f} ms a step"),
        row("added by Lockstep", added, "{:.3f} ms a step", aim="<= 0.3 ms"),
    ]


def resnet18(num_rounds: int = 5) -> list[Row]:
    """Time the full ResNet-18 on 28x28 grey images, batch 64, on all cores; in bfloat16 where the CPU has it."""
    rows = _beside("float32", FULL, {"raw loop": raw, "template": template}, num_rounds)
    if bfloat16_unit(torch.device("cpu")):
        rows += _beside("bfloat16", FULL._replace(precision="bfloat16"), {"raw loop": raw}, num_rounds)
    return rows + _beside("float32, compiled", FULL._replace(is_compiled=True), {"raw loop": raw}, num_rounds)


def _beside(kind: str, task: Task, others: dict[str, Callable[[Task], float]], num_rounds: int) -> list[Row]:
    """Images/s of Lockstep and of other loops, and their quotients."""
    times = alternate(
        num_rounds, **{name: lambda loop=loop: loop(task) for name, loop in {"Lockstep": lockstep, **others}.items()}
    )
    speed = {name: [task.batch_size / value for value in values] for name, values in times.items()}
    return [
        *(row(f"{name}, {kind}", values, "{:.0f} images/s") for name, values in speed.items()),
        *(
            row(f"Lockstep : {name}, {kind}", ratios(speed["Lockstep"], speed[name]), "{:.3f}", aim=AIMS[name])
            for name in others
        ),
    ]


def watching(num_rounds: int = 31) -> list[Row]:
    """Time curves, pictures, live status and terminal, compared with a silent run."""
    task = TINY._replace(num_steps=1000, log_every_n_steps=20)  # many short rounds: what is looked for is small
    callbacks = lockstep_tree(task)["callbacks"]
    off = {"logger": {}, "silent": True, "callbacks": {**callbacks, "curves": None, "pictures": None}}
    with threads(1):
        times = alternate(num_rounds, on=lambda: lockstep(task), off=lambda: lockstep(task, **off))
    return [
        row("tiny network, logged every 20 steps, watched", [1e3 * value for value in times["on"]], "{:.3f} ms a step"),
        row("the same, nothing watched", [1e3 * value for value in times["off"]], "{:.3f} ms a step"),
        row("watched : not watched", ratios(times["on"], times["off"]), "{:.3f}", aim="<= 1.03"),
    ]


def averaging(num_rounds: int = 5) -> list[Row]:
    """Time an exponential moving average of the weights in a step of the full ResNet-18."""
    net: Any = build.build(
        validation.check_tree(
            config_file.to_tree(validation.check_config(compose.compose_config(["model=resnet18"])))
        ).model,
        in_channels=1,
        num_classes=10,
    )
    kinds = {
        "by parameter": AveragedModel(net, avg_fn=get_ema_avg_fn(0.99), use_buffers=True),
        "in one call": AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True),
    }

    def seconds(kind: AveragedModel) -> float:
        import time

        kind.update_parameters(net)
        started = time.perf_counter()
        for _ in range(5):
            kind.update_parameters(net)
        return (time.perf_counter() - started) / 5

    times = alternate(num_rounds, **{name: lambda kind=kind: seconds(kind) for name, kind in kinds.items()})
    return [
        row(f"moving average of ResNet-18, {name}", [1e3 * value for value in values], "{:.1f} ms a step")
        for name, values in times.items()
    ]
