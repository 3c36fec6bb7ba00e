import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from lockstep.models.schedules import constant, cosine, one_cycle_linear

PEAK = 0.4


def rates(schedule: Callable[[SGD, int], LambdaLR], total_steps: int, steps: int) -> list[float]:
    """List the learning rates that `steps` optimizer steps see."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler = schedule(optimizer, total_steps)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize("initial", [0.0, 0.2])
@pytest.mark.parametrize(
    ("total", "fraction"), [(100, 0.23), (1, 0.0), (1, 1.0), (10, 1.0), (10, 0.0), (7, 0.5)]
)
def test_one_cycle_linear(total: int, fraction: float, initial: float) -> None:
    warmup = round(fraction * total)
    expected = [PEAK * (initial + (1 - initial) * (s + 1) / warmup) for s in range(warmup)]
    expected += [PEAK * (total - s) / (total - warmup) for s in range(warmup, total)]
    schedule = partial(one_cycle_linear, warmup_fraction=fraction, initial_fraction=initial)
    assert rates(schedule, total, total) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("total", "fraction", "final"), [(100, 0.1, 0.0), (50, 0.0, 0.2), (1, 0.0, 0.0), (9, 1.0, 0.5)]
)
def test_cosine(total: int, fraction: float, final: float) -> None:
    warmup = round(fraction * total)
    expected = [PEAK * (s + 1) / warmup for s in range(warmup)]
    for s in range(warmup, total):
        half_wave = (1 + math.cos(math.pi * (s - warmup) / (total - warmup))) / 2
        expected.append(PEAK * (final + (1 - final) * half_wave))
    schedule = partial(cosine, warmup_fraction=fraction, final_fraction=final)
    assert rates(schedule, total, total) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        (constant, PEAK),
        (partial(one_cycle_linear, warmup_fraction=0.23), 0.0),
        (partial(cosine, warmup_fraction=0.1, final_fraction=0.05), 0.05 * PEAK),
    ],
)
def test_steps_after_last(schedule: Callable[[SGD, int], LambdaLR], after: float) -> None:
    assert rates(schedule, 20, 30)[20:] == pytest.approx([after] * 10)
