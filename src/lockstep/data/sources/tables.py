"""Rows of a CSV or Parquet file, each cell with a place that a fault can name. No torch."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.runs.files import uncell


@dataclass(frozen=True, eq=False)
class Table:
    """The cells of some columns, each without empty ones. `numbers` are those of the rows: in a CSV file its lines."""

    setting: str
    numbers: Sequence[int]
    columns: dict[str, list[Any]]

    def fault(self, position: int, column: str, what: str) -> str:
        """The line that tells of a cell."""
        return f"{self.setting}, row {self.numbers[position]}, column {column}: {what}."


def read_table(file: str, wanted: dict[str, str]) -> Table:
    """Read the columns that are `wanted`, each with the setting that names it, from a file ending in .csv or .parquet.

    A CSV file has commas, UTF-8 and a first line with the names of its columns. Raises ValueError for a file that
    cannot be read, columns that are not there, and with a line for each empty cell.
    """
    path, setting = Path(file).expanduser(), f"data.file={file}"
    header, numbers, columns = _parquet(path, setting, wanted) if path.suffix == ".parquet" else _csv(path, setting)
    missing = [f"{key} names the column {name!r}" for name, key in wanted.items() if name not in header]
    if missing:
        raise ValueError(f"{setting} has the columns {', '.join(header)}, but {'; '.join(missing)}: correct the name.")
    if not numbers:
        raise ValueError(f"{setting} has no rows: give one for each image.")
    table = Table(setting, numbers, {name: columns[name] for name in wanted})
    raise_faults(
        [
            table.fault(position, name, "the cell is empty, fill it in or remove the row")
            for name, cells in table.columns.items()
            for position, cell in enumerate(cells)
            if cell is None or cell == ""
        ]
    )
    return table


def raise_faults(faults: Sequence[str]) -> None:
    """Raise ValueError with ten of the faults, and the number of the others, where there are any."""
    if faults:
        more = [f"... and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise ValueError("\n".join([*faults[:10], *more]))


Columns = tuple[list[str], Sequence[int], dict[str, list[Any]]]


def _csv(path: Path, setting: str) -> Columns:
    numbers: list[int] = []
    rows: list[list[str]] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [uncell(cell) for cell in next(reader, [])]
            for row in reader:
                if row and len(row) != len(header):
                    what = f"has {len(row)} cells, and the first line has {len(header)}"
                    raise ValueError(f"{setting}, row {reader.line_num} {what}: give it one for each column.")
                if row:
                    numbers.append(reader.line_num)
                    rows.append([uncell(cell) for cell in row])
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{setting} cannot be read ({error}): save it as CSV with commas, in UTF-8.") from error
    cells = [list(column) for column in zip(*rows, strict=True)]
    return header, numbers, dict(zip(header, cells, strict=False))


def _parquet(path: Path, setting: str, wanted: dict[str, str]) -> Columns:
    import pyarrow  # a presence check has seen that it is installed
    from pyarrow import parquet

    try:
        header: list[str] = parquet.read_schema(path).names
        table = parquet.read_table(path, columns=[name for name in wanted if name in header])
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{setting} cannot be read ({reason}): give a Parquet file.") from error
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    return header, range(1, table.num_rows + 1), columns
