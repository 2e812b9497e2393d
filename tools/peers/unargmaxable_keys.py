"""unargmaxable: its search with the exact algorithm, on key sets of a file; runs in an environment that has it.

One call for all keys, as its commands do. Where that stops, its function for one key is called for each, so that one
failure does not hide the other verdicts. Messages of the solver, which it prints and then goes on, are counted.
One JSON object on the last line.
"""

import json
import os
import platform
import sys
import tempfile
from contextlib import contextmanager
from importlib.metadata import distribution, version
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import numpy as np
import stollen

SETTINGS = {"exact_algorithm": "lp_chebyshev", "approx_algorithm": "braid_swap"}


def main():
    arrays = np.load(sys.argv[1])
    stollen.StolenProbabilitySearch(np.eye(3, 2)).find_bounded_classes(**SETTINGS)  # licence read
    rows = [row_of(arrays[f"keys{number}"], arrays.get(f"bias{number}")) for number in range(int(sys.argv[2]))]
    versions = {package: version(package) for package in ("stollen", "gurobipy", "numpy", "scipy")}
    origin = json.loads(distribution("stollen").read_text("direct_url.json") or "{}")
    about = {"python": platform.python_version(), "commit": origin.get("vcs_info", {}).get("commit_id")}
    print("\n" + json.dumps(about | {"versions": versions, "rows": rows}))


def row_of(keys, bias):
    column = None if bias is None else bias.reshape(-1, 1)
    begin, row = cpu_seconds(), {"stopped": None}
    with printed() as lines:
        try:
            search = stollen.StolenProbabilitySearch(keys, b=column)
            selected = [not each["is_bounded"] for each in search.find_bounded_classes(**SETTINGS)]
        except Exception as error:
            row["stopped"], begin = words_of(error), cpu_seconds()
            lines.clear()
            stollen.W, stollen.b = keys, column  # where its function for one key reads them
            selected = [one(key, keys) for key in range(len(keys))]
    refused = [line for line in lines if "too large" in line]  # its greeting speaks of the licence too
    row |= {"refused": len(refused), "words": refused[-1] if refused else None}
    return row | {"cpu_seconds": cpu_seconds() - begin, "selected": selected}


def one(key, keys):
    try:
        return not stollen.class_is_bounded(key, keys.shape, keys.dtype, **SETTINGS)["is_bounded"]
    except Exception:  # counted by the caller
        return None


def words_of(error):
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def cpu_seconds():
    """Of this process and of the workers that ended."""
    uses = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Lines(list):
    """Lines printed so far; `clear` forgets those before it."""

    def __init__(self, file):
        super().__init__()
        self.file, self.begin = file, 0

    def clear(self):
        self.begin = os.fstat(self.file.fileno()).st_size

    def read(self):
        self.file.seek(self.begin)
        self[:] = self.file.read().decode(errors="replace").splitlines()


@contextmanager
def printed():
    """What this process and its workers print."""
    sys.stdout.flush()
    kept = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        lines = Lines(file)
        try:
            yield lines
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)
            lines.read()


if __name__ == "__main__":
    main()
