"""A test on the newest images: by a column of a list, or by the EXIF date of photographs."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date

import numpy as np
from PIL import ExifTags, Image

from lockstep.data.cuts import Fold
from lockstep.data.images.image_table import ImageTable
from lockstep.data.splits import shorten_lines
from lockstep.system.hardware import num_cores

TAKEN = (ExifTags.IFD.Exif, ExifTags.Base.DateTimeOriginal)


def cut_newest(table: ImageTable, test_after: str, fold: Fold | None) -> ImageTable:
    """Make the images of the day `test_after` and later ones the test split, with their groups as a whole.

    Raises ValueError if there is a test split, or a `fold`, and for images without a date.
    """
    setting = f"data.test_after={test_after}"
    if fold is not None or "test" in table.splits:
        other = "data.folds" if fold is not None else f'the split "test" of {table.setting}'
        raise ValueError(f"{setting} makes a test split, and so does {other}: use one of them.")
    rows = table.splits["train"]
    found = _exif_dates(table, rows.tolist()) if table.dates is None else [table.dates[row] for row in rows]
    days, lines = [], list[str]()
    for row, text in zip(rows, found, strict=True):
        try:
            days.append(date.fromisoformat(text[:10].replace(":", "-")))
        except ValueError:
            lines.append(f"{setting}: {table.names[row]} has no date, but {text!r}: add it, or move it elsewhere.")
    if lines:
        raise ValueError(shorten_lines(lines))
    is_new = np.array(days) >= date.fromisoformat(test_after)
    if table.groups is not None:
        groups = np.array(table.groups)[rows]
        is_new = np.isin(groups, groups[is_new])
    if is_new.all() or not is_new.any():
        raise ValueError(f"{setting}: the images are of {min(days)} to {max(days)}: choose a day between.")
    return replace(table, splits=table.splits | {"train": rows[~is_new], "test": rows[is_new]})


def _exif_dates(table: ImageTable, rows: Sequence[int]) -> list[str]:
    def read(row: int) -> str:
        try:
            with Image.open(os.fsencode(f"{table.folder}/{table.names[row]}")) as image:
                return str(image.getexif().get_ifd(TAKEN[0]).get(TAKEN[1], ""))
        except (OSError, ValueError, SyntaxError):
            return ""

    with ThreadPoolExecutor(num_cores()) as threads:
        return list(threads.map(read, rows))
