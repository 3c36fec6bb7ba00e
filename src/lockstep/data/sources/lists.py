"""Provide image files that a CSV file lists with their targets."""

import contextlib
import csv
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray
from typing_extensions import Doc

from lockstep.data.images.decoded_splits import Decoding
from lockstep.data.images.image_table import (
    COPY_RECORD,
    IMAGE_SUFFIXES,
    SPLIT_FOLDERS,
    ImageTable,
    Integers,
    class_order,
    digest_of,
    group_names,
    read_record,
    real_names,
    require_folder,
    require_path,
    states_of,
    strip_names,
)
from lockstep.data.images.preprocessing import Preprocessing
from lockstep.data.sources.folders import complete_splits
from lockstep.data.splits import Fold, Kept, Splits, shorten_lines
from lockstep.runs.files import read_json, strip_formula_mark
from lockstep.system.types import (
    Background,
    Cache,
    Channels,
    CropPercent,
    Fit,
    Fraction,
    Group,
    ImageSize,
    Interpolation,
    PathText,
    SplitSeed,
    TestAfter,
)

Columns = dict[str, list[str]]
MAX_FLOAT32 = float(np.finfo(np.float32).max)


def image_list(
    *,
    file: Annotated[PathText, Doc(".csv file with one row per image")],
    root: Annotated[
        PathText | None, Doc("folder or URL of relative paths; null = the folder of the file")
    ],
    path_column: Annotated[str, Doc("column with the paths of the images")],
    target_columns: Annotated[
        list[str], MinLen(1), "[str, ...], one or more", Doc("columns to predict")
    ],
    targets: Annotated[
        Literal["classes", "numbers"],
        Doc(
            "classes: one column, or several columns of 0 and 1; "
            "numbers: columns of numbers to predict"
        ),
    ],
    split_column: Annotated[
        str | None, Doc("column with train, val or test; null = random split by the fractions")
    ],
    group: Annotated[
        Group | None,
        Doc("images kept in one split: a regular expression for the path with the group in (...)"),
    ],
    group_column: Annotated[
        str | None, Doc("column with the group of each image, such as its patient")
    ],
    date_column: Annotated[
        str | None, Doc("column with the days for test_after; null = the EXIF date of each image")
    ],
    image_size: ImageSize,
    channels: Channels,
    crop_percent: CropPercent,
    fit: Fit,
    interpolation: Interpolation,
    background: Background,
    val_fraction: Annotated[Fraction, Doc("fraction of the training images to use for validation")],
    test_fraction: Annotated[Fraction, Doc("fraction of the training images to use for the test")],
    split_seed: SplitSeed,
    test_after: TestAfter,
    cache: Cache,
    memory: Literal["auto", "device", "host", "stream", "once"],
    fold: Fold | None = None,
    kept: Kept = None,
) -> Splits:
    """Load image files listed in a CSV `file`, one per row, as uint8 (channels, height, width).

    `path_column` contains paths relative to `root`, or to the folder of `file` if `root` is None.
    With `targets` "classes", a single column in `target_columns` contains class names or whole
    numbers, and targets are int64 (N,). Several columns of 0 and 1 are labels, any number of which
    can apply, and targets are float32 (N, K). With "numbers", the columns are the values to
    predict, float32 (N, K). `class_names` are the classes in order, or else the column names.

    Without rows for val or test, these are split from train by their fraction and `split_seed`. A
    `fold` of the rows for train takes the place of those for test. Images of one group stay in one
    split. A group has the same cell in `group_column`, or the same first bracket of the regular
    expression `group` in the paths. `kept` maps names of images to their earlier splits, in
    which they stay. Raises FileNotFoundError, and ValueError with file, row and column of each cell
    that cannot be used.
    """
    table = read_list(
        file,
        root,
        path_column,
        target_columns,
        targets,
        split_column,
        group,
        group_column,
        date_column,
    )
    table = complete_splits(table, val_fraction, test_fraction, split_seed, test_after, fold, kept)
    preprocessing = Preprocessing.from_keys(
        image_size, crop_percent, fit, interpolation, background
    )
    return Decoding(table, preprocessing, channels, cache).splits(memory)


