"""Reads CSV files that people write, as rows with line numbers."""

import codecs
import csv
import difflib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CHOICE = re.compile(r'"?sep=(.)"?(?=\r?\n)', re.IGNORECASE)  # Excel's first line


@dataclass(frozen=True)
class Row:
    """One row: its position, and its cells by column, without spaces around them."""

    path: Path
    line: int
    cells: dict[str, str]

    def __getitem__(self, column: str) -> str:
        """Return a cell; "" if the file has no such column."""
        return self.cells.get(column, "")

    def error(self, problem: str) -> ValueError:
        return ValueError(f"{self.path}, line {self.line}: {problem}")


@dataclass(frozen=True)
class Table:
    """The rows of a file; `ignored` are the names of columns that are not used."""

    rows: list[Row]
    ignored: tuple[str, ...]


def read_table(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Table:
    """Return the rows of a CSV file with a header, and `,`, `;`, or tabs between cells.

    The file is UTF-8, or UTF-16 with a byte order mark. A first line `sep=;`, which Excel reads,
    sets the separator. Column names are compared in lower case. Other columns are ignored, but a
    name that is close to a known one is an error. Raises ValueError with file and line, and
    OSError.
    """
    text = _decoded(path)
    chosen = _CHOICE.match(text)
    if chosen:  # keep the line, blank, so that later lines have the right numbers
        text = text[chosen.end() :]
    header_line = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = chosen[1] if chosen else max(",;\t", key=header_line.count)
    rows = _records(path, text, delimiter)
    line, header = next(rows, (1, []))
    columns = [name.strip().lower() for name in header]
    if problem := _wrong_columns(columns, required, optional):
        raise ValueError(f"{path}, line {line}: {problem}; the first line names the columns")
    ignored = tuple(name for name in columns if name and name not in required + optional)
    return Table([_row(path, line, columns, record) for line, record in rows], ignored)


def _wrong_columns(columns: list[str], required: tuple[str, ...], optional: tuple[str, ...]) -> str:
    known = required + optional
    for name in known:
        if columns.count(name) > 1:
            return f"the column {name!r} appears twice"
    for name in required:
        if name not in columns:
            has = ", ".join(column for column in columns if column)
            return f"the column {name!r} is missing" + (f": it has {has}" if has else "")
    absent = [name for name in known if name not in columns]
    for name in columns:
        close = difflib.get_close_matches(name, absent, n=1, cutoff=0.75)
        if name not in known and close:
            return f"an unknown column {name!r}: did you mean {close[0]!r}?"
    return ""


def _decoded(path: Path) -> str:
    data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # Excel's "Unicode text"
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f'{path}, line {line}: not UTF-8; save it as "CSV UTF-8" in your spreadsheet'
        ) from None


def _records(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not blank, with the line on which it starts."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{path}, line {start}: not CSV: {error}") from None
        if record is None:
            return
        if any(cell.strip() for cell in record):
            yield start, record


def _row(path: Path, line: int, columns: list[str], record: list[str]) -> Row:
    cells = [cell.strip() for cell in record]
    if any(cells[len(columns) :]):
        raise ValueError(
            f"{path}, line {line}: {len(cells)} cells where the first line names {len(columns)} "
            'columns; a cell with a comma needs "…" around it'
        )
    return Row(path, line, dict(zip(columns, cells, strict=False)))
