"""Select the newest images for the test, by a column of a list or by their EXIF dates."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import date

import numpy as np
from PIL import ExifTags

from lockstep.data.images.decoded_image import open_image
from lockstep.data.images.image_table import ImageTable
from lockstep.data.splits import shorten_lines
from lockstep.data.splitting import Mask, Rows
from lockstep.system.hardware import num_cores

TAKEN = (ExifTags.IFD.Exif, ExifTags.Base.DateTimeOriginal)


def newest(table: ImageTable, rows: Rows, test_after: str) -> Mask:
    """Return which of the images `rows` (n,) date from the day `test_after` or later.

    Images of a group with such an image are included. Raises ValueError if none or all images are
    selected, and for images without a date.
    """
    setting = f"data.test_after={test_after}"

    def read(row: int) -> str:
        if table.dates is not None:
            return table.dates[row]
        # A damaged file and damaged EXIF data can raise any error.
        with (
            contextlib.suppress(Exception),
            open_image(f"{table.folder}/{table.names[row]}") as image,
        ):
            return str(image.getexif().get_ifd(TAKEN[0]).get(TAKEN[1], ""))
        return ""

    days, lines = list[date](), list[str]()
    with ThreadPoolExecutor(num_cores()) as threads:
        for row, timestamp in zip(rows, threads.map(read, rows.tolist()), strict=True):
            try:
                days.append(date.fromisoformat(timestamp[:10].replace(":", "-")))
            except ValueError:
                lines.append(
                    f"{setting}: {table.names[row]} has no date, but {timestamp!r}: "
                    "add it, or move it elsewhere."
                )
    if lines:
        raise ValueError(shorten_lines(lines))
    is_new = np.array(days) >= date.fromisoformat(test_after)
    units = np.array(table.names if table.groups is None else table.groups)[rows]
    is_new = np.isin(units, units[is_new])
    if is_new.all() or not is_new.any():
        raise ValueError(
            f"{setting}: the images are of {min(days)} to {max(days)}: choose a day between."
        )
    return is_new