def read_list(
    file: str,
    root: str | None,
    path_column: str,
    target_columns: Sequence[str],
    targets: str,
    split_column: str | None,
    group: str | None,
    group_column: str | None,
    date_column: str | None,
    *,
    is_other: bool = False,
) -> ImageTable:
    """List the image files of `image_list` without opening them, with their splits.

    `is_other` marks data that is not the data of the training. In such data, images without a group
    are groups of their own.
    """
    path = require_path(file, f"data.file={file}")
    if None not in (group, group_column):
        raise ValueError(
            f"data.group={group} and data.group_column={group_column} are both set: "
            "set one to null."
        )
    settings = {
        path_column: "data.path_column",
        **dict.fromkeys(target_columns, "data.target_columns"),
        split_column: "data.split_column",
        group_column: "data.group_column",
        date_column: "data.date_column",
    }
    settings.pop(None, None)
    cells = _read(path, f"data.file={file}", settings)
    if group in cells.columns:
        raise ValueError(
            f"data.group={group} is a regular expression: "
            f"write data.group_column={group} for the column."
        )
    splits = _splits(cells, split_column)
    if targets == "classes" and len(target_columns) == 1:
        values, class_names = _classes(cells, target_columns[0], splits["train"])
    else:
        values = _numbers(cells, target_columns, are_labels=targets == "classes")
        class_names = tuple(target_columns)
    dates = date_column and cells.columns[date_column]
    folder = path.parent if root is None else require_folder(root)
    # Absolute paths are those of the source, even if they are listed in a copy.
    origin = read_json(folder.absolute().parent / COPY_RECORD).get("origin", folder.resolve())
    names = [
        os.path.relpath(name, origin) if os.path.isabs(name) else name
        for name in cells.columns[path_column]
    ]
    states, missing = states_of(folder, names)
    cells.refuse((row, path_column, f"{folder / names[row]} does not exist") for row in missing)
    singles = real_names(folder, names, states) if is_other else None
    if group_column is None:
        groups = group_names(cells.setting, group, cells.columns[path_column], singles)
    else:
        setting = f"{cells.setting}, column {group_column}"
        groups = strip_names(setting, cells.columns[group_column], "groups")
    digest = read_record(folder, names, states).get("digest", digest_of(names, states))
    files = cells.setting, folder.resolve(), names, states, digest, str(path.resolve())
    return ImageTable(*files, values, class_names, splits, groups, dates or None)


