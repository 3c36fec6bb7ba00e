from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.distributed.partition import Shard, interval

LOADS = st.lists(st.integers(0, 50), min_size=1, max_size=9).filter(any)
repeatable = settings(max_examples=40, deadline=None, derandomize=True)
ANY_SIZE = st.integers(0, 10**18)  # beyond what a float counts exactly


def intervals(size: int, worker_weights: list[int]) -> list[tuple[int, int]]:
    return [interval(size, worker_weights, rank) for rank in range(len(worker_weights))]


@repeatable
@given(ANY_SIZE, LOADS)
def test_bounds_meet(size: int, worker_weights: list[int]) -> None:
    bounds = intervals(size, worker_weights)
    assert (bounds[0][0], bounds[-1][1]) == (0, size)
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


@repeatable
@given(ANY_SIZE, LOADS)
def test_sizes_rounded(size: int, worker_weights: list[int]) -> None:
    for (lo, hi), load in zip(intervals(size, worker_weights), worker_weights, strict=True):
        exact = Fraction(size * load, sum(worker_weights))
        assert floor(exact) <= hi - lo <= ceil(exact)


@repeatable
@given(ANY_SIZE, LOADS, st.integers(2, 1000))
def test_bounds_scaled_weights(size: int, worker_weights: list[int], factor: int) -> None:
    assert intervals(size, worker_weights) == intervals(
        size, [factor * load for load in worker_weights]
    )


@repeatable
@given(st.integers(0, 300), LOADS)
def test_empty_shard(size: int, worker_weights: list[int]) -> None:
    for lo, hi in intervals(size, worker_weights):
        assert Shard(0, 0, 0, size, lo, hi, size).is_empty == (len(range(lo, hi)) == 0)
