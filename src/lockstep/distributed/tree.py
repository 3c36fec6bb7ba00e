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


def largest_subtrees(span: Span, rank_range: range) -> list[Span]:
    """Return the largest subtrees of `span` all of whose parts are in `rank_range`.

    There are at most 2 log2 n of them, for n parts.
    """
    lo, hi = span
    if lo >= rank_range.stop or hi <= rank_range.start:
        return []
    if rank_range.start <= lo and hi <= rank_range.stop:
        return [span]
    return [subtree for half in halves(span) for subtree in largest_subtrees(half, rank_range)]


def add_tree(span: Span, sums: Mapping[Span, Tensor]) -> Tensor:
    """Add up a subtree from the `sums` of smaller ones, in place."""
    if span in sums:
        return sums[span]
    left, right = halves(span)
    total = add_tree(left, sums)
    total += add_tree(right, sums)
    return total


def add_over_ranks(subtrees: Sequence[Sequence[Span]], rank_sums: Tensor) -> Tensor:
    """Return the sum (n,) over all parts, from `rank_sums` (k, n) of this rank.

    `subtrees` has the subtrees of every rank, of which this rank has k. Every rank adds up the sums
    of all ranks, and every rank must call it.
    """
    max_subtrees = max(len(spans) for spans in subtrees)
    full_span = (0, max(hi for spans in subtrees for _, hi in spans))
    total = rank_sums.new_empty(rank_sums.shape[1])
    width = max(1, longest_row(rank_sums) // max_subtrees)
    for chunk, sums in zip(total.split(width), rank_sums.split(width, dim=1), strict=True):
        rows = rank_sums.new_zeros(max_subtrees, len(chunk))
        rows[: len(rank_sums)] = sums
        all_rows = all_gather(rows.view(-1)).view(len(subtrees), max_subtrees, -1).clone()
        sums_by_span = {
            span: row
            for spans, of_rank in zip(subtrees, all_rows, strict=True)
            # Some ranks have fewer subtrees than rows.
            for span, row in zip(spans, of_rank, strict=False)
        }
        chunk.copy_(add_tree(full_span, sums_by_span))
    return total
