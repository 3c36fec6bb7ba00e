"""Loads from measured speeds: the split with which the last worker finishes soonest."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.training.measured_loads import EQUAL, proportional


@pytest.mark.parametrize(
    ("size", "speeds", "loads"),
    [
        (64, [300, 100], [3, 1]),
        (64, [1000, 990, 970], [1, 1, 1]),  # as two measurements of one machine
        (64, [3000, 3000, 1000, 1000], [3, 3, 1, 1]),
        (16, [100, 90], [1, 1]),  # [8, 8] takes 0.089 s, [9, 7] 0.09 s
        (64, [1000, 20], [63, 1]),  # one image costs the slow worker less time than the fast one needs
        (64, [1000, 10], [1, 0]),  # it does not
        (2, [5, 3, 2], [1, 1, 0]),
    ],
)
def test_a_split_that_is_worked_out_by_hand(size: int, speeds: list[float], loads: list[int]) -> None:
    assert proportional(size, speeds) == loads


@given(size=st.integers(1, 12), speeds=st.lists(st.integers(1, 50).map(float), min_size=2, max_size=3))
def test_no_other_split_finishes_sooner(size: int, speeds: list[float]) -> None:
    loads = proportional(size, speeds)
    if min(speeds) >= EQUAL * max(speeds):
        assert set(loads) == {1}
        return
    scale, rest = divmod(size, sum(loads))
    assert rest == 0

    def seconds(split: tuple[int, ...]) -> float:
        return max(count / speed for count, speed in zip(split, speeds, strict=True))

    splits = (split for split in product(range(size + 1), repeat=len(speeds)) if sum(split) == size)
    assert seconds(tuple(scale * load for load in loads)) == pytest.approx(min(map(seconds, splits)))
