"""The samples of a file, memorised by a network of LayerNorms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from normscope.capacity.memorizing import memorize
from normscope.capacity.samples import contradictions, refuse_contradictions
from normscope.checks import quoted
from normscope.progress import Progress, silent
from normscope.results.memorized import Memorized
from normscope.studies.labelled_table import read_labelled_table


def memorize_file(file: Path, label: str | None = None, *, progress: Progress = silent, **options: Any) -> Memorized:
    """Read samples and labels from a file of columns and find a network for them.

    Parameters
    ----------
    file
        Columns of numbers and one of labels, separated by commas, semicolons or tabs.
    label
        The column of labels, by its name or number from 1; without it, the last.
    progress, options
        As for `normscope.capacity.memorize`.

    Returns
    -------
    Memorized
        Of labels as text.
    """
    table = read_labelled_table(file, label)
    names = np.array(table.labels)
    pairs = contradictions(table.samples + 0.0, names)
    if pairs:
        refuse_contradictions(pairs, names, f"equal ones in lines of {file}", table.lines)
    found = memorize(table.samples, names, progress=progress, **options)
    return replace(found, file=str(file), label_column=table.label)


def same_samples(result: Memorized, file: Path, label: str | None = None) -> tuple[bool, str]:
    """Whether the samples and labels in a result are those of a file, in the same order; and what differs first."""
    table = read_labelled_table(file, label)
    if table.samples.shape != (result.count, result.channels):
        rows, columns = table.samples.shape
        return False, (
            f"the network was certified on {result.count} samples of {result.channels} channels, "
            f"and {file} has {rows} of {columns}"
        )
    with np.errstate(over="ignore"):
        inputs = table.samples.astype(result.dtype)
    assert result.samples is not None
    differs = (inputs != result.samples).any(axis=1)
    other = np.array([str(name) for name in result.labels.tolist()]) != np.array(table.labels)
    first = np.flatnonzero(differs | other)
    if len(first):
        line = table.lines[first[0]]
        what = "another sample" if differs[first[0]] else f"label {quoted(table.labels[first[0]])}"
        return False, f"line {line} of {file} has {what}, and {len(first):,} of {result.count:,} lines differ in all"
    return True, f"its samples and labels are those of {file}"
