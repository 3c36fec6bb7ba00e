"""Where secrets of a test, which all have "hunter" in them, have come to lie."""

from pathlib import Path


def keepers(path: Path) -> set[str]:
    """The names of the files below a folder that hold a secret; all are for their owner alone."""
    found = [
        file for file in path.rglob("*") if file.is_file() and not file.is_symlink() and b"hunter" in file.read_bytes()
    ]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in found), found
    return {file.name for file in found}
