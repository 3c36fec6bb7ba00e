"""Small folders of images for tests."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lockstep.data.images.splits import Splits
from lockstep.data.sources.folders import image_folder

SETTINGS: dict[str, Any] = {
    "image_size": 8,
    "channels": 3,
    "val_fraction": 0.25,
    "test_fraction": 0.25,
    "split_seed": 0,
    "cache": None,
    "memory": "host",
}


def write_image(path: Path, seed: int = 0, height: int = 10, width: int = 12) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def write_folder(folder: Path, count: int = 20) -> Path:
    """Two classes of `count` images each, with spaces, other scripts and a folder in the names."""
    for label, name in enumerate(("red fox", "ärger 狐")):
        for i in range(count):
            below = "deep er/" if i % 5 == 0 else ""
            write_image(folder / name / f"{below}bild ü {i:02d}.png", seed=100 * label + i)
    return folder


def read(root: Path, **changes: Any) -> Splits:
    return image_folder(root=str(root), **SETTINGS | changes)


def _edit_in_place(path: Path) -> None:
    """Other pixels, the same size in bytes, the same time of change."""
    state, content = path.stat(), bytearray(path.read_bytes())
    other = write_image(path.with_name("other.bmp"), seed=77).read_bytes()
    assert len(other) == len(content)
    path.with_name("other.bmp").unlink()
    path.write_bytes(other)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "changed": lambda path: write_image(path, seed=99),
    "added": lambda path: write_image(path.with_name("new.png"), seed=99),
    "removed": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("zzz.bmp")),
    "moved to the other class": lambda path: path.rename(path.parents[1] / "ärger 狐" / path.name),
    "edited in place": _edit_in_place,
}
