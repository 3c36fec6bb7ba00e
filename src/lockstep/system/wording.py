"""Numbers in sentences. Nothing is imported here, so that every message can use it."""


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun: 1 run, 2 runs; `many` where that is not `one` with an s: 2 classes."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
