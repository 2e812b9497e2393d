"""What commands share: their common arguments, and how results are saved, drawn and shown."""

import glob
import inspect
import json as jsonlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.errors import InputError, NotCertifiedError
from normscope.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from normscope.engine import Engine

SAMPLE = "sample"
RESEARCH = "Research"  # panel of `normscope --help` with networks that are built, experiments and measurements
LINE_SECONDS = 60.0  # between lines about progress, where they go to a file
DEVICE, DTYPE = "cpu", "float32"
COLUMN = "text"


class EngineName(StrEnum):
    local = "local"
    ray = "ray"
    slurm = "slurm"


LOCAL = EngineName.local
ModelArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A folder in Hugging Face format, or a .safetensors, .gguf, .pt, .pth or .bin file. "
        "Default: a small demo GPT.",
        show_default=False,
    ),
]
ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="A folder in Hugging Face format, or a .safetensors, .gguf, .pt, .pth or .bin file; or several, a pattern "
        "in quotes, or a list with one path a line (@FILE or .txt). Default: a small demo GPT.",
        show_default=False,
        metavar="MODEL",
    ),
]
FolderArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A folder in Hugging Face format, with weights, or a .gguf file. Default: a small demo GPT.",
        show_default=False,
    ),
]
JsonFlag = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on standard output, and nothing else there.")
]
SaveOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Save the result here (.safetensors), with its certificates if it has any."),
]
TableOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--out",
        help="Save the result here (.safetensors). Of several models: write a table of all rows here, .csv or "
        ".parquet; an interrupted run is resumed.",
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Save the result here (.safetensors); resume from it if it exists."),
]
CsvFlag = Annotated[bool, typer.Option("--csv", metavar="", help="Print the main table as CSV, with all columns.")]
AllFlag = Annotated[bool, typer.Option("--all", metavar="", help="Show all columns and tables.")]
PictureOption = Annotated[Path | None, typer.Option("--picture", help="Write a picture here: .png, .svg or .pdf.")]
ScalesOption = Annotated[
    Path | None,
    typer.Option(
        "--scales",
        help="Write certified scales of keys, values and layer inputs for float8_e4m3 here (.safetensors), under the "
        "names that checkpoints use, and show what they cost on the text.",
    ),
]
SarifOption = Annotated[
    Path | None, typer.Option("--sarif", help="Write the findings here in SARIF 2.1.0 (.sarif or .json).")
]
ForceFlag = Annotated[bool, typer.Option("--force", metavar="", help="Replace files that exist.")]
InputsOption = Annotated[
    Path | None,
    typer.Option(
        help="Named tensors to call the model with: .npz or .safetensors. MODEL must be a folder or a .gguf file."
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option(
        help="Text to run the model on: a UTF-8 file, a .jsonl or .parquet file, a folder of these, or a pattern in "
        "quotes (sample: a built-in text). MODEL must hold a tokenizer: a Hugging Face folder or a .gguf file."
    ),
]
ColumnOption = Annotated[str, typer.Option(help="Column of the text in .jsonl and .parquet files.")]
LinesFlag = Annotated[bool, typer.Option("--lines", metavar="", help="Each line of the text is a sequence of its own.")]
DeviceOption = Annotated[
    str, typer.Option(help="Device to run the model on; auto: several, and the disk (needs accelerate).")
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        help="Where independent pieces run: processes of this machine, a Ray cluster (the one at RAY_ADDRESS, or one "
        "for this run), or SLURM jobs."
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(help="Pieces that run at the same time; 1: in this process.", show_default="one per core", min=1),
]
DtypeOption = Annotated[str, typer.Option(help="Data type to run the model in: float32, float64, bfloat16 or float16.")]


def model_of(given: Path | None) -> Path:
    """The model named on the command line, or the demo model."""
    from normscope.data import demo_model

    return demo_model() if given is None else given


def one_or_several(given: list[str] | None) -> tuple[Path, list[Path] | None]:
    """The model to ask, and all of them where several are named."""
    from normscope.models.listed_models import listed

    several = listed(given or [])
    return (several[0] if several else model_of(Path(given[0]) if given else None)), several


def require_one_piece(engine: EngineName, workers: int | None, table: Path | None = None) -> None:
    """Refuse options that only several models have a use for."""
    if table is not None:
        raise InputError(f"{table} must end in .safetensors for one model: a table is of several")
    if (engine, workers) != (LOCAL, None):
        raise InputError("--engine and --workers need several models: one model is one piece of work")


def run_on(text: str | None, inputs: Path | None, lines: bool = False, column: str = COLUMN) -> dict[str, Any]:
    """--text and --inputs as the arguments of a study; with --lines, each line is a text of its own."""
    if lines and text is None:
        raise InputError("--lines needs --text: it splits the text into lines")
    if column != COLUMN and text in (None, SAMPLE):
        raise InputError("--column needs --text with .jsonl or .parquet files: it names the column of their texts")
    if text is not None and inputs is not None:
        raise InputError("--text and --inputs cannot be combined: the model runs on one of them")
    if inputs is not None:
        from normscope.models.batches import read_inputs

        return {"inputs": read_inputs(inputs)}
    if text is None:
        return {}
    if text == SAMPLE:
        from normscope.data import sample_text

        return {"text": sample_text().splitlines() if lines else sample_text()}
    from normscope.models.corpus import Corpus

    if not (os.path.exists(text) or glob.has_magic(text)):
        raise InputError(
            f"{text}: no such file or directory; --text takes a file, a folder, a pattern or '{SAMPLE}', not the text"
        )
    return {"text": Corpus(Path(text), column, lines)}


@contextmanager
def engine_of(name: EngineName, workers: int | None) -> "Iterator[Engine]":
    """The engine that --engine and --workers ask for; only to reach a Ray cluster is a socket opened."""
    from normscope.engine import open_engine
    from normscope.models.transformers_library import network_allowed

    with ExitStack() as stack:
        with network_allowed() if name == EngineName.ray else nullcontext():
            engine = stack.enter_context(open_engine(name.value, workers))
        yield engine


def progress(things: Iterable[Any], what: str) -> Iterable[Any]:
    """A progress bar on standard error while iterating; a line now and then if that is not a terminal."""
    if not sys.stderr.isatty():
        return _told_in_lines(things, what)
    from rich.console import Console
    from rich.progress import track

    return track(things, what, console=Console(stderr=True), transient=True)


def _told_in_lines(things: Iterable[Any], what: str) -> Iterator[Any]:
    """For a log: how many are done and the time left, after a minute and then once a minute."""
    total = len(things) if isinstance(things, Sized) else None
    begun = told = time.monotonic()
    for done, thing in enumerate(things, start=1):
        yield thing
        if (now := time.monotonic()) - told >= LINE_SECONDS:
            told = now
            left = "" if total is None else f" of {total:,}, {(now - begun) / done * (total - done) / 60:.0f} min left"
            print(f"normscope: {what}: {done:,}{left}", file=sys.stderr, flush=True)


def stages() -> Progress:
    """The progress of a command that takes minutes; off a terminal, a line when each stage begins.

    A stage is what stands before the first comma of a description.
    """
    if sys.stderr.isatty():
        return progress
    begun, told = time.monotonic(), set[str]()

    def tell(things: Iterable[Any], what: str) -> Iterable[Any]:
        stage = what.partition(",")[0]
        if stage not in told:
            told.add(stage)
            after = time.monotonic() - begun
            print(f"normscope: {stage} (after {after:.0f} s)", file=sys.stderr, flush=True)
        return things

    return tell


@contextmanager
def told_what_resumes(*kept: Path | None) -> Iterator[None]:
    """On Ctrl-C, say that the same command resumes, if one of these was kept."""
    try:
        yield
    except KeyboardInterrupt:
        for path in kept:
            if path is not None and path.exists():
                print(f"normscope: interrupted; the same command resumes from {printable(str(path))}", file=sys.stderr)
        raise


def require_writable(path: Path | None, endings: tuple[str, ...], force: bool) -> None:
    if path:
        from normscope.files import require_writable as require

        require(path, force=force, endings=endings)


def picture_of(path: Path | None, draw: "Callable[[], Figure]") -> dict[Path, bytes]:
    """The requested picture, if any, ready to be written."""
    if path is None:
        return {}
    from normscope.files import drawn

    return {path: drawn(draw(), path)}


def write(contents: Mapping[Path, bytes]) -> None:
    """Write files whose contents are all complete."""
    if contents:
        from normscope.files import write_atomically

        for path, content in contents.items():
            write_atomically(content, path)


def tell_written(paths: Iterable[Path]) -> None:
    for path in paths:
        print(f"wrote {printable(str(path))}", file=sys.stderr)


def printable(line: str) -> str:
    """One line without control characters, so that names in it can't move the cursor or change colours."""
    return "".join(character if character.isprintable() else "?" for character in line)


def command(
    *,
    picture: bool = False,
    scales: bool = False,
    sarif: bool = False,
    saves: bool = True,
    resumes: bool = False,
    tables: bool = False,
    divides: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a command of a function that returns a result: every command saves, draws and shows it the same way.

    Adds --json, --csv and --all; -o (with `saves`) and --force; --picture (with `picture`); --sarif (with `sarif`);
    --scales (with `scales`): an argument of that name then says whether the result must have scales. A command that
    `resumes` takes the path of -o as its argument `resume`, and saves there by itself. One that writes `tables` of
    several models takes the path as its argument `table` if it ends like a table, and --force as `force`. An argument
    `keep` says whether the result will be saved, and `parts` names the file beside it for the state of a run that is
    not finished, which is removed when the result is written. The exit code is 1 where `Result.failure` says why. Only
    a command that `divides` its work runs under torchrun; the first process has the result, others save nothing.
    """

    def decorated(function: Callable[..., Any]) -> Callable[..., None]:
        own = inspect.signature(function)
        added: dict[str, tuple[Any, Any]] = {}
        if picture:
            added["picture"] = (PictureOption, None)
        if scales:
            added["scales"] = (ScalesOption, None)
        if sarif:
            added["sarif"] = (SarifOption, None)
        if saves or resumes:
            added["save"] = (ResumeOption if resumes else TableOption if tables else SaveOption, None)
        if picture or saves:
            added["force"] = (ForceFlag, False)
        added |= {"json": (JsonFlag, False), "csv": (CsvFlag, False), "everything": (AllFlag, False)}

        def run(*args: Any, **options: Any) -> None:
            form = {name: options.pop(name, default) for name, (_, default) in added.items()}
            table = form["save"] if tables and _is_table(form["save"]) else None
            if tables:
                options |= {"table": table, "force": form["force"]}
                _require_possible_for_several(form, options["model"])
            _require_possible(form | ({"save": None} if table else {}), resumes)
            if not divides and in_torchrun():
                raise InputError(
                    f"{function.__name__} is not divided among processes: run it without torchrun (inspect --text is)"
                )
            if resumes:
                options["resume"] = form["save"]
            if "keep" in own.parameters:
                options["keep"] = form["save"] is not None
            if "parts" in own.parameters:
                options["parts"] = _parts_beside(form["save"])
            if scales:
                options["scales"] = form["scales"] is not None
            try:
                with told_what_resumes(*([form["save"]] if resumes else []), _parts_beside(form.get("save"))):
                    result = function(*args, **options)
            except NotCertifiedError as error:
                _show(error.result, form)
                print(f"normscope: {printable(str(error))}", file=sys.stderr)
                raise typer.Exit(1) from None
            if not divides or os.environ.get("RANK", "0") == "0" or not in_torchrun():
                _finish(result, form, written=resumes or table is not None)

        parameters = [
            each
            for each in own.parameters.values()
            if each.name not in ("keep", "parts", "scales", "table", "force")
            and not (resumes and each.name == "resume")
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        extra = [
            inspect.Parameter(name, keyword, annotation=kind, default=default)
            for name, (kind, default) in added.items()
        ]
        signature = own.replace(parameters=[*parameters, *extra], return_annotation=None)
        for name, value in (
            ("__name__", function.__name__),
            ("__doc__", function.__doc__),
            ("__module__", function.__module__),
            ("__signature__", signature),
            ("__annotations__", {each.name: each.annotation for each in signature.parameters.values()}),
        ):
            setattr(run, name, value)
        return run

    return decorated


def in_torchrun() -> bool:
    """Whether this process is one of several that torchrun started."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "TORCHELASTIC_RUN_ID" in os.environ


def _require_possible(form: Mapping[str, Any], resumes: bool) -> None:
    """Refuse outputs that could not be written or shown, before the work begins."""
    from normscope.files import PICTURES, SARIF
    from normscope.results.result import ENDINGS

    if form["json"] and form["csv"]:
        raise InputError("--json and --csv cannot be combined: both are printed on standard output")
    require_writable(form.get("picture"), PICTURES, form.get("force", False))
    require_writable(form.get("save"), ENDINGS, form.get("force", False) or resumes)
    require_writable(form.get("scales"), ENDINGS, form.get("force", False))
    require_writable(form.get("sarif"), SARIF, form.get("force", False))
    both = [form[name].resolve() for name in ("scales", "save") if form.get(name) is not None]
    if len(both) != len(set(both)):
        raise InputError(f"--scales and -o must be different files, got {form['save']} for both")


def _require_possible_for_several(form: Mapping[str, Any], models: list[str] | None) -> None:
    """Refuse outputs that only one model has, and a table with another ending, if several models are asked."""
    from normscope.files import TABLES
    from normscope.results.result import ENDINGS

    if not one_or_several(models)[1]:
        return
    if form.get("picture") or form.get("sarif"):
        raise InputError("--picture and --sarif take one model, got several")
    if form["save"] is not None and form["save"].suffix.lower() not in (endings := (*TABLES, *ENDINGS)):
        raise InputError(f"{form['save']} must end in {', '.join(endings[:-1])} or {endings[-1]}")


def _parts_beside(path: Path | None) -> Path | None:
    return None if path is None else path.with_name(f"{path.name}.parts")


def _is_table(path: Path | None) -> bool:
    from normscope.files import TABLES

    return path is not None and path.suffix.lower() in TABLES


def _finish(result: Any, form: Mapping[str, Any], written: bool) -> None:
    contents: dict[Path, bytes] = {}
    contents |= picture_of(form.get("picture"), result.plot)
    if form.get("scales") is not None:
        contents[form["scales"]] = result.scales_file()
    if form.get("sarif") is not None:
        from normscope.report.sarif import as_sarif

        contents[form["sarif"]] = jsonlib.dumps(as_sarif(result), indent=2, allow_nan=False).encode()
    if form.get("save") is not None and not written:
        contents[form["save"]] = result.to_bytes()
    write(contents)
    if form.get("save") is not None and not written and (parts := _parts_beside(form["save"])) and parts.is_file():
        parts.unlink()
    _show(result, form)
    tell_written([*contents, *([form["save"]] if written and form["save"] is not None else [])])
    if (failure := result.failure()) is not None:
        print(f"normscope: {failure}", file=sys.stderr)
        raise typer.Exit(1)


def _show(result: Any, form: Mapping[str, Any]) -> None:
    """A result on standard output: as JSON, as CSV, or as tables."""
    if form["json"]:
        print(jsonlib.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    from normscope.report import terminal

    if form["csv"]:
        print(terminal.as_csv(result), end="")
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else terminal.WIDTH)
    terminal.show(result, console, everything=form["everything"])
