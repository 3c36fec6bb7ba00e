"""Formats numbers and names as texts.

The module imports nothing of Lockstep, so that every module can use it.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction


def plural(count: int, noun: str, many: str = "") -> str:
    """Format a count with its noun, e.g. 1 run, 2 runs.

    `many` is for irregular plurals, e.g. 2 classes.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def size_text(num_bytes: int) -> str:
    """Format bytes as 12 bytes, 3.4 KiB, 5.6 MiB or 7.8 GiB."""
    value, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} bytes" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"


def join_names(names: Sequence[str], max_names: int = 3, separator: str = ", ") -> str:
    """Return the first names, and the number of the others."""
    remainder = f" and {len(names) - max_names:,} more" if len(names) > max_names else ""
    return separator.join(names[:max_names]) + remainder


def similar_names(names: Sequence[str]) -> str:
    """List names that look alike, or "" without any.

    They differ only in case, blanks, the form of Unicode, or the form of a number. Blanks of zero
    width count as well. Names that look the same are escaped.
    """
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        folded_name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        key = "".join(
            letter
            for letter in folded_name
            if not letter.isspace() and unicodedata.category(letter) != "Cf"
        )
        key = str(Fraction(key)) if re.fullmatch(r"[-+]?\d{1,40}(\.\d{0,40})?", key) else key
        groups.setdefault(key, {})[name] = None
    similar_groups = list[str]()
    for group in (group for group in groups.values() if len(group) > 1):
        forms = {unicodedata.normalize("NFC", name) for name in group}
        similar_groups.append(" = ".join(map(ascii if len(forms) < len(group) else repr, group)))
    return join_names(similar_groups, separator="; ")


def describe_similar(
    class_names: Sequence[str], groups_of_splits: Iterable[Sequence[str] | None]
) -> str:
    """Name classes and groups that only look different, or return "" without any."""
    groups = [str(group) for groups in groups_of_splits for group in groups or ()]
    kinds = (("classes", "class", class_names), ("groups", "group", groups))
    results = [(many, similar_names(names), noun) for many, noun, names in kinds]
    return "; ".join(
        f"{many} {names}: are they one {noun}?" for many, names, noun in results if names
    )


def near_names(name: str, names: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the most similar names, or else those that are similar in lower case."""
    # The import takes 10 ms, which a valid configuration does not need.
    from difflib import get_close_matches

    names = list(names)
    by_lower = {candidate.lower(): candidate for candidate in names}
    matches = get_close_matches(name, names, count, cutoff)
    return matches or [
        by_lower[candidate]
        for candidate in get_close_matches(name.lower(), by_lower, count, cutoff)
    ]


def question(candidates: Sequence[str], otherwise: str) -> str:
    """Return a question that names what may have been meant, or else `otherwise`."""
    return f"did you mean {' or '.join(candidates)}?" if candidates else otherwise


def expand_path(path: str) -> str:
    """Replace ~ and $NAME in a path that a user typed."""
    return os.path.expanduser(os.path.expandvars(path))
