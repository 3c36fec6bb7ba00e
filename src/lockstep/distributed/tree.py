"""Sums over the parts of a batch in one binary tree, whose bits do not depend on which rank has a part."""

from collections.abc import Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor
from torch import distributed as dist

from lockstep.distributed.collectives import all_gather
from lockstep.distributed.partition import interval

Span = tuple[int, int]  # the subtree over the parts [lo, hi)


def halves(span: Span) -> tuple[Span, Span]:
    """Cut the subtree of several parts in two; the left one has a power of two."""
    lo, hi = span
    middle = lo + (1 << (hi - lo - 1).bit_length() - 1)
    return (lo, middle), (middle, hi)


def largest_subtrees(span: Span, own: range) -> list[Span]:
    """Return the largest subtrees of `span` all of whose parts are in `own`: at most 2 log2 of its parts."""
    lo, hi = span
    if lo >= own.stop or hi <= own.start:
        return []
    if own.start <= lo and hi <= own.stop:
        return [span]
    return [found for half in halves(span) for found in largest_subtrees(half, own)]


def add_tree(span: Span, sums: Mapping[Span, Tensor]) -> Tensor:
    """Add up a subtree from the `sums` of smaller ones."""
    if span in sums:
        return sums[span]
    left, right = halves(span)
    return add_tree(left, sums) + add_tree(right, sums)


def add_over_ranks(subtrees: Sequence[Sequence[Span]], own: Tensor) -> Tensor:
    """Return the sum (n,) over all parts, from the sums `own` (k, n) of this rank's k subtrees.

    `subtrees` are those of every rank. A rank adds up a slice of the n numbers, and sends it to the others. Every rank
    must call it.
    """
    slices = [interval(own.shape[1], [1] * len(subtrees), rank) for rank in range(len(subtrees))]
    sizes, counts = [hi - lo for lo, hi in slices], [len(spans) for spans in subtrees]
    size = sizes[dist.get_rank()]
    sent = torch.cat([own[:, lo:hi].reshape(-1) for lo, hi in slices])
    received = own.new_empty(sum(counts) * size)
    dist.all_to_all_single(received, sent, [count * size for count in counts], [len(own) * each for each in sizes])
    spans = list(chain(*subtrees))
    total = own.new_zeros(max(sizes))
    whole = (0, max(hi for _, hi in spans))
    total[:size] = add_tree(whole, dict(zip(spans, received.view(len(spans), size), strict=True)))
    return torch.cat([row[:each] for row, each in zip(all_gather(total), sizes, strict=True)])
