"""The samples of a file, memorised by a network of LayerNorms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from normscope.capacity.memorizing import memorize
from normscope.capacity.samples import contradictions, refuse_contradictions
from normscope.models.labelled_table import read_labelled_table
from normscope.progress import Progress, silent
from normscope.results.memorized import Memorized


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
        The network and its samples; labels are text.
    """
    table = read_labelled_table(file, label)
    names = np.array(table.labels)
    pairs = contradictions(table.samples + 0.0, names)
    if pairs:
        refuse_contradictions(pairs, names, f"equal ones in lines of {file}", table.lines)
    found = memorize(table.samples, names, progress=progress, **options)
    return replace(found, file=str(file), label_column=table.label)
