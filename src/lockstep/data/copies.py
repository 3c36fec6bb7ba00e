"""Copies among the images of an inspection: leaks between splits or folds, contradictions of classes, duplicates."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.data.inspection import Inspection, Seen
from lockstep.data.near_copies import Pair, near_pairs
from lockstep.data.splits import Splits

MOST_NAMED = 4  # images of a text
LEAST = 0.0001  # distance of near copies, rounded: 0 is that of equal pixels
Placed = Mapping[str, Sequence[tuple[str, str]]]  # split and target, as text, of each time that a name is listed


class Copy(NamedTuple):
    """An image that has copies: its split, its target as text, and its split and position in the inspection."""

    split: str
    name: str
    target: str
    place: tuple[str, int]


class Copies(NamedTuple):
    """Images that pairs of copies connect. The first two are the nearest pair, of a leak the nearest that leaks.

    `distance` is that of this pair, 0 for equal pixels. `where` is " (data.fold=1)" if splits are those of a fold.
    `is_equal`: all have the same pixels; `has_files`: from files that differ.
    """

    images: Sequence[Copy]
    distance: float
    where: str
    is_leak: bool
    is_contradiction: bool
    is_equal: bool
    has_files: bool

    @property
    def kinds(self) -> list[str]:
        return ["leak"] * self.is_leak + ["contradiction"] * self.is_contradiction

    @property
    def kind(self) -> str:
        return " and ".join(self.kinds) or ("near" if self.distance else "twice")

    @property
    def has_targets(self) -> bool:
        """True if their targets differ."""
        return len({image.target for image in self.images}) > 1

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(image.name for image in self.images))

    @property
    def text(self) -> str:
        """The first images with their splits, and their targets if they differ."""
        shown = self.images[:MOST_NAMED]
        texts = [f"{split}: {name}{f' ({target})' if self.has_targets else ''}" for split, name, target, _ in shown]
        more = [f"{len(self.images) - len(shown):,} more"] if len(self.images) > len(shown) else []
        distance = f", distance {self.distance:.4f}" if self.distance else ""
        signs = [" ~ " if self.distance else " = ", *[" = " if self.is_equal else " ~ "] * len(self.images)]
        others = "".join(sign + text for sign, text in zip(signs, [*texts[1:], *more], strict=False))
        return texts[0] + others + distance + self.where


class Found(NamedTuple):
    """Copies, the worst first, and the number of images that are near others of their group, class and split only."""

    copies: list[Copies]
    num_in_bursts: int


class _Entry(NamedTuple):
    name: str
    place: tuple[str, int]
    seen: Seen
    group: tuple[str, str, int] | None  # with split and class


def find_copies(inspection: Inspection, folds: Sequence[Splits], threshold: float) -> Found:
    """Find equal images, and with a threshold near ones. They leak if they are in several splits of any fold."""
    entries = [*_entries(inspection)]
    firsts, equal = dict[bytes, int](), list[Pair]()
    for number, entry in enumerate(entries):
        if (first := firsts.setdefault(entry.seen.digest, number)) != number:
            equal.append(Pair(0.0, first, number))
    near = _near(entries, [*firsts.values()], threshold)
    groups = [(entries[pair.first].group, entries[pair.second].group) for pair in near]
    others = [pair for pair, (one, other) in zip(near, groups, strict=True) if one is None or one != other]
    chains = _chains([*equal, *others])
    wanted = {entries[number].name for pairs in chains for pair in pairs for number in pair[1:]}
    placed = {"": _places(inspection.splits, wanted)}
    placed |= {f" (data.fold={number})": _places(fold, wanted) for number, fold in enumerate(folds)}
    is_class = all(images.classes is not None for images in inspection.splits.parts.values())
    copies = [_copies(pairs, entries, placed, is_class=is_class) for pairs in chains]
    shown = {number for pairs in chains for pair in pairs for number in pair[1:]}
    in_bursts = {number for pair in near for number in pair[1:]} - shown
    return Found(sorted(copies, key=lambda each: (not each.kinds, each.distance)), len(in_bursts))


def _entries(inspection: Inspection) -> list[_Entry]:
    """List the readable images."""
    found = list[_Entry]()
    for split, images in inspection.splits.parts.items():
        classes = images.classes if images.groups is not None else None
        for position, (name, seen) in enumerate(zip(images.names, inspection.seen[split], strict=True)):
            group = None if classes is None or images.groups is None else images.groups[position]
            key = None if group is None or classes is None else (group, split, int(classes[position]))
            if not seen.errors:
                found.append(_Entry(name, (split, position), seen, key))
    return found


def _near(entries: Sequence[_Entry], firsts: Sequence[int], threshold: float) -> list[Pair]:
    thumbnails = {number: found for number in firsts if (found := entries[number].seen.thumbnail) is not None}
    numbers = [*thumbnails]
    pairs = near_pairs([*thumbnails.values()], threshold) if threshold else []
    return [Pair(max(distance, LEAST), numbers[first], numbers[second]) for distance, first, second in pairs]


def _chains(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Group pairs that have images in common, in the order of their first images."""
    parents = dict[int, int]()

    def root(number: int) -> int:
        while parents.setdefault(number, number) != number:
            parents[number] = parents[parents[number]]
            number = parents[number]
        return number

    for _, first, second in pairs:
        low, high = sorted((root(first), root(second)))
        parents[high] = low
    chains = dict[int, list[Pair]]()
    for pair in pairs:
        chains.setdefault(root(pair.first), []).append(pair)
    return [sorted(chains[number]) for number in sorted(chains)]


def _copies(
    pairs: Sequence[Pair], entries: Sequence[_Entry], placed: Mapping[str, Placed], *, is_class: bool
) -> Copies:
    def differ(pair: Pair, where: str, column: int) -> bool:
        names = {entries[number].name for number in pair[1:]}
        return len({place[column] for name in names for place in placed[where][name]}) > 1

    leaks = [(where, pair) for where in placed for pair in pairs if differ(pair, where, 0)]
    opposed = [("", pair) for pair in pairs if is_class and differ(pair, "", 1)]
    where, worst = [*leaks, *opposed, ("", pairs[0])][0]
    numbers = dict.fromkeys([*worst[1:], *sorted({number for pair in pairs for number in pair[1:]})])
    members = {entries[number].name: entries[number] for number in reversed(numbers)}
    images = [
        Copy(split, name, target, members[name].place)
        for name in dict.fromkeys(entries[number].name for number in numbers)
        for split, target in placed[where][name]
    ]
    is_equal = len({entries[number].seen.digest for number in numbers}) == 1
    files = {entries[number].seen.file for number in numbers}
    return Copies(images, worst.distance, where, bool(leaks), bool(opposed), is_equal, is_equal and len(files) > 1)


def _places(splits: Splits, wanted: Collection[str]) -> Placed:
    """Return the split and the target, as text, of each time that an image is listed."""
    found: dict[str, list[tuple[str, str]]] = {}
    for split, images in splits.parts.items():
        targets = images.targets if images.classes is None else images.classes
        is_class = images.classes is not None
        for position, name in enumerate(images.names):
            if name in wanted:
                # those of a Dataset may be in its samples alone
                target: Any = targets[position].tolist() if len(targets) else None
                is_named = is_class and 0 <= target < len(splits.class_names)
                found.setdefault(name, []).append((split, splits.class_names[target] if is_named else str(target)))
    return found
