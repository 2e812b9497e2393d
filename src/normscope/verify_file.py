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
from normscope.results.result import load, named
from normscope.results.verification import Verification

LONGEST = 500  # characters of a reason: names of files and columns may be of any length


def verify(
    path: str | os.PathLike[str], *, against: Any = None, label: str | None = None, progress: Progress = silent
) -> Verification:
    """Check a saved result again: every certificate, and every number that follows from them.

    Parameters
    ----------
    path
        A file written by `save` or by a command with -o.
    against
        What the result must be about, to compare with: an array of keys, a file with the samples of
        `memorize`, or the model of `vocab` or `ranges` if it has moved or was in memory.
    label
        The column of labels in a file of samples.
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
    if target.is_dir():
        raise InputError(f"{target} must be a file that a command wrote with -o, but is a folder")
    result = load(target)
    if result.checked_by is None:
        raise InputError(
            f"{target} contains a result of type {result.kind}, which has no certificates to check: files that keys, "
            "vocab, ranges, memorize, shatter and normscope.selectable save have them"
        )
    check = named(result.checked_by)
    if result.reread_by is not None:
        against, label = named(result.reread_by)(result, against, label), None
    options = {name: value for name, value in (("against", against), ("label", label)) if value is not None}
    for name in options.keys() - signature(check).parameters.keys():
        raise InputError(f"{target} contains a result of type {result.kind}, which takes no {name}")
    holds, reason = check(result, progress=progress, **options)
    return Verification(str(target), result.kind, shortened(reason, LONGEST), holds)
