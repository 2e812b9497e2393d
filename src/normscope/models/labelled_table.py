"""Samples with labels from a text file of columns: commas, semicolons or tabs, with or without a header row."""

import csv
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normscope.checks import Floats, first_line, quoted, shortened
from normscope.errors import InputError

SEPARATORS = (",", ";", "\t")


class LabelledTable(NamedTuple):
    """The content of a file, with the line number of each sample."""

    file: str
    samples: Floats  # (m, d)
    labels: list[str]
    lines: list[int]
    columns: list[str]  # names of the channels: from the header row, or numbers from 1
    label: str  # the name of the column of labels


def table_for(
    result: object, against: str | os.PathLike[str] | None = None, label: str | None = None
) -> LabelledTable | None:
    """The file of samples that `normscope.verify` compares a network with; None if none is given."""
    if against is None and label is not None:
        raise InputError(f"label names a column of a file of samples: give the file as well, got {quoted(label)} alone")
    return None if against is None else read_labelled_table(Path(against), label)


def read_labelled_table(path: Path, label: str | None = None) -> LabelledTable:
    """Read a UTF-8 file. label: the number (from 1) or name of the column of labels; without it, the last one.

    The first line is a header row if one of its cells, other than the label's, is not a number.
    """
    lines = _lines(path)
    first = [cell.strip() for cell in lines[0][1]]
    place = _place_of(label, path, first)
    names, rows = [str(number) for number in range(1, len(first) + 1)], lines
    if any(_number(cell) is None for column, cell in enumerate(first) if column != place):
        names, rows = first, lines[1:]
    if not rows:
        raise InputError(f"{path} must hold samples below its header row, got none")
    if len(names) < 2:
        raise InputError(f"{path} must have a column of labels and at least one of numbers, got {len(names)} columns")
    samples = np.empty((len(rows), len(names) - 1))
    labels, channels = [], [column for column in range(len(names)) if column != place]
    for row, (line, cells) in enumerate(rows):
        if len(cells) != len(names):
            raise InputError(
                f"{path}, line {line}: expected {len(names)} columns, as in the first line, got {len(cells)}"
            )
        for channel, column in enumerate(channels):
            value = _number(cells[column])
            if value is None:
                got = quoted(cells[column].strip()) if cells[column].strip() else "nothing"
                raise InputError(
                    f"{path}, line {line}, column {shortened(names[column], 80)}: "
                    f"expected a finite number, got {got}; "
                    "fill in or remove lines with missing values"
                )
            samples[row, channel] = value
        if not cells[place].strip():
            raise InputError(
                f"{path}, line {line}, column {shortened(names[place], 80)}: expected a label, got nothing"
            )
        labels.append(cells[place].strip())
    return LabelledTable(
        str(path), samples, labels, [line for line, _ in rows], [names[column] for column in channels], names[place]
    )


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line that is not empty, with its number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} must be a UTF-8 text file of columns, got other bytes") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(text.splitlines(), delimiter=separator)
    try:
        found = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: expected columns of numbers and labels: {first_line(error)}: "
            "a quotation mark may be missing"
        ) from None
    if not found:
        raise InputError(f"{path} must hold samples, but it is empty")
    return found


def _place_of(label: str | None, path: Path, first: Sequence[str]) -> int:
    """Which column holds the labels."""
    if label is None:
        return len(first) - 1
    numbers = [str(number) for number in range(1, len(first) + 1)]
    if label in numbers:
        return numbers.index(label)
    if label in first:
        return first.index(label)
    raise InputError(
        f"--label must name a column of {path} or be its number from 1 to {len(first)}, got {quoted(label)}; "
        f"the first line holds {shortened(', '.join(first[:8]), 160)}"
    )


def _number(cell: str) -> float | None:
    """The finite number in a cell, if there is one."""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
