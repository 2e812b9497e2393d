"""normscope: `fold` to a folder, with the certificate; the folder is then loaded as a user would."""

import sys
import tempfile
from pathlib import Path

from folding_case import loaded, main

import normscope


def fold(folder):
    place = tempfile.TemporaryDirectory(dir=folder.parent)  # goes when the function below does
    written = Path(place.name) / "folded"
    folding = normscope.fold(folder, out=written, untie="--untie" in sys.argv)
    for reason in folding.reasons:
        print(f"{reason.part} of {len(reason.norms)} kept: {reason.reason}")
    return lambda: [loaded(Path(place.name) / "folded")] * 2


main(fold, ["normscope"], listed=None)
