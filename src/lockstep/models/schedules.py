"""Schedule the learning rate by optimizer steps.

After s = 0, 1, ... steps, a schedule multiplies the optimizer's learning rate by a factor. Let T be
total_steps, w = round(warmup_fraction * T), and i be initial_fraction or 0. For s < w, the factor
is i + (1 - i) (s + 1) / w. Then it is d(u) with u = (s - w) / (T - w). The factor is 1 at s = w - 1
and at s = w. None of the T steps has the rate 0, and a step after them would have d(1).
"""

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau
from typing_extensions import Doc

from lockstep.system.types import Fraction

# Schedules change these settings of an optimizer.
SCHEDULED = ("lr", "momentum", "betas", "weight_decay")


class Schedule(NamedTuple):
    """A schedule, and how often it is stepped.

    `monitor` is the metric that selects the best weights. A ReduceLROnPlateau is stepped after each
    validation, with the value of `monitor`. Any other schedule is stepped after each optimizer
    step, or after the last one of each epoch.
    """

    make: Callable[..., LRScheduler]
    interval: Literal["step", "epoch"] = "step"
    monitor: str = "val/accuracy"
    mode: Literal["min", "max"] = "max"

    def build(self, optimizer: Optimizer, total_steps: int) -> LRScheduler:
        """Make the schedule of an optimizer, with `total_steps` if it takes that parameter.

        Raises TypeError if it is not a schedule of torch, and ValueError for a ReduceLROnPlateau of
        the wrong mode.
        """
        parameters = inspect.signature(self.make).parameters
        takes_steps = "total_steps" in parameters or any(
            p.kind is p.VAR_KEYWORD for p in parameters.values()
        )
        supplied: dict[str, int | str] = {"total_steps": total_steps} if takes_steps else {}
        kind = getattr(self.make, "func", self.make)
        if inspect.isclass(kind) and issubclass(kind, ReduceLROnPlateau):
            supplied["mode"] = self.mode
        schedule = self.make(optimizer, **supplied)
        if not isinstance(schedule, LRScheduler):
            raise TypeError(
                f"returns a {type(schedule).__name__}, not a schedule of torch.optim.lr_scheduler"
            )
        if isinstance(schedule, ReduceLROnPlateau) and schedule.mode != self.mode:
            raise ValueError(f"has mode={schedule.mode}, but {self.monitor} needs mode={self.mode}")
        return schedule


def replay(checkpoint: dict[str, Any], optimizer: Optimizer, schedule: LRScheduler) -> None:
    """Step a new `schedule` and its `optimizer` to the step of a checkpoint, and save them there.

    They replace the saved state, which contains the old length. Many schedules compute a rate from
    the previous one, which may be 0 at the end of the old length. A ReduceLROnPlateau has no length
    and stays as it is.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        return
    state = checkpoint["lr_schedulers"][0]
    while "last_epoch" not in state:  # In a ChainedScheduler, each part has its own.
        state = state["_schedulers"][0]
    with warnings.catch_warnings():
        # There is no optimizer step here.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        for _ in range(state["last_epoch"]):
            schedule.step()
    checkpoint["lr_schedulers"] = [schedule.state_dict()]
    saved_groups = checkpoint["optimizer_states"][0]["param_groups"]
    for saved_group, group in zip(saved_groups, optimizer.param_groups, strict=True):
        saved_group.update({name: group[name] for name in SCHEDULED if name in group})


def constant(optimizer: Optimizer, total_steps: int) -> LambdaLR:
    """Keep the learning rate of the optimizer."""
    return _warmup_schedule(optimizer, total_steps, 0.0, lambda u: 1.0)


def one_cycle_linear(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_fraction: Annotated[Fraction, Doc("fraction of the steps with a rising learning rate")],
    initial_fraction: Annotated[
        Fraction, Doc("learning rate before the first step, as a fraction of the peak")
    ] = 0.0,
) -> LambdaLR:
    """Warm up linearly to the optimizer's learning rate, then decay linearly to 0.

    After s = 0, 1, ... optimizer steps, the rate is multiplied by a factor. Let T = `total_steps`,
    w = round(`warmup_fraction` * T) and i = `initial_fraction`. For s < w, the factor is
    i + (1 - i) (s + 1) / w. Then it is 1 - u with u = (s - w) / (T - w). At the last
    step, it is 1 / (T - w).
    """
    return _warmup_schedule(
        optimizer, total_steps, warmup_fraction, lambda u: 1 - u, initial_fraction
    )


def cosine(
    optimizer: Optimizer,
    total_steps: int,
    *,
    warmup_fraction: Annotated[Fraction, Doc("fraction of the steps with a rising learning rate")],
    final_fraction: Annotated[Fraction, Doc("final learning rate, as a fraction of the peak")],
) -> LambdaLR:
    """Warm up linearly to the optimizer's learning rate, then decay by half a cosine.

    The warm-up, from 0, and u are those of `one_cycle_linear`. After it, the rate is multiplied by
    f + (1 - f) (1 + cos(pi u)) / 2 with f = `final_fraction`.
    """
    return _warmup_schedule(
        optimizer,
        total_steps,
        warmup_fraction,
        lambda u: final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * u)) / 2,
    )


def _warmup_schedule(
    optimizer: Optimizer,
    total_steps: int,
    warmup_fraction: float,
    decay: Callable[[float], float],
    initial: float = 0.0,
) -> LambdaLR:
    warmup_steps = round(warmup_fraction * total_steps)

    # This is a function, because LambdaLR would save the attributes of a callable object.
    def factor(step: int) -> float:
        if step < warmup_steps:
            return initial + (1 - initial) * (step + 1) / warmup_steps
        if step >= total_steps:
            return decay(1.0)
        return decay((step - warmup_steps) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)
