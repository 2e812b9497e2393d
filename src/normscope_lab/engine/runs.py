"""A run of an experiment in a folder: continued if it was interrupted, its cells in parallel processes.

    config.json     what was run: experiment, preset, seeds, settings, command, commit, versions; other commits that
                    it was continued or judged at
    cells/          one finished cell a file; beside them the state of those that are not finished
    results.csv     the rows of all cells
    findings.json   claims of the paper, our figures, verdicts
    *.png, *.html   pictures, and pages where something must be turned to be seen

A cell depends on its settings and its seed alone, so a run that was killed and continued ends as one that was not.
"""

import csv
import io
import json
import math
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from typing import Any

from normscope import __version__
from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.files import UNFINISHED, drawn, write_whole
from normscope_lab.engine.experiment import Cell, Experiment, Finding, Row, Settings
from normscope_lab.engine.keep import Keep
from normscope_lab.engine.statistics import require_scipy
from normscope_lab.experiments.catalogue import experiment_named

SCHEMA_VERSION = 1
POLL_SECONDS = 0.5
Progress = Callable[[float, int, int], None]  # the share that is done, finished cells, all cells


@dataclass(frozen=True)
class Reproduction:
    """One run, finished: what was asked, and what came out."""

    experiment: str
    what: str
    source: str
    preset: str
    seeds: tuple[int, ...]
    settings: Settings
    findings: tuple[Finding, ...]
    pictures: tuple[str, ...]
    pages: tuple[str, ...]
    seconds: float  # CPU seconds of all cells; of one that was interrupted, since it went on
    folder: str

    def to_dict(self) -> dict[str, Any]:
        found = [{**asdict(finding), "verdict": finding.verdict} for finding in self.findings]
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "findings": found}


def reproduce(
    name: str,
    out: Path,
    *,
    preset: str = "quick",
    seeds: int | None = None,
    data: Path | None = None,
    changes: Mapping[str, Any] | None = None,
    workers: int | None = None,
    command: str = "",
    progress: Progress = lambda done, finished, cells: None,
) -> Reproduction:
    """Run an experiment in a folder, or go on with the run that is there.

    `changes` are values in place of those of the preset; what they make different from the paper is printed.
    """
    experiment = experiment_named(name)
    require_scipy()
    if preset not in experiment.seeds:
        raise InputError(f"preset must be one of {', '.join(experiment.seeds)}, got {preset!r}")
    if experiment.data and data is None:
        raise InputError(f"{name} needs --data: {experiment.data}")
    numbers = tuple(range(experiment.seeds[preset] if seeds is None else seeds))
    settings = json.loads(json.dumps(_changed(experiment.settings(preset, data), changes or {})))
    cells = [replace(cell, data=data) for cell in experiment.cells(settings, numbers)]
    _open_folder(out, experiment, preset, numbers, settings, command)
    _run_all(experiment, cells, out / "cells", workers or os.cpu_count() or 1, progress)
    for left in (out / "cells").glob(f"{UNFINISHED}*"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    finished = [_finished(out / "cells", cell) for cell in cells]
    rows: list[Row] = [row for cell in finished for row in cell["rows"]]
    write_whole(_as_csv(rows), out / "results.csv")
    findings = experiment.findings(settings, rows)
    pictures = experiment.pictures(settings, rows)
    for title, figure in pictures.items():
        path = out / f"{title}.png"
        write_whole(drawn(figure, path), path)
    pages = experiment.pages(settings, rows)
    for title, page in pages.items():
        write_whole(page.encode(), out / f"{title}.html")
    result = Reproduction(
        experiment=name,
        what=experiment.what,
        source=experiment.source,
        preset=preset,
        seeds=numbers,
        settings=settings,
        findings=tuple(findings),
        pictures=tuple(f"{title}.png" for title in pictures),
        pages=tuple(f"{title}.html" for title in pages),
        seconds=sum(cell["seconds"] for cell in finished),
        folder=str(out),
    )
    write_whole(json.dumps(result.to_dict(), indent=2, allow_nan=False).encode(), out / "findings.json")
    return result


def _changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Settings with other values for some, each of the kind that it had."""
    known = [name for name in settings if name != "data"]
    for name, value in changes.items():
        if name not in known:
            raise InputError(f"settings that can be changed are {', '.join(known)}, got {quoted(name)}")
        kind = type(settings[name])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise InputError(f"{name} must be like {quoted(settings[name])}, got {quoted(value)}")
        numbers, like = (value, settings[name]) if kind is list else ([value], [settings[name]])
        if not numbers or not all(_is_like(each, like[0]) for each in numbers):
            raise InputError(f"{name} must be above 0 and like {quoted(settings[name])}, got {quoted(value)}")
    return {**settings, **changes}


def _is_like(value: Any, other: Any) -> bool:
    """Whether a setting can be this value instead: of one type and above 0, or a finite float from 0, or a truth."""
    if isinstance(other, bool) or isinstance(value, bool):
        return type(value) is type(other)
    if isinstance(other, float):
        return isinstance(value, (int, float)) and 0 <= value < math.inf
    return type(value) is type(other) and value > 0


def _open_folder(
    out: Path, experiment: Experiment, preset: str, seeds: Sequence[int], settings: Settings, command: str
) -> None:
    """Write down what is run, or make sure that it is what the folder has."""
    asked = {
        "schema_version": SCHEMA_VERSION,
        "experiment": experiment.name,
        "preset": preset,
        "seeds": list(seeds),
        "settings": settings,
    }
    place = out / "config.json"
    if place.exists():
        there = _json_object(place)
        for part, value in asked.items():
            if there.get(part) != value:
                raise InputError(
                    f"{out} holds another run, with {part} {quoted(there.get(part))}, asked for "
                    f"{quoted(value)}; "
                    "choose another --out, or remove the folder"
                )
        now, before = _commit(), there.get("continued_at", [])
        if not isinstance(before, list):
            raise InputError(f"{place} is damaged: continued_at must be a list; remove the folder to begin anew")
        if now and now not in (there.get("commit"), *before):
            write_whole(json.dumps({**there, "continued_at": [*before, now]}, indent=2).encode(), place)
        return
    if out.exists() and any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no run: choose another --out")
    (out / "cells").mkdir(parents=True, exist_ok=True)
    versions = {name: version(name) for name in ("numpy", "torch", "numba")}
    machine = {"python": platform.python_version(), "normscope": __version__, **versions}
    config = {**asked, "command": command, "commit": _commit(), "versions": machine}
    write_whole(json.dumps(config, indent=2).encode(), place)


def _json_object(path: Path) -> dict[str, Any]:
    """What a run has written to a file; ValueError if it can't have."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({first_line(error)}): remove it, or the folder to begin anew") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is damaged (it is no JSON object): remove it, or the folder to begin anew")
    return found


def _finished(folder: Path, cell: Cell) -> dict[str, Any]:
    """What a finished cell has left: its rows, and the CPU seconds that it took."""
    path = _file_of(folder, cell)
    found = _json_object(path)
    rows, seconds = found.get("rows"), found.get("seconds")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} is damaged (rows must be a list of objects): remove it to run the cell again")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InputError(f"{path} is damaged (seconds must be a number): remove it to run the cell again")
    return found


