"""The tree of sums is the same expression for any number of parts, wherever they are cut."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.distributed.partition import interval
from lockstep.distributed.tree import add_tree, halves, largest_subtrees

repeatable = settings(max_examples=40, deadline=None, derandomize=True)


class Term(str):
    """Adds up to the text of the expression."""

    def __add__(self, other: str) -> "Term":
        return Term(f"({self}+{other})")


def expression(lo: int, hi: int) -> Term:
    terms = {(number, number + 1): Term(number) for number in range(lo, hi)}
    return add_tree((lo, hi), terms)  # pyright: ignore


@repeatable
@given(st.integers(1, 40), st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any))
def test_any_shards(num_parts: int, worker_weights: list[int]) -> None:
    ranges = [
        range(*interval(num_parts, worker_weights, rank)) for rank in range(len(worker_weights))
    ]
    spans = [span for own in ranges for span in largest_subtrees((0, num_parts), own)]
    terms: Any = {span: expression(*span) for span in spans}
    assert add_tree((0, num_parts), terms) == expression(0, num_parts)


@repeatable
@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500))
def test_few_subtrees(num_parts: int, one: int, other: int) -> None:
    own = range(min(one, other) % (num_parts + 1), max(one, other) % (num_parts + 1))
    spans = largest_subtrees((0, num_parts), own)
    assert [part for span in spans for part in range(*span)] == list(own)
    assert len(spans) <= max(1, 2 * (num_parts - 1).bit_length())


def test_left_half() -> None:
    assert [halves((3, 3 + size)) for size in (2, 3, 5, 8)] == [
        ((3, 4), (4, 5)),
        ((3, 5), (5, 6)),
        ((3, 7), (7, 8)),
        ((3, 7), (7, 11)),
    ]
