"""Small folders of images for tests."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lockstep.data.folders import image_folder
from lockstep.data.sources import Splits

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