def _commit() -> str | None:
    """The commit of the package's own checkout, if it is one: a package installed in another's is not tracked there."""
    here = Path(__file__)
    try:
        asked = [
            subprocess.run(["git", *command], cwd=here.parent, capture_output=True, text=True, check=False)
            for command in (("ls-files", "--error-unmatch", here.name), ("rev-parse", "HEAD"))
        ]
    except OSError:
        return None
    return None if any(each.returncode for each in asked) else asked[1].stdout.strip()


def _run_all(experiment: Experiment, cells: Sequence[Cell], folder: Path, workers: int, progress: Progress) -> None:
    missing = [cell for cell in cells if not _file_of(folder, cell).exists()]

    def tell() -> None:
        left = [cell for cell in missing if not _file_of(folder, cell).exists()]
        parts = len(cells) - len(left) + sum(Keep(folder, cell.key).fraction for cell in left)
        progress(parts / max(1, len(cells)), len(cells) - len(left), len(cells))

    tell()
    if workers == 1:
        for cell in missing:
            run_cell(experiment.name, cell, folder)
            tell()
        return
    others = set(active_children())
    with ProcessPoolExecutor(
        min(workers, max(1, len(missing))), mp_context=get_context("spawn"), initializer=_end_with_parent
    ) as pool:
        waiting: set[Future[None]] = {pool.submit(run_cell, experiment.name, cell, folder) for cell in missing}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                tell()
        except BaseException:  # what the other cells have saved is enough to go on from
            for worker in set(active_children()) - others:
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """End a worker with the process that started it, even if that is killed."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_cell(name: str, cell: Cell, folder: Path) -> None:
    """Run one cell on one thread, and leave its rows in a file."""
    import torch
    from threadpoolctl import threadpool_limits

    keep = Keep(folder, cell.key)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            torch.manual_seed(cell.seed)
            start = time.process_time()
            rows = experiment_named(name).run(cell, keep)
            seconds = time.process_time() - start
    finally:
        torch.set_num_threads(before)
    rows = [{name: _finite(value) for name, value in row.items()} for row in rows]
    content = {"key": cell.key, "seed": cell.seed, "seconds": seconds, "rows": rows}
    write_whole(json.dumps(content, allow_nan=False).encode(), _file_of(folder, cell))
    keep.forget()


def _finite(value: str | int | float | None) -> str | int | float | None:
    """A value that JSON has: the loss of a run that diverged is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _file_of(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.key}.json"


def _as_csv(rows: Sequence[Row]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
