"""`inspect`, `check` or `report` of many models: a piece for each, one table, and an index page of reports.

TABLE.parts/, REPORTS/.parts/     a file for each finished model, until all of them are in the table: the same command
                                  asks only those that failed or were not reached
"""

import csv
import hashlib
import io
import json
import pickle
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from normscope import __version__
from normscope.check_model import check
from normscope.checks import first_line
from normscope.data import name_of
from normscope.engine import Engine, FailedPiece, or_local
from normscope.errors import InputError, NormscopeError
from normscope.files import TABLES, files_with_times, pyarrow_library, require_writable, write_atomically
from normscope.models.corpus import Corpus
from normscope.models.transformers_library import NotFollowedWarning, no_network
from normscope.progress import Progress, silent, sized
from normscope.report.reports_index import index_page
from normscope.report.terminal import plain_rows
from normscope.report_file import write_report
from normscope.results.inspection import Inspection
from normscope.results.model_list import ModelList, ModelRow
from normscope.results.result import Result
from normscope.studies.inspect import inspect

Asked = Literal["inspect", "check", "report"]
CSV, PARQUET = TABLES
INDEX, TABLE = "index.html", "models.csv"  # in a folder of reports
LACKING = "lacking"  # beside parts: SHA-256 of a table in which models failed
MODEL, FAILED = "model", "failed"  # columns of every table


