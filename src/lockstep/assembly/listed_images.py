"""The image files of a folder or list, not decoded.

They serve copies, comparisons with other images, and commands that inspect the files.
"""

import statistics
from collections.abc import Sequence
from contextlib import suppress

from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import IMAGE_FOLDER, Data
from lockstep.data.images.decoded_image import open_image
from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_table import list_classes
from lockstep.data.images.preprocessing import PREPROCESSING_KEYS, Preprocessing
from lockstep.data.sources.folders import complete_splits
from lockstep.data.sources.lists import read_list
from lockstep.data.splits import Fold, Kept, Splits

# An image this many times larger than the input counts as much larger: each pixel of the input is
# the mean of at least 16 pixels.
MUCH_LARGER = 4
# Most pretrained networks have an input of this size. Images of less than half of it stay small.
PRETRAINED_SIZE = 224


def files_of(
    section: Data, *, completes_splits: bool = True, is_other: bool = False, kept: Kept = None
) -> Decoding:
    """Return the image files of a folder or list, not decoded.

    Unless `completes_splits`, the images have only the splits that the source defines. If the data
    `is_other` than that of a run, it may have a single class, and images without a group. Images
    whose name is in `kept` stay in that split.
    """
    arguments = section.arguments()
    preprocessing = Preprocessing.from_keys(*(arguments.pop(name) for name in PREPROCESSING_KEYS))
    settings = {name: arguments.pop(name) for name in ("channels", "cache")}
    split_arguments = [
        arguments.pop(name)
        for name in ("val_fraction", "test_fraction", "split_seed", "test_after")
    ]
    list_images = list_classes if section.target == IMAGE_FOLDER else read_list
    table = list_images(**arguments, is_other=is_other)
    if completes_splits:
        fold = None if section.folds is None else Fold(section.fold, section.folds)
        table = complete_splits(table, *split_arguments, fold=fold, kept=kept)
    return Decoding(table=table, preprocessing=preprocessing, **settings)


def header_rows(config: Config, images: Splits | None) -> dict[str, str]:
    """Return header rows that describe the preprocessing.

    The second row describes how much a new run shrinks its `images`.
    """
    preprocessing = Preprocessing.from_keys(
        *(config.data.arguments()[name] for name in PREPROCESSING_KEYS)
    )
    rows = {"images": preprocessing.text}
    if images is not None:
        # The headers of up to 32 evenly spaced training images are read.
        names, sides = images.train.names, list[int]()
        for name in names[:: -(-len(names) // 32)]:
            # Broken images are reported where they are decoded.
            with suppress(Exception), open_image(f"{images.folder}/{name}") as image:
                sides.append(min(image.size))
        rows["shrunk"] = describe_shrinking(config, preprocessing, sides)
    return rows


def describe_shrinking(config: Config, preprocessing: Preprocessing, sides: Sequence[int]) -> str:
    """Describe how much images with these shorter sides are shrunk, and how to keep more.

    The text is empty if they are shrunk little.
    """
    side, median = min(preprocessing.size or [PRETRAINED_SIZE]), statistics.median(sides or [0])
    if side >= PRETRAINED_SIZE or median < max(MUCH_LARGER * side, PRETRAINED_SIZE / 2):
        return ""
    arguments = {} if config.has_custom_module else config.model.arguments()
    network = (
        ""
        if config.has_custom_module or arguments.get("pretrained")
        else "experiment=finetune, or "
    )
    # The small stem is for images of up to 64 pixels.
    stem = " model=resnet18_imagenet" if arguments.get("stem") == "small" else ""
    return (
        f"from {median:,.0f} pixels to {side}: add {network}data.image_size={PRETRAINED_SIZE}{stem}"
    )
