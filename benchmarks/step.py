"""Steps: the overhead of Lockstep over a raw loop, and its speed compared with common loops.

`python -m benchmarks.step`, or one of `resnet18`, `compiled` and `overhead`. A round takes at most
three minutes on two cores.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.loops import Task, bare, lockstep, raw, template
from benchmarks.table import Row, alternate, measure, progress, ratio_row, row
from lockstep.assembly.precision import bfloat16_unit

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
FULL = Task(RESNET18, 28, 64, 10, 3, "float32", log_every_n_steps=50)
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


def overhead(num_rounds: int = 7) -> list[Row]:
    """Milliseconds a step that Lockstep adds on one thread, logging every 50 steps."""
    torch.set_num_threads(1)
    ways = {"raw loop": raw, "bare Trainer": bare, "Lockstep": lockstep}
    times = alternate(
        num_rounds, **{name: lambda loop=loop: 1e3 * loop(TINY) for name, loop in ways.items()}
    )
    by_trainer, added = (
        [above - below for above, below in zip(times[name], times["raw loop"], strict=True)]
        for name in ("bare Trainer", "Lockstep")
    )
    form = "{:.3f} ms a step"
    return [
        *(row(f"tiny network, {name}", values, form) for name, values in times.items()),
        row("added by Lightning's Trainer alone", by_trainer, form),
        row("added by Lockstep, with the Trainer", added, form, aim="<= 0.3 ms"),
    ]


def resnet18(num_rounds: int = 5) -> list[Row]:
    """Time the full ResNet-18 on 28x28 grayscale images, batch 64, on all cores.

    It is also timed in bfloat16 where the CPU has it.
    """
    rows = _beside("float32", FULL, {"raw loop": raw, "template": template}, num_rounds)
    if bfloat16_unit(torch.device("cpu")):
        rows += _beside(
            "bfloat16", FULL._replace(precision="bfloat16"), {"raw loop": raw}, num_rounds
        )
    return rows


def compiled(num_rounds: int = 5) -> list[Row]:
    """Time the same with `compile=true`, in float32."""
    task = FULL._replace(is_compiled=True)
    return _beside("float32, compiled", task, {"raw loop": raw}, num_rounds)


def _beside(
    kind: str, task: Task, others: dict[str, Callable[[Task], float]], num_rounds: int
) -> list[Row]:
    """Compare images/s of Lockstep with those of other loops."""
    progress(f"ResNet-18, {kind}")
    times = alternate(
        num_rounds,
        **{
            name: lambda loop=loop: loop(task)
            for name, loop in {"Lockstep": lockstep, **others}.items()
        },
    )
    speed = {name: [task.batch_size / value for value in values] for name, values in times.items()}
    form = "{:,.0f} images/s"
    return [
        ratio_row(
            f"Lockstep : {name}, {kind}", speed["Lockstep"], speed[name], form, aim=AIMS[name]
        )
        for name in others
    ]


if __name__ == "__main__":
    measure(resnet18=("step", resnet18), compiled=("step", compiled), overhead=("step", overhead))
