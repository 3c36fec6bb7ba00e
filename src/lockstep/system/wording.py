"""Numbers as texts. Imports nothing, so that every module can use it."""


def plural(count: int, one: str, many: str = "") -> str:
    """Format a count with its noun: 1 run, 2 runs; `many` for irregular plurals: 2 classes."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def size_text(num_bytes: int) -> str:
    """Format bytes as 12 bytes, 3.4 KiB, 5.6 MiB or 7.8 GiB."""
    value, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:,.0f} bytes" if units[0] == "bytes" else f"{value:,.1f} {units[0]}"
