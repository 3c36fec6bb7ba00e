"""Find duplicates and near-duplicates among the images of an inspection.

They can leak between splits or folds, or have contradictory classes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lockstep.data.inspection import Inspection, Seen
from lockstep.data.near_duplicates import Pair, near_pairs
from lockstep.data.splits import Splits, makes_targets

MAX_IMAGES_NAMED = 4  # images listed in one message
# This is the smallest rounded distance of near-duplicates, because 0 means equal pixels.
MIN_DISTANCE = 0.0001


class Duplicate(NamedTuple):
    """An image that has a duplicate or near-duplicate.

    `split` is the split it is in, which may be that of a fold. `place` is its split and position in
    the inspection, and `target` is its target as text. `burst` is the group, split and target of
    the image, or None without groups.
    """

    split: str
    name: str
    target: str
    place: tuple[str, int]
    seen: Seen
    burst: tuple[str, str, str] | None


class Duplicates(NamedTuple):
    """Images that are connected by pairs of duplicates.

    The first two images are the nearest pair, or the nearest pair that leaks if there is a leak.
    `distance` is the distance of this pair, 0 for equal pixels. `fold` names the fold whose splits
    are reported, as in "data.fold=1".
    """

    images: list[Duplicate]
    distance: float
    fold: str
    kinds: list[str]

    @property
    def kind(self) -> str:
        return " and ".join(self.kinds) or ("near-duplicate" if self.distance else "duplicate")

    @property
    def is_equal(self) -> bool:
        return len({image.seen.digest for image in self.images}) == 1

    @property
    def has_targets(self) -> bool:
        """Return whether the targets of the images differ."""
        return len({image.target for image in self.images}) > 1

    @property
    def text(self) -> str:
        """Return the first images with their splits, and with their targets if these differ."""
        shown = self.images[:MAX_IMAGES_NAMED]
        texts = [
            f"{each.split}: {each.name}{f' ({each.target})' if self.has_targets else ''}"
            for each in shown
        ]
        texts += (
            [f"{len(self.images) - len(shown):,} more"] if len(self.images) > len(shown) else []
        )
        first = f"{texts[0]} {'~' if self.distance else '='} {texts[1]}"
        text = (" = " if self.is_equal else " ~ ").join([first, *texts[2:]])
        return (
            text
            + f", distance {self.distance:.4f}" * bool(self.distance)
            + f" ({self.fold})" * bool(self.fold)
        )


def find_duplicates(
    inspection: Inspection,
    folds: Sequence[Splits],
    threshold: float,
    show: Callable[[int, int], None],
) -> list[Duplicates]:
    """Find duplicates and, with a threshold, near-duplicates from different bursts.

    Images that are in several splits leak. `folds` are the splits of other folds, in which images
    may leak, too. `show` gets the number of compared images and the number of all images. Returns
    the duplicates, the worst first.
    """
    is_class = all(
        targets.dim() == 1 and not targets.is_floating_point()
        for targets in inspection.targets.values()
    )
    images = [*_readable(inspection, is_class=is_class)]
    firsts, equal = dict[bytes, int](), list[Pair]()
    for number, image in enumerate(images):
        if (first := firsts.setdefault(image.seen.digest, number)) != number:
            equal.append(Pair(0.0, first, number))
    thumbnails = {
        n: found for n in firsts.values() if (found := images[n].seen.thumbnail) is not None
    }
    numbers, near = [*thumbnails], near_pairs([*thumbnails.values()], threshold, show)
    near = [
        Pair(max(distance, MIN_DISTANCE), numbers[first], numbers[second])
        for distance, first, second in near
    ]
    bursts = [(pair, images[pair.first].burst, images[pair.second].burst) for pair in near]
    pairs = [*equal, *(pair for pair, one, other in bursts if one is None or one != other)]
    views = {f"data.fold={number}": _splits_of(fold) for number, fold in enumerate(folds)}
    duplicates = [
        _duplicates(chain, images, views, is_class=is_class)
        for chain in _chains(pairs, len(images))
    ]
    return sorted(duplicates, key=lambda each: (not each.kinds, each.distance))


def _readable(inspection: Inspection, *, is_class: bool) -> Iterator[Duplicate]:
    names = inspection.splits.class_names
    for split, part in inspection.splits.parts.items():
        targets = iter(inspection.targets[split].tolist())
        for position, (name, seen) in enumerate(
            zip(part.names, inspection.seen[split], strict=True)
        ):
            if seen.errors and makes_targets(part.pixels):
                continue  # Such a sample has no target.
            value = next(targets)
            target = names[value] if is_class and 0 <= value < len(names) else str(value)
            burst = None if part.groups is None else (str(part.groups[position]), split, target)
            if not seen.errors:
                yield Duplicate(split, str(name), target, (split, position), seen, burst)


def _splits_of(splits: Splits) -> dict[str, str]:
    return {str(name): split for split, part in splits.parts.items() for name in part.names}


def _chains(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """Group the pairs of `count` images that have images in common, and sort each group."""
    _, first, second = np.array(pairs or np.empty((0, 3))).T.astype(int)
    graph = coo_array((np.ones(len(pairs)), (first, second)), (count, count))
    chains, numbers = (
        defaultdict[int, list[Pair]](list),
        connected_components(graph, directed=False)[1],
    )
    for pair in sorted(pairs):
        chains[numbers[pair.first]].append(pair)
    return [*chains.values()]


def _duplicates(
    pairs: Sequence[Pair],
    images: Sequence[Duplicate],
    views: Mapping[str, Mapping[str, str]],
    *,
    is_class: bool,
) -> Duplicates:
    placed = {number: images[number] for pair in pairs for number in pair[1:]}
    found = {"": placed}
    for fold, splits in views.items():
        found[fold] = {
            number: image._replace(split=splits[image.name]) for number, image in placed.items()
        }
    leaks = [
        (fold, pair)
        for fold, at in found.items()
        for pair in pairs
        if at[pair[1]].split != at[pair[2]].split
    ]
    opposed = [
        ("", pair)
        for pair in pairs
        if is_class and placed[pair[1]].target != placed[pair[2]].target
    ]
    fold, worst = [*leaks, *opposed, ("", pairs[0])][0]
    shown = [found[fold][number] for number in dict.fromkeys([*worst[1:], *sorted(placed)])]
    return Duplicates(
        shown, worst.distance, fold, ["leak"] * bool(leaks) + ["contradiction"] * bool(opposed)
    )
