"""Numbers in sentences. Imports nothing, so that every module can use it."""


def plural(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: 1 run, 2 runs; `many` for irregular plurals: 2 classes."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
