"""The error of images that cannot be used."""

from collections.abc import Sequence


class ImageError(ValueError):
    """Image files that cannot be used: `errors` has one line per file, the message the first ten.

    `positions` are those of the files in the list that was read, if it was read completely.
    """

    def __init__(self, errors: Sequence[str], positions: Sequence[int] = ()) -> None:
        super().__init__(errors, positions)
        self.errors = list(errors)
        self.positions = positions

    def __str__(self) -> str:
        return shorten_lines(self.errors)


def shorten_lines(lines: Sequence[str]) -> str:
    """Keep ten of the lines, and count the others."""
    more = [f"... and {len(lines) - 10} more"] if len(lines) > 10 else []
    return "\n".join([*lines[:10], *more])
