"""Images per second of each augmentation, next to torchvision's v2 transforms, which change image after image.

`python -m benchmarks augmentations` measures in one thread, in seconds of processor time, which is meaningful on a busy
machine, too. In every round each way is measured once; the images are random, uint8, of 3 channels.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from benchmarks.table import Row, alternate, row
from lockstep.data.transforms.augment import Augment
from lockstep.distributed.batch import Batch
from lockstep.distributed.partition import Shard

OFF: dict[str, Any] = {
    **dict.fromkeys(("crop_padding", "rotation", "cutout", "erasing", "mixup", "cutmix"), 0),
    **dict.fromkeys(("flip", "vertical_flip", "trivial", "cutout_inside"), False),
    "crop_border": "zeros",
    "rand_augment": {"num_ops": 0, "magnitude": 9},
    "color_jitter": dict.fromkeys(("brightness", "contrast", "saturation", "hue"), 0),
    "fill": (120, 120, 120),
    "seed": 0,
}
JITTER = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
BATCH_SIZES = {32: 512, 224: 64}  # by the side of the images


def augmentations(num_rounds: int = 7) -> list[Row]:
    """Return the rows of all augmentations at both sizes."""
    torch.set_num_threads(1)
    rows = []
    for side, size in BATCH_SIZES.items():
        shape = (size, 3, side, side)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        batch = Batch(images, torch.arange(size), torch.arange(size), Shard(0, 0, 0, size, 0, size, size))
        for name, (settings, transform) in _ways(side).items():
            ours, theirs = (
                partial(_rate, size, partial(Augment(**{**OFF, **settings}), batch)),
                partial(_rate, size, partial(_one_by_one, transform, images)),
            )
            alternate(1, ours=ours, theirs=theirs)  # the first calls allocate
            rates = alternate(num_rounds, ours=ours, theirs=theirs)
            form, middle = "{:,.0f} images/s", statistics.median(rates["theirs"])
            rows.append(
                row(f"{name}, {side} pixels", rates["ours"], form, aim=f"torchvision v2: {form.format(middle)}")
            )
    return rows


def _ways(side: int) -> dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]]:
    """Return the settings of ours and the transform of torchvision, by name."""
    padding = side // 8
    return {
        "flip": ({"flip": True}, v2.RandomHorizontalFlip()),
        "vertical_flip": ({"vertical_flip": True}, v2.RandomVerticalFlip()),
        "crop_padding": ({"crop_padding": padding}, v2.RandomCrop(side, padding)),
        "crop_border=reflect": (
            {"crop_padding": padding, "crop_border": "reflect"},
            v2.RandomCrop(side, padding, padding_mode="reflect"),
        ),
        "rotation": ({"rotation": 15}, v2.RandomRotation((-15, 15))),
        **{name: ({"color_jitter": {name: value}}, v2.ColorJitter(**{name: value})) for name, value in JITTER.items()},
        "color_jitter, all four": ({"color_jitter": JITTER}, v2.ColorJitter(**JITTER)),
        "trivial": ({"trivial": True}, v2.TrivialAugmentWide()),
        "rand_augment, 2 of magnitude 9": ({"rand_augment": {"num_ops": 2, "magnitude": 9}}, v2.RandAugment(2, 9)),
        "erasing": ({"erasing": 0.25}, v2.RandomErasing(0.25)),
    }


def _one_by_one(transform: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    return torch.stack([transform(image) for image in images])


def _rate(size: int, work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return size / (time.process_time() - started)
