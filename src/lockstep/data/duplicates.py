"""Find duplicates and near-duplicates among the images of an inspection.

They can leak between splits or folds, or have contradictory classes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lockstep.data.inspection import InspectedImage, Inspection
from lockstep.data.near_duplicates import Pair, near_pairs
from lockstep.data.splits import Splits, makes_targets

MAX_IMAGES_NAMED = 4  # images listed in one message
# This is the smallest rounded distance of near-duplicates, because 0 means equal pixels.
MIN_DISTANCE = 0.0001


class Duplicate(NamedTuple):
    """An image that has a duplicate or near-duplicate.

    `split` is the split it is in, which may be that of a fold. `split_position` is its split and
    position in the inspection, and `target` is its target as text. `burst` is the group, split and
    target of the image, or None without groups.
    """

    split: str
    name: str
    target: str
    split_position: tuple[str, int]
    inspected_image: InspectedImage
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
        return len({image.inspected_image.digest for image in self.images}) == 1

    @property
    def has_targets(self) -> bool:
        """Return whether the targets of the images differ."""
        return len({image.target for image in self.images}) > 1

    @property
    def text(self) -> str:
        """Return the first images with their splits, and with their targets if these differ."""
        images = self.images[:MAX_IMAGES_NAMED]
        descriptions = [
            f"{image.split}: {image.name}{f' ({image.target})' if self.has_targets else ''}"
            for image in images
        ]
        descriptions += (
            [f"{len(self.images) - len(images):,} more"] if len(self.images) > len(images) else []
        )
        pair = f"{descriptions[0]} {'~' if self.distance else '='} {descriptions[1]}"
        line = (" = " if self.is_equal else " ~ ").join([pair, *descriptions[2:]])
        return (
            line
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
    originals, equal_pairs = dict[bytes, int](), list[Pair]()
    for number, image in enumerate(images):
        if (original := originals.setdefault(image.inspected_image.digest, number)) != number:
            equal_pairs.append(Pair(0.0, original, number))
    thumbnails = {
        n: thumbnail
        for n in originals.values()
        if (thumbnail := images[n].inspected_image.thumbnail) is not None
    }
    numbers, similar_pairs = [*thumbnails], near_pairs([*thumbnails.values()], threshold, show)
    similar_pairs = [
        Pair(max(distance, MIN_DISTANCE), numbers[first], numbers[second])
        for distance, first, second in similar_pairs
    ]
    bursts = [(pair, images[pair.first].burst, images[pair.second].burst) for pair in similar_pairs]
    pairs = [
        *equal_pairs,
        *(pair for pair, burst, other_burst in bursts if burst is None or burst != other_burst),
    ]
    fold_splits = {f"data.fold={number}": _splits_of(fold) for number, fold in enumerate(folds)}
    duplicates = [
        _duplicates(chain, images, fold_splits, is_class=is_class)
        for chain in _chains(pairs, len(images))
    ]
    return sorted(duplicates, key=lambda cluster: (not cluster.kinds, cluster.distance))


def _readable(inspection: Inspection, *, is_class: bool) -> Iterator[Duplicate]:
    class_names = inspection.splits.class_names
    for split, images in inspection.splits.by_name.items():
        targets = iter(inspection.targets[split].tolist())
        for position, (name, result) in enumerate(
            zip(images.names, inspection.images[split], strict=True)
        ):
            if result.errors and makes_targets(images.pixels):
                continue  # Such a sample has no target.
            value = next(targets)
            target = (
                class_names[value] if is_class and 0 <= value < len(class_names) else str(value)
            )
            burst = None if images.groups is None else (str(images.groups[position]), split, target)
            if not result.errors:
                yield Duplicate(split, str(name), target, (split, position), result, burst)


def _splits_of(splits: Splits) -> dict[str, str]:
    return {str(name): split for split, images in splits.by_name.items() for name in images.names}


def _chains(pairs: Sequence[Pair], count: int) -> list[list[Pair]]:
    """Group the pairs of `count` images that have images in common, and sort each group."""
    _, first, second = np.array(pairs or np.empty((0, 3))).T.astype(int)
    graph = coo_array((np.ones(len(pairs)), (first, second)), (count, count))
    chains = defaultdict[int, list[Pair]](list)
    numbers = connected_components(graph, directed=False)[1]
    for pair in sorted(pairs):
        chains[numbers[pair.first]].append(pair)
    return [*chains.values()]


def _duplicates(
    pairs: Sequence[Pair],
    images: Sequence[Duplicate],
    fold_splits: Mapping[str, Mapping[str, str]],
    *,
    is_class: bool,
) -> Duplicates:
    members = {number: images[number] for pair in pairs for number in pair[1:]}
    members_by_fold = {"": members}
    for fold, splits in fold_splits.items():
        members_by_fold[fold] = {
            number: image._replace(split=splits[image.name]) for number, image in members.items()
        }
    leaks = [
        (fold, pair)
        for fold, fold_members in members_by_fold.items()
        for pair in pairs
        if fold_members[pair[1]].split != fold_members[pair[2]].split
    ]
    contradictions = [
        ("", pair)
        for pair in pairs
        if is_class and members[pair[1]].target != members[pair[2]].target
    ]
    fold, worst = [*leaks, *contradictions, ("", pairs[0])][0]
    duplicates = [
        members_by_fold[fold][number] for number in dict.fromkeys([*worst[1:], *sorted(members)])
    ]
    return Duplicates(
        duplicates,
        worst.distance,
        fold,
        ["leak"] * bool(leaks) + ["contradiction"] * bool(contradictions),
    )
