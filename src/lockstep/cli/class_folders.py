"""Writes the images of a data set as files in folders, one for each class."""

import os
import tempfile
from pathlib import Path

from PIL import Image
from torch import Tensor

from lockstep.config.errors import config_error
from lockstep.data.splits import Splits

FOLDERS = {"train": "train", "val": "train", "test": "test"}  # A training splits val off again.


def write_class_folders(images: Splits, folder: Path) -> None:
    """Write PNG files into `folder`/train/CLASS and `folder`/test/CLASS.

    A slash in the name of a class becomes a hyphen. The folder appears when all files are written.
    Raises ConfigError for images that are not pixels (N, 1 or 3, H, W) in memory with a class each.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        root = Path(temporary) / "folders"
        for split, part in images.by_name.items():
            if not isinstance(part.pixels, Tensor) or part.classes is None:
                raise config_error(
                    "unsupported",
                    f"--folders {folder}",
                    f"needs the pixels and the class of each {split} image",
                    "use data=cifar10",
                )
            class_folders = [
                root / FOLDERS[split] / str(name).replace("/", "-") for name in images.class_names
            ]
            for class_folder in class_folders:
                class_folder.mkdir(parents=True, exist_ok=True)
            for number, label in enumerate(part.classes.tolist()):
                pixels = part.pixels[number].permute(1, 2, 0).numpy()
                image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
                image.save(class_folders[label] / f"{split}_{number:05}.png")
        os.replace(root, folder)
