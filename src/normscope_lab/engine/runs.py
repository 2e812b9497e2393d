"""A run of an experiment in a folder: resumed if it was interrupted, its cells side by side.

    config.json     what was run: experiment, preset, seeds, settings, the plan by which it is decided, command, commit,
                    versions; other commits at which it was resumed or judged again
    cells/          a file for each finished cell, and the state of those that are not finished
    results.csv     the rows of all cells
    findings.json   claims of the paper, our figures, verdicts
    *.png, *.html   pictures, and pages where something must be turned to be seen

A cell depends on its settings and its seed alone, so a run that was killed and resumed ends as one that was not.
"""

import csv
import io
import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from normscope import __version__
from normscope.checks import first_line, quoted
from normscope.engine import Engine, or_local
from normscope.errors import InputError
from normscope.files import UNFINISHED, drawn, write_atomically
from normscope_lab.engine.cells import Told, cell_file, run_cells
from normscope_lab.engine.experiment import Cell, Experiment, Settings, as_result, experiment_named
from normscope_lab.engine.statistics import require_scipy
from normscope_lab.engine.tidy_rows import Row
from normscope_lab.results.reproduction import Reproduction

CONFIG_VERSION = 1


def reproduce(
    name: str,
    out: Path,
    *,
    preset: str = "quick",
    seeds: int | None = None,
    data: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    workers: int | None = None,
    engine: Engine | None = None,
    command: str = "",
    progress: Told = lambda done, finished, cells: None,
) -> Reproduction:
    """Run an experiment of a paper in a folder, or resume the run that is there.

    Parameters
    ----------
    name
        The experiment, as on the command line.
    out
        The folder of the run.
    preset, seeds
        "quick" or "paper", and how many seeds; each preset has its own number.
    data
        A folder or file with the data that the experiment needs.
    changes
        Values in place of those of the preset; what they change from the paper is part of the findings.
    workers, engine
        Parallel processes, one per core by default; or an open engine of `normscope.engine`.
    command
        The command line, to be written down.
    progress
        Called with the share that is done, the number of finished cells and that of all cells.

    Returns
    -------
    Reproduction
        Claims of the paper, its figures and ours, verdicts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     changes = {"keys": [8], "channels": [2], "runs": 5}
    ...     reproduce("random-keys", Path(place) / "run", changes=changes, workers=1)
    Reproduction(random-keys, preset quick: 1 holds)
    """
    experiment = experiment_named(name)
    require_scipy()
    if preset not in experiment.seeds:
        raise InputError(f"preset must be one of {', '.join(experiment.seeds)}, got {preset!r}")
    if experiment.data and data is None:
        raise InputError(f"{name} needs --data: {experiment.data}")
    count = experiment.seeds[preset] if seeds is None else seeds
    numbers = tuple(range(experiment.first_seed, experiment.first_seed + count))
    settings = json.loads(json.dumps(changed(experiment.settings(preset, data), changes or {})))
    found = None if data is None else data.resolve()  # workers may run elsewhere
    cells = [replace(cell, data=found) for cell in experiment.cells(settings, numbers)]
    open_folder(out, name, preset, numbers, settings, command, experiment.plan(settings, numbers))
    total = len(cells) + len(experiment.later(settings, numbers, []))
    with or_local(engine, workers) as where:
        run_cells(name, cells, out / "cells", where, progress, total)
        chosen_by = [row for cell in cells for row in finished(out / "cells", cell)["rows"]]
        later = [replace(cell, data=found) for cell in experiment.later(settings, numbers, chosen_by)]
        run_cells(name, later, out / "cells", where, progress, total, before=len(cells))
    cells += later
    for left in (out / "cells").glob(f"{UNFINISHED}*"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    return _judged(experiment, settings, out, preset, numbers, [finished(out / "cells", cell) for cell in cells])


def _judged(
    experiment: Experiment,
    settings: Settings,
    out: Path,
    preset: str,
    seeds: tuple[int, ...],
    cells: Sequence[Mapping[str, Any]],
) -> Reproduction:
    """Write rows, pictures and findings of finished cells."""
    rows: list[Row] = [row for cell in cells for row in cell["rows"]]
    contents = {"results.csv": _as_csv(rows)}
    pictures = {f"{title}.png": figure for title, figure in experiment.pictures(settings, rows).items()}
    contents |= {file: drawn(figure, out / file) for file, figure in pictures.items()}
    pages = {f"{title}.html": page.encode() for title, page in experiment.pages(settings, rows).items()}
    result = Reproduction(
        experiment=experiment.name,
        what=experiment.what,
        source=experiment.source,
        preset=preset,
        seeds=seeds,
        settings=as_result(settings),
        findings=tuple(experiment.findings(settings, rows)),
        pictures=tuple(pictures),
        pages=tuple(pages),
        seconds=float(sum(cell["seconds"] for cell in cells)),
        folder=str(out),
    )
    findings = json.dumps(result.to_dict(), indent=2, allow_nan=False).encode()
    for file, content in (contents | pages | {"findings.json": findings}).items():
        write_atomically(content, out / file)
    return result


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values for some, each of the kind that it had."""
    known = [name for name in settings if name != "data"]
    for name, value in changes.items():
        if name not in known:
            raise InputError(f"settings that can be changed are {', '.join(known)}, got {quoted(name)}")
        if not _is_like(value, settings[name]):
            raise InputError(f"{name} must be above 0 and like {quoted(settings[name])}, got {quoted(value)}")
    return {**settings, **changes}


def parsed_change(text: str) -> tuple[str, Any]:
    """A name and its value as JSON has it, from what --set was given.

    >>> parsed_change("learning_rate=1e-3"), parsed_change("channels=[3, 4]")
    (('learning_rate', 0.001), ('channels', [3, 4]))
    """
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # ValueError: not JSON, or a number of too many digits
        raise InputError(f"--set must be NAME=VALUE, a value like 3, 0.5, true or [3, 4], got {quoted(text)}") from None


def _is_like(value: Any, other: Any) -> bool:
    """Whether a setting can have this value: a boolean, a finite float from 0, a whole number above 0, words, a list.

    >>> _is_like(3, 8), _is_like(0, 8), _is_like(3.5, 8), _is_like([3, 4], [8]), _is_like([], [8]), _is_like(0, 0.5)
    (True, False, False, True, False, True)
    """
    if isinstance(other, list):
        return isinstance(value, list) and bool(value) and all(_is_like(each, other[0]) for each in value)
    if isinstance(other, float):
        return type(value) in (int, float) and 0 <= value < math.inf
    if isinstance(other, (bool, str)):
        return type(value) is type(other) and value != ""
    return type(value) is type(other) and value > 0


def open_folder(
    out: Path,
    name: str,
    preset: str,
    seeds: Sequence[int],
    settings: Settings,
    command: str = "",
    plan: Sequence[str] = (),
) -> None:
    """Write down what is run, or make sure that it is what the folder has."""
    run = {
        "schema_version": CONFIG_VERSION,
        "experiment": name,
        "preset": preset,
        "seeds": list(seeds),
        "settings": settings,
    }
    place = out / "config.json"
    if place.exists():
        there = _json_object(place)
        for part, value in run.items():
            if there.get(part) != value:
                raise InputError(
                    f"{out} holds another run, with {part} {quoted(there.get(part))} in place of {quoted(value)}: "
                    "choose another --out, or remove the folder"
                )
        now, before = _commit(), there.get("continued_at", [])
        if not isinstance(before, list):
            raise InputError(f"{place} is damaged: continued_at must be a list; remove the folder to start again")
        if now and now not in (there.get("commit"), *before):
            write_atomically(json.dumps({**there, "continued_at": [*before, now]}, indent=2).encode(), place)
        return
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no run: choose another --out")
    (out / "cells").mkdir(parents=True, exist_ok=True)
    versions = {library: version(library) for library in ("numpy", "torch", "numba")}
    machine = {"python": platform.python_version(), "normscope": __version__, **versions}
    config = {**run, "plan": list(plan), "command": command, "commit": _commit(), "versions": machine}
    write_atomically(json.dumps(config, indent=2).encode(), place)


def finished(folder: Path, cell: Cell) -> dict[str, Any]:
    """What a finished cell wrote: its rows, and the CPU seconds that it took."""
    path = cell_file(folder, cell)
    found = _json_object(path)
    rows, seconds = found.get("rows"), found.get("seconds")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged (rows must be a list of objects): remove it to run the cell again")
    if type(seconds) not in (int, float):
        raise InputError(f"{path} is damaged (seconds must be a number): remove it to run the cell again")
    return found


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise InputError("it must be a JSON object")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}): remove it, or the folder to start again") from None
    return found


def _commit() -> str | None:
    """The commit of the package's own checkout, if it is one: a package installed in another's is not tracked there."""
    here = Path(__file__)
    try:
        tracked, head = (
            subprocess.run(["git", *command], cwd=here.parent, capture_output=True, text=True, check=False)
            for command in (("ls-files", "--error-unmatch", here.name), ("rev-parse", "HEAD"))
        )
    except OSError:
        return None
    return None if tracked.returncode or head.returncode else head.stdout.strip()


def _as_csv(rows: Sequence[Row]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
