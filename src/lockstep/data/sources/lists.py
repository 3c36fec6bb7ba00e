"""Image files that a CSV or Parquet file lists, with what is known of each of them."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import MinLen
from torch import Tensor
from typing_extensions import Doc

from lockstep.data.images.listing import SPLIT_FOLDERS, class_order, existing, list_files
from lockstep.data.images.splits import Splits
from lockstep.data.sources.folders import Contents, FileSettings
from lockstep.data.sources.tables import Table, raise_faults, read_table
from lockstep.system.kinds import Background, Cache, Channels, Fraction, ImageSize, PathText, SplitSeed


def image_list(
    *,
    file: Annotated[PathText, Doc("the .csv or .parquet file, with a row for each image")],
    root: Annotated[PathText | None, Doc("folder of the paths in the file; null = that of the file")],
    path_column: Annotated[str, Doc("name of the column of the paths")],
    target_columns: Annotated[
        list[str], MinLen(1), "[str, ...], one or more", Doc("names of the columns of what is to be predicted")
    ],
    targets: Annotated[
        Literal["classes", "numbers"],
        Doc("classes: of one column, or several columns of 0 and 1; numbers: predicted as they are"),
    ],
    split_column: Annotated[str | None, Doc("name of the column of train, val or test; null = cut by fractions")],
    image_size: ImageSize,
    channels: Channels,
    background: Background,
    val_fraction: Annotated[Fraction, Doc("part of the training images kept for validation")],
    test_fraction: Annotated[Fraction, Doc("part of the training images kept for the test")],
    split_seed: SplitSeed,
    cache: Cache,
    memory: Literal["auto", "device", "host", "stream"],
) -> Splits:
    """Image files listed in a CSV or Parquet `file`, one a row, as uint8 (channels, image_size, image_size).

    `path_column` has their paths, relative to the folder `root`, which None makes that of `file`. `targets` "classes"
    takes one column of `target_columns` as the names or whole numbers of classes, int64 (N,), and several, of 0 and 1,
    as labels of which any number can hold, float32 (N, K); "numbers" takes them as what is to be predicted, float32
    (N, K). `class_names` are the classes in order, else the names of the columns.

    `split_column` says train, val or test of each row; without it, or where no row says val or test, these are cut off
    train by their fraction and `split_seed`. The other settings are those of `image_folder`. Raises FileNotFoundError,
    and ValueError with file, row and column of each cell that cannot be used.
    """
    started = time.perf_counter()
    settings = FileSettings(
        image_size=image_size,
        channels=channels,
        background=background,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        split_seed=split_seed,
        cache=cache,
    )
    return list_contents(
        file=file,
        root=root,
        path_column=path_column,
        target_columns=target_columns,
        targets=targets,
        split_column=split_column,
        settings=settings,
    ).splits(memory, started)


def list_contents(
    *,
    file: str,
    root: str | None,
    path_column: str,
    target_columns: Sequence[str],
    targets: Literal["classes", "numbers"],
    split_column: str | None,
    settings: FileSettings,
) -> Contents:
    """The image files that `image_list` gives, before one of them is opened."""
    setting = f"data.file={file}"
    path = existing(file, setting)
    wanted = {path_column: "data.path_column", **dict.fromkeys(target_columns, "data.target_columns")}
    if split_column is not None:
        wanted[split_column] = "data.split_column"
    table = read_table(file, wanted)

    def lacks(name: str) -> tuple[str, str]:
        return f'{setting} has no row for "{name}"', f'say "{name}" in data.split_column of some rows'

    parts = _parts(table, split_column)
    if targets == "classes" and len(target_columns) == 1:
        known = parts["train"] if split_column is not None else None
        values, class_names = _classes(table, target_columns[0], known)
    else:
        convert = _number if targets == "numbers" else _zero_or_one
        values, class_names = _numbers(table, target_columns, convert), tuple(target_columns)
    folder = path.parent if root is None else existing(root, f"data.root={root}")
    names = [_below(folder, str(name)) for name in table.columns[path_column]]
    groups = values if values.dim() == 1 else torch.zeros(len(names), dtype=torch.int64)
    positions = settings.cut(parts, names, groups, lacks)
    listing, missing = list_files(folder.resolve(), names, str(path.resolve()))
    raise_faults([table.fault(row, path_column, f"there is no file {folder / names[row]}") for row in missing])
    return Contents(settings.folder(setting, listing), positions, values, class_names)


def _below(folder: Path, name: str) -> str:
    return os.path.relpath(name, folder.resolve()) if os.path.isabs(name) else name


def _parts(table: Table, split_column: str | None) -> dict[str, Tensor]:
    """Positions of the splits that rows name; all are "train" without a column for that."""
    if split_column is None:
        return {"train": torch.arange(len(table.numbers))}
    cells = table.columns[split_column]
    raise_faults(
        [
            table.fault(position, split_column, f"{cell!r} is no split, write train, val or test")
            for position, cell in enumerate(cells)
            if cell not in SPLIT_FOLDERS
        ]
    )
    parts = {name: torch.tensor([row for row, cell in enumerate(cells) if cell == name]) for name in SPLIT_FOLDERS}
    if not len(parts["train"]):
        raise ValueError(f"{table.setting} has no row for train in column {split_column}: say train in some.")
    return {name: rows for name, rows in parts.items() if len(rows)}


def _classes(table: Table, column: str, train: Tensor | None) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers int64 (N,), and the names: those of the rows of `train`, of all where it is None."""
    cells = table.columns[column]
    raise_faults(
        [
            table.fault(row, column, f"{cell!r} names no class, give a text or a whole number, or data.targets=numbers")
            for row, cell in enumerate(cells)
            if not isinstance(cell, str | int)
        ]
    )
    texts = [str(cell) for cell in cells]
    names = sorted({texts[row] for row in train.tolist()} if train is not None else set(texts), key=class_order)
    if len(names) < 2:
        raise ValueError(f"{table.setting} has one class only, {names[0]}, in column {column}: add the other classes.")
    numbers = {name: number for number, name in enumerate(names)}
    raise_faults(
        [
            table.fault(row, column, f"no row for train has the class {text!r}")
            for row, text in enumerate(texts)
            if text not in numbers
        ]
    )
    return torch.tensor([numbers[text] for text in texts]), tuple(names)


def _numbers(table: Table, columns: Sequence[str], convert: Any) -> Tensor:
    """What `convert` makes of the cells, float32 (N, K)."""
    faults: list[str] = []
    values = torch.empty(len(table.numbers), len(columns))
    for number, column in enumerate(columns):
        converted = []
        for row, cell in enumerate(table.columns[column]):
            try:
                converted.append(convert(cell))
            except ValueError as error:
                faults.append(table.fault(row, column, str(error)))
                converted.append(math.nan)
        values[:, number] = torch.tensor(converted, dtype=torch.float64)
    raise_faults(faults)
    return values


def _number(cell: Any) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{cell!r} is no number")
    return value


def _zero_or_one(cell: Any) -> float:
    value = _number(cell)
    if value not in (0, 1):
        raise ValueError(f"{cell!r} is neither 0 nor 1, as several columns are, or set data.targets=numbers")
    return value
