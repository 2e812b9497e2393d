"""Check that a saved result proves what it says, without the code that searched for it.

A type of result names its checker (`checked_by`), which is in `normscope.certificates` and imports nothing from the
solvers. A file in which anything is left unchecked is refused when it is loaded.
"""

import os
from inspect import signature
from pathlib import Path
from typing import Any

from normscope.checks import shortened
from normscope.errors import InputError
from normscope.progress import Progress, silent
from normscope.results.result import FOLDER_FILE, load, named
from normscope.results.verification import Verification

LONGEST = 500  # characters of a reason: names of files and columns may be of any length


def verify(
    path: str | os.PathLike[str],
    *,
    against: Any = None,
    label: str | None = None,
    text: Any = None,
    inputs: Any = None,
    progress: Progress = silent,
) -> Verification:
    """Check a saved result again: every certificate, and every number that follows from them.

    Parameters
    ----------
    path
        A file written by `save` or by a command with -o, or a folder written by `fold`.
    against
        What the result must be about, to compare with: an array of keys, a file with the samples of
        `memorize`, the model of `vocab` or `ranges` if it has moved or was in memory, or the original of a folded
        model, a path.
    label
        The column of labels in a file of samples.
    text, inputs
        For a folded model: what to run it and the original on, in float64, one tensor in memory at a time.
    progress
        See `normscope.progress`.

    Returns
    -------
    Verification
        `holds`, and the reason in one sentence.

    >>> import tempfile
    >>> import normscope as ns
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ns.selectable([[0, 0], [4, 0], [0, 4], [1, 1]]).save(f"{folder}/keys.safetensors")
    ...     ns.verify(f"{folder}/keys.safetensors").holds
    True
    """
    target = Path(path)
    if target.is_dir() and not (target / FOLDER_FILE).is_file():
        raise InputError(
            f"{target} must be a file that a command wrote with -o, or a folder that `normscope fold` wrote"
        )
    result = load(target)
    if result.checked_by is None:
        raise InputError(
            f"{target} contains a result of type {result.kind}, which has no certificates to check: files that keys, "
            "vocab, ranges, memorize, shatter and normscope.selectable save, and folders of fold, have them"
        )
    check = named(result.checked_by)
    asked = {"against": against, "label": label, "text": text, "inputs": inputs}
    options = {name: value for name, value in asked.items() if value is not None}
    reread = check if result.reread_by is None else named(result.reread_by)
    for name in sorted(options.keys() - signature(reread).parameters.keys()):
        raise InputError(f"{target} contains a result of type {result.kind}, which takes no {name}")
    if result.reread_by is not None:
        place = {"folder": target} if target.is_dir() else {}
        options = {"against": reread(result, **options, **place)}
    holds, reason = check(result, progress=progress, **options)
    return Verification(str(target), result.kind, shortened(reason, LONGEST), holds)
