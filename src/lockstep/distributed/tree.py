"""Sums over the parts of a batch in one binary tree.

The bits of a sum do not depend on which rank has a part.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from lockstep.distributed.collectives import all_gather, longest_row

Span = tuple[int, int]  # the subtree over the parts [lo, hi)


def halves(span: Span) -> tuple[Span, Span]:
    """Split the subtree of several parts in two. The size of the left one is a power of two."""
    lo, hi = span
    middle = lo + (1 << (hi - lo - 1).bit_length() - 1)
    return (lo, middle), (middle, hi)


def largest_subtrees(span: Span, own: range) -> list[Span]:
    """Return the largest subtrees of `span` all of whose parts are in `own`.

    There are at most 2 log2 n of them, for n parts.
    """
    lo, hi = span
    if lo >= own.stop or hi <= own.start:
        return []
    if own.start <= lo and hi <= own.stop:
        return [span]
    return [subtree for half in halves(span) for subtree in largest_subtrees(half, own)]


def add_tree(span: Span, sums: Mapping[Span, Tensor]) -> Tensor:
    """Add up a subtree from the `sums` of smaller ones, in place."""
    if span in sums:
        return sums[span]
    left, right = halves(span)
    total = add_tree(left, sums)
    total += add_tree(right, sums)
    return total


def add_over_ranks(subtrees: Sequence[Sequence[Span]], own: Tensor) -> Tensor:
    """Return the sum (n,) over all parts, from the sums `own` (k, n) of this rank.

    `subtrees` has the subtrees of every rank, of which this rank has k. Every rank adds up the sums
    of all ranks, and every rank must call it.
    """
    most = max(len(spans) for spans in subtrees)
    whole = (0, max(hi for spans in subtrees for _, hi in spans))
    total = own.new_empty(own.shape[1])
    width = max(1, longest_row(own) // most)
    for part, sums in zip(total.split(width), own.split(width, dim=1), strict=True):
        rows = own.new_zeros(most, len(part))
        rows[: len(own)] = sums
        every = all_gather(rows.view(-1)).view(len(subtrees), most, -1).clone()
        sums_by_span = {
            span: row
            for spans, of_rank in zip(subtrees, every, strict=True)
            # Some ranks have fewer subtrees than rows.
            for span, row in zip(spans, of_rank, strict=False)
        }
        part.copy_(add_tree(whole, sums_by_span))
    return total