def ask_many(
    asked: Asked,
    models: Sequence[Path],
    *,
    out: Path | None = None,
    force: bool = False,
    options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> ModelList:
    """Ask the same about many models.

    Parameters
    ----------
    asked
        "inspect", "check" or "report".
    models
        Their paths.
    out
        A table to write, .csv or .parquet: a row for each norm or finding. For reports, a folder, which also gets an
        index page. An interrupted run is resumed, and models that failed are asked again.
    force
        Whether a table or pages that exist are replaced.
    options
        Arguments of the question, such as `text`.
    engine
        Where models are asked, one in each worker. None: in processes of this machine.
    progress
        Called with the models; see `normscope.progress`.

    Returns
    -------
    ModelList
        A row for each model; that of a model that failed has its error.
    """
    if asked == "report" and out is None:
        raise InputError("reports of many models need a folder to be written to: give out")
    folder = out if asked == "report" else None
    table = out if folder is None else folder / TABLE
    parts = None if out is None else folder / ".parts" if folder is not None else out.with_name(f"{out.name}.parts")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    if table is not None and parts is not None:
        require_writable(table, force=force or _lacks_some(table, parts, models), endings=TABLES)
        if table.suffix.lower() == PARQUET:
            pyarrow_library()
    given = dict(options or {})
    if isinstance(text := given.get("text"), Path | Corpus):  # workers may run elsewhere
        given["text"] = replace(text, path=text.path.absolute()) if isinstance(text, Corpus) else text.absolute()
    if parts is not None:
        parts = parts.absolute()
        resumed = _open_parts(parts, asked, given)
        given |= {"force": force or resumed} if asked == "report" else {}
    pages = _page_names(models)
    pieces = [(str(path), path.absolute(), pages[path]) for path in models]
    with or_local(engine) as where, where.shared((asked, given, folder and folder.absolute(), parts)) as shared:
        results = where.run(_part, pieces, given=(shared,), named=itemgetter(0))
        found = [
            _failed(str(path), each.reason) if isinstance(each, FailedPiece) else each
            for path, each in zip(models, progress(sized(results, len(pieces)), asked), strict=True)
        ]
    result = ModelList(asked, tuple(ModelRow(**part["row"]) for part in found))
    if table is not None:
        write_atomically(_table(found, table.suffix.lower()), table)
    if folder is not None:
        write_atomically(index_page(result.models).encode(), folder / INDEX)
    if table is not None and parts is not None and result.failed:
        write_atomically(_digest(table, models).encode(), parts / LACKING)
    elif parts is not None:
        shutil.rmtree(parts, ignore_errors=True)
    return result


def _lacks_some(table: Path, parts: Path, models: Sequence[Path]) -> bool:
    """Whether a table is what a run about the same models wrote that lacks some of them, and nothing else."""
    place = parts / LACKING
    return table.is_file() and place.exists() and place.read_text(encoding="utf-8") == _digest(table, models)


def _digest(table: Path, models: Sequence[Path]) -> str:
    names = json.dumps([str(path.absolute()) for path in models])
    return hashlib.sha256(names.encode() + table.read_bytes()).hexdigest()


def _part(piece: tuple[str, Path, str], task: tuple[Asked, dict[str, Any], Path | None, Path | None]) -> dict[str, Any]:
    """What one model gives, from its file if it was finished before."""
    (name, path, page), (asked, options, folder, parts) = piece, task
    kept = None if parts is None else parts / f"{_key(path, None if folder is None else page)}.json"
    if kept is not None and kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        found["row"] |= _named(name)
        return found
    try:
        with no_network(), warnings.catch_warnings():
            warnings.simplefilter("ignore", NotFollowedWarning)
            part = _asked(asked, path, options, None if folder is None else folder / page)
    except (NormscopeError, OSError) as error:
        return _failed(name, first_line(error))
    part["row"] |= _named(name)
    if kept is not None:
        write_atomically(json.dumps(part).encode(), kept)
    return part


def _asked(asked: Asked, path: Path, options: Mapping[str, Any], page: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    result: Result
    if asked == "inspect":
        result = inspection = inspect(path, **options)
        row |= {"norms": len(inspection.norms), "kinds": _kinds(inspection)}
    else:
        if page is None:
            result = findings = check(path, **options)
        else:
            result = findings = write_report(path, page, **options)
            row["page"] = page.name
        row["unchecked"] = len(findings.unchecked)
        row |= {f"{severity}s": findings.count(severity) for severity in ("error", "warning", "note")}
        row["first"] = findings.findings[0].title if findings.findings else None
    headings, rows = plain_rows(result)
    return {"row": row, "headings": headings, "rows": rows}


def _failed(name: str, reason: str) -> dict[str, Any]:
    return {"row": _named(name) | {"error": reason}, "headings": [], "rows": []}


def _named(name: str) -> dict[str, str]:
    return {"model": name_of(Path(name)), "path": name}


def _kinds(inspection: Inspection) -> str:
    kinds = [norm.kind for norm in inspection.norms]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def _key(path: Path, page: str | None) -> str:
    """The name of a model's part: another one if a file of it was changed since, or if its page is named otherwise."""
    files = files_with_times(path) if path.exists() else []
    return hashlib.sha256(json.dumps([str(path.absolute()), files, page]).encode()).hexdigest()[:24]


def _open_parts(parts: Path, asked: Asked, options: Mapping[str, Any]) -> bool:
    """Begin a run, or make sure that the one that is there asked the same; returns whether there was one."""
    text = options.get("text")
    corpus = Corpus(text) if isinstance(text, Path) else text
    read = [files_with_times(path) for path in corpus.files()] if isinstance(corpus, Corpus) else []
    settings = hashlib.sha256(pickle.dumps((__version__, asked, sorted(options.items()), read))).hexdigest()
    place = parts / "settings"
    if place.exists() and place.read_text(encoding="utf-8") != settings:
        raise InputError(
            f"{parts} holds a run with other options, text or version: repeat that run, or remove the folder"
        )
    resumed = place.exists()
    parts.mkdir(exist_ok=True)
    write_atomically(settings.encode(), place)
    return resumed


def _page_names(models: Sequence[Path]) -> dict[Path, str]:
    """Names of pages, one for each model.

    >>> list(_page_names([Path("a/gpt"), Path("b/gpt"), Path("x y.gguf")]).values())
    ['gpt.html', 'gpt-2.html', 'x-y.gguf.html']
    """
    names: dict[Path, str] = {}
    for path in models:
        stem = "-".join(re.findall(r"[\w.-]+", path.absolute().name)).lstrip(".") or "model"
        tried = [stem, *(f"{stem}-{number}" for number in range(2, len(models) + 2))]
        taken = {*names.values(), INDEX}
        names[path] = next(f"{name}.html" for name in tried if f"{name}.html" not in taken)
    return names


def _table(found: Sequence[Mapping[str, Any]], ending: str) -> bytes:
    """All rows with the model of each; a model without rows has one, with why it failed or with nothing."""
    headings = list(dict.fromkeys(heading for part in found for heading in part["headings"]))
    columns = [MODEL, *(heading for heading in headings if heading != MODEL), FAILED]
    rows: list[dict[str, Any]] = []
    for part in found:
        about = {MODEL: part["row"]["path"], FAILED: part["row"].get("error")}
        rows += [{**dict(zip(part["headings"], row, strict=True)), **about} for row in part["rows"]]
        rows += [] if part["rows"] else [about]
    return _as_csv(columns, rows) if ending == CSV else _as_parquet(columns, rows)


def _as_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _as_parquet(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The same in Parquet: a column is of numbers or booleans if all its values are, and of text if not."""
    arrow, parquet = pyarrow_library()
    values = {name: [None if row.get(name) == "" else row.get(name) for row in rows] for name in columns}
    for name, column in values.items():
        kinds = {type(value) for value in column if value is not None}
        if kinds == {int, float}:
            values[name] = [None if value is None else float(value) for value in column]
        elif len(kinds) > 1:
            values[name] = [None if value is None else str(value) for value in column]
    file = io.BytesIO()
    parquet.write_table(arrow.table(values), file)
    return file.getvalue()
