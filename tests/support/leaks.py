"""Files that hold secrets of a test, which all contain "hunter"."""

from pathlib import Path


def keepers(path: Path) -> set[str]:
    """Names of files with a secret below a folder; asserts that only their owner can read them."""
    found = [
        file
        for file in path.rglob("*")
        if file.is_file() and not file.is_symlink() and b"hunter" in file.read_bytes()
    ]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in found), found
    return {file.name for file in found}


def open_entries(folder: Path) -> list[str]:
    """What the group or other users may write in a folder."""
    entries = (path for path in (folder, *folder.rglob("*")) if not path.is_symlink())
    return [str(path.relative_to(folder)) for path in entries if path.stat().st_mode & 0o022]