def listed_names(file: str, path_column: str) -> list[str]:
    """Read the paths of the images in a list whose files are elsewhere."""
    setting = f"data.file={file}"
    path = require_path(file, setting)
    return _read(path, setting, {path_column: "data.path_column"}).columns[path_column]


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells of some columns. `numbers` (N,) are the line numbers in the file."""

    setting: str
    numbers: Sequence[int]
    columns: Columns

    def refuse(self, problems: Iterable[tuple[int, str, str]]) -> None:
        """Raise ValueError if there are problems, each with the row and column of its cell."""
        lines = [
            f"{self.setting}, row {self.numbers[row]}, column {column}: {problem}."
            for row, column, problem in problems
        ]
        if lines:
            raise ValueError(shorten_lines(lines))


def _read(path: Path, setting: str, settings: dict[Any, str]) -> _Cells:
    """Read the columns that are the keys of `settings`.

    The values of `settings` are the configuration keys that name these columns. A CSV file has
    commas, UTF-8, and column names in its first line. Raises ValueError for a file that cannot be
    read, for missing columns and for empty cells.
    """
    header, numbers, columns = _csv(path, setting)
    if not numbers:
        raise ValueError(f"{setting} has no rows: add one for each image.")
    if settings.get("path") == "data.path_column" and "path" not in header and "file" in header:
        # The commands predict, labels and lists write this column name.
        header, columns["path"] = [*header, "path"], columns["file"]
    if any(column.lower().endswith(IMAGE_SUFFIXES) for column in header):
        raise ValueError(
            f"{setting} has no line of column names: add {','.join(settings)} as the first line."
        )
    mismatches = [
        f"{key} is {column!r}" for column, key in settings.items() if header.count(column) != 1
    ]
    if mismatches:
        raise ValueError(
            f"{setting} has the columns {', '.join(header)}, but {'; '.join(mismatches)}: "
            "correct the name, or rename all but one column of this name."
        )
    cells = _Cells(setting, numbers, columns)
    cells.refuse(_unfit_cells({column: columns[column] for column in settings}))
    return cells


def _unfit_cells(columns: Columns) -> Iterator[tuple[int, str, str]]:
    for column, cells in columns.items():
        for row, cell in enumerate(cells):
            if not cell.strip():
                yield row, column, "the cell is empty, fill it in or remove the row"
            elif "\0" in cell:
                yield row, column, "the cell has a NUL byte, remove it"


def _csv(path: Path, setting: str) -> tuple[list[str], list[int], Columns]:
    numbers: list[int] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [strip_formula_mark(cell) for cell in next(reader, [])]
            if len(header) == 1 and {*header[0]} & {";", "\t"}:
                raise ValueError(
                    f"{setting} has semicolons or tabs between its columns: save it with commas."
                )
            columns: list[list[str]] = [[] for _ in header]
            for row in filter(None, reader):
                if len(row) != len(header):
                    raise ValueError(
                        f"{setting}, row {reader.line_num} has {len(row)} cells, but the first "
                        f"line has {len(header)}: write one for each column."
                    )
                numbers.append(reader.line_num)
                for column, cell in zip(columns, row, strict=True):
                    column.append(strip_formula_mark(cell))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{setting} cannot be read ({error}): save it as CSV with commas, in UTF-8."
        ) from error
    return header, numbers, dict(zip(header, columns, strict=True))


def _splits(cells: _Cells, split_column: str | None) -> dict[str, Integers]:
    """Return the positions of each split. Without `split_column`, all rows are "train"."""
    if split_column is None:
        return {"train": np.arange(len(cells.numbers))}
    split_cells = cells.columns[split_column]
    cells.refuse(
        (row, split_column, f"{cell!r} is not train, val or test")
        for row, cell in enumerate(split_cells)
        if cell not in SPLIT_FOLDERS
    )
    splits = {split: np.flatnonzero(np.array(split_cells) == split) for split in SPLIT_FOLDERS}
    if not len(splits["train"]):
        raise ValueError(
            f"{cells.setting} has no row for train in column {split_column}: write train in some."
        )
    return {split: rows for split, rows in splits.items() if len(rows)}


def _classes(cells: _Cells, column: str, train: Integers) -> tuple[Integers, tuple[str, ...]]:
    """Return class numbers int64 (N,), and the names of the classes in the rows of `train`."""
    labels = strip_names(f"{cells.setting}, column {column}", cells.columns[column])
    class_names = sorted({labels[row] for row in train}, key=class_order)
    if len(class_names) < 2:
        raise ValueError(
            f"{cells.setting} has one class only, {class_names[0]}, in column {column}: "
            "add the other classes."
        )
    numbers = {name: number for number, name in enumerate(class_names)}
    cells.refuse(
        (row, column, f"no row for train has the class {label!r}")
        for row, label in enumerate(labels)
        if label not in numbers
    )
    return np.array([numbers[label] for label in labels]), tuple(class_names)


def _numbers(cells: _Cells, columns: Sequence[str], *, are_labels: bool) -> NDArray[np.float32]:
    """Convert the cells to float32 (N, K). Labels must be 0 or 1."""
    values, problems = np.zeros((len(cells.numbers), len(columns)), np.float32), []
    for number, column in enumerate(columns):
        for row, cell in enumerate(cells.columns[column]):
            value = math.nan
            with contextlib.suppress(ValueError):
                value = float(cell)
            if not abs(value) <= MAX_FLOAT32:  # Comparing NaN gives false.
                problem = (
                    f"{cell!r} is not a finite number of float32, which ends at {MAX_FLOAT32:.1e}: "
                    "correct it, or use another unit"
                )
            elif are_labels and value not in (0, 1):
                problem = f"{cell!r} is neither 0 nor 1: correct it, or set data.targets=numbers"
            else:
                values[row, number] = value
                continue
            problems.append((row, column, problem))
    cells.refuse(problems)
    return values
