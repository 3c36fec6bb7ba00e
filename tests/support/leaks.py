"""Files that hold secrets of a test, which all contain "hunter"."""

from pathlib import Path


def keepers(path: Path) -> set[str]:
    """Names of files with a secret below a folder; asserts that only their owner can read them."""
    found = [
        file for file in path.rglob("*") if file.is_file() and not file.is_symlink() and b"hunter" in file.read_bytes()
    ]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in found), found
    return {file.name for file in found}
