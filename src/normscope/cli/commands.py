"""Every command: parse arguments, call the library, return a result; `command` saves, draws and shows it."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import (
    COLUMN,
    DEVICE,
    DTYPE,
    LOCAL,
    ColumnOption,
    DeviceOption,
    DtypeOption,
    EngineName,
    EngineOption,
    FolderArgument,
    ForceFlag,
    InputsOption,
    LinesFlag,
    ModelArgument,
    ModelsArgument,
    TextOption,
    WorkersOption,
    command,
    engine_of,
    in_torchrun,
    model_of,
    one_or_several,
    printable,
    progress,
    require_one_piece,
    require_writable,
    run_on,
    stages,
    tell_written,
    told_what_resumes,
    write,
)
from normscope.errors import InputError
from normscope.progress import silent

__all__ = [
    "check",
    "fold",
    "inspect",
    "keys",
    "memorize",
    "playground",
    "ranges",
    "report",
    "separability",
    "shatter",
    "spikes",
    "verify",
    "vocab",
]


class Severity(StrEnum):
    error = "error"
    warning = "warning"
    note = "note"


@command(sarif=True, tables=True)
def check(
    model: ModelsArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="Only these rules: a code (NS102), a name (massive-activation), or a prefix (NS1: all NS1xx); may be "
            "repeated.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Leave these rules out, named as for --select; may be repeated."),
    ] = None,
    severity: Annotated[
        Severity | None, typer.Option(help="Only findings of this severity or above. Default: note.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after this many seconds; what is left is listed as not checked.", min=0)
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="Explain a rule, such as NS102, or all, and stop.")
    ] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    table: Path | None = None,
    force: bool = False,
) -> Any:
    """What is unusual about a model, why it matters, how sure that is, and what to do: the findings of all rules.

    Exit code 1: a finding is an error. 0: none is; there may be warnings and notes. 2: bad input.
    """
    from normscope.check_model import check as ask
    from normscope.cli.check_settings import explanation, settings

    if explain is not None:
        print(explanation(explain))
        raise typer.Exit
    chosen = settings(Path.cwd(), select=select, ignore=ignore, severity=severity, seconds=seconds)
    given = {**run_on(text, inputs, lines, column), **chosen, "device": device, "dtype": dtype}
    one, several = one_or_several(model)
    if several:
        return _ask_many("check", several, given, table, force, engine, workers)
    require_one_piece(engine, workers, table)
    return ask(one, **given, progress=stages())


def _ask_many(
    asked: Any,
    models: list[Path],
    options: dict[str, Any],
    out: Path | None,
    force: bool,
    engine: EngineName,
    workers: int | None,
) -> Any:
    from normscope.many_models import ask_many

    with engine_of(engine, workers) as where:
        return ask_many(asked, models, out=out, force=force, options=options, engine=where, progress=progress)


def report(
    model: ModelsArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the page here (.html). Of several models: a folder for their pages, an index and a table; an "
            "interrupted run is resumed.",
            show_default="report.html, or reports",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds; what is left is listed with its command.", min=0),
    ] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    force: ForceFlag = False,
) -> None:
    """Everything about a model on one page: findings, a map, every norm, ranges, heads, vocabulary, folding."""
    from normscope.files import PAGES
    from normscope.report.finding_blocks import not_run
    from normscope.report_file import write_report
    from normscope.results.finding_list import MARKS

    given = {**run_on(text, inputs, lines, column), "seconds": seconds, "device": device, "dtype": dtype}
    one, several = one_or_several(model)
    if several:
        if out is not None and out.suffix.lower() in PAGES:
            raise InputError(
                f"{out} must be a folder for the reports of {len(several)} models, and is named like a page"
            )
        folder = out or Path("reports")
        with told_what_resumes(folder / ".parts"):
            result = _ask_many("report", several, given, folder, force, engine, workers)
        print(result)
        tell_written([folder / "index.html"])
        if (failure := result.failure()) is not None:
            print(f"normscope: {failure}", file=sys.stderr)
            raise typer.Exit(1)
        return
    require_one_piece(engine, workers)
    page = out or Path("report.html")
    findings = write_report(one, page, force=force, **given, progress=stages())
    for finding in findings.findings:
        print(printable(f"{MARKS[finding.severity]} {finding.title}"))
    if findings.unchecked:
        print(f"{not_run(findings)} The page says why.")
    tell_written([page])


class Quantizer(StrEnum):
    llm_compressor = "llm-compressor"


@command(picture=True, tables=True, divides=True)
def inspect(
    model: ModelsArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    recipe: Annotated[
        Quantizer | None,
        typer.Option(
            help="Print a recipe for this quantizer instead: which linear layers read which norm (YAML). MODEL must be "
            "a folder, with weights, or a .gguf file."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --recipe: check this recipe (YAML) instead. Exit code 1: a mapping would change the model.",
        ),
    ] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    table: Path | None = None,
    force: bool = False,
    parts: Path | None = None,
) -> Any:
    """Every norm of a model: its kind, the ellipsoid of its outputs, and with a text where real inputs land."""
    if against is not None and recipe is None:
        raise InputError("--against needs --recipe llm-compressor: it says which quantizer the recipe is for")
    one, several = one_or_several(model)
    if recipe is not None:
        from normscope.rewrite.recipe import check_recipe
        from normscope.rewrite.recipe import recipe as recipe_of

        if several:
            raise InputError(f"--recipe takes one model, got {len(several)}")
        given = {**run_on(text, inputs, lines, column), "device": device, "dtype": dtype, "progress": progress}
        return recipe_of(one, **given) if against is None else check_recipe(one, against, **given)
    if text is None and inputs is None and (device, dtype) != (DEVICE, DTYPE):
        raise InputError("--device and --dtype need --text or --inputs: without them the model is not run")
    from normscope.studies.inspect import inspect as ask

    given = {**run_on(text, inputs, lines, column), "device": device, "dtype": dtype}
    if several and in_torchrun():
        raise InputError(f"inspect under torchrun takes one model, got {len(several)}: use --engine for several")
    if several:
        return _ask_many("inspect", several, given, table, force, engine, workers)
    require_one_piece(engine, workers, table)
    if in_torchrun():
        return _divided_inspection(one, given)
    return ask(one, **given, parts=parts if text is not None else None, progress=progress)


def _divided_inspection(model: Any, given: dict[str, Any]) -> Any:
    """One share of it: the first process has the result."""
    from normscope.models.subject import Subject
    from normscope.studies.inspect import inspected
    from normscope.studies.ranks import ranks_of_torchrun

    subject = Subject(model, **given)
    subject.require_runs("inspect under torchrun")
    with ranks_of_torchrun() as ranks:
        return inspected(subject, progress if ranks.rank == 0 else silent, ranks)


@command(scales=True)
def ranges(
    model: FolderArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    limit: Annotated[
        str, typer.Option(help="Compare with float16, bfloat16, float8_e4m3, float32, or a number.")
    ] = "float16",
    tight: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="How many outputs of each MLP layer get the slow, tighter bound, or: all. Those that could pass the "
            "limit always do.",
        ),
    ] = "4",
    channel: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER:N", help="One more output that gets the tighter bound; may be repeated."),
    ] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    scales: bool = False,
    parts: Path | None = None,
) -> Any:
    """How far every tensor of a model can go, over all inputs, from the weights alone: will it overflow?"""
    given = {**run_on(text, inputs, lines, column), "device": device, "dtype": dtype, "progress": progress}
    if scales:
        if (limit, tight, channel or None) != ("float16", "4", None):
            raise InputError("--scales cannot be combined with --limit, --tight or --channel: it has its own table")
        if engine != LOCAL or workers is not None:
            raise InputError("--scales cannot be combined with --engine or --workers: it runs in one process")
        from normscope.studies.certified_scales import static_scales

        return static_scales(model_of(model), **given)
    from normscope.studies.ranges import ranges as ask

    if tight != "all" and not tight.isdecimal():
        raise InputError(f"--tight must be a whole number or all, got {tight!r}")
    with engine_of(engine, workers) as where:
        return ask(
            model_of(model),
            limit=limit,
            tight=tight if tight == "all" else int(tight),
            channels=[_layer_and_channel(each) for each in channel or ()],
            **given,
            engine=where,
            parts=parts,
        )


def _layer_and_channel(given: str) -> tuple[str, int]:
    """A layer's name and one of its outputs, as --channel takes them."""
    layer, _, number = given.rpartition(":")
    if not layer or not number.isdecimal():
        raise InputError(
            f"--channel must be a layer and a number, such as model.layers.0.mlp.down_proj:7, got {given!r}"
        )
    return layer, int(number)


@command(picture=True)
def spikes(
    model: FolderArgument = None,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
) -> Any:
    """Massive activations from the weights alone: channels that one token can make far larger than the others."""
    from normscope.studies.spikes import spikes as ask

    return ask(model_of(model), **run_on(text, inputs, lines, column), device=device, dtype=dtype, progress=progress)


class At(StrEnum):
    input = "input"
    output = "output"
    heads = "heads"


class Queries(StrEnum):
    any = "any"
    reachable = "reachable"


class Rivals(StrEnum):
    all = "all"
    causal = "causal"


@command(picture=True)
def keys(
    model: FolderArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    at: Annotated[
        At, typer.Option(help="The keys of each head, or the input or output of the norm before attention.")
    ] = At.heads,
    queries: Annotated[
        Queries, typer.Option(help="Any query, or only those that the head can produce at the last position.")
    ] = Queries.any,
    rivals: Annotated[
        Rivals, typer.Option(help="All keys of the sequence, or only those up to the key's own position.")
    ] = Rivals.all,
    max_keys: Annotated[int | None, typer.Option(help="Only the first N keys of each sequence.", min=1)] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    keep: bool = False,
    parts: Path | None = None,
) -> Any:
    """Which keys of a text no query can give the highest score, and how close heads can come to equal attention."""
    if text is None and inputs is None:
        raise InputError("keys needs a text or inputs: give --text (a file, or 'sample') or --inputs FILE")
    from normscope.studies.keys import keys as ask

    with engine_of(engine, workers) as where:
        return ask(
            model_of(model),
            **run_on(text, inputs, lines, column),
            at=at.value,
            queries=queries.value,
            rivals=rivals.value,
            max_keys=max_keys,
            keep=keep,
            device=device,
            dtype=dtype,
            engine=where,
            parts=parts,
            progress=progress,
        )


@command(saves=False, resumes=True)
def vocab(
    model: ModelArgument = None,
    text: Annotated[
        str | None,
        typer.Option(
            help="Text to run the model on in place of --inputs: a UTF-8 file, a .jsonl or .parquet file, a folder of "
            "these, or a pattern in quotes (sample: a built-in text)."
        ),
    ] = None,
    column: ColumnOption = COLUMN,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="Named tensors, .npz or .safetensors, to see which matrix scores tokens; models of transformers don't "
            "need them. MODEL must be a folder."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds; tokens without a verdict by then are open.", min=0),
    ] = None,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    resume: Path | None = None,
) -> Any:
    """Tokens that can never be the argmax: for any hidden vector, and for outputs of the last norm."""
    from normscope.studies.vocab import vocab as ask

    with engine_of(engine, workers) as where:
        return ask(
            model_of(model),
            **run_on(text, inputs, column=column),
            seconds=seconds,
            resume=resume,
            engine=where,
            progress=progress,
        )


@command()
def separability(
    model: FolderArgument = None,
    *,
    text: Annotated[Path, typer.Option(help="A UTF-8 file: in each line a text, a tab and its label.")],
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
) -> Any:
    """How well labelled texts separate before and after every norm: SSR, and the least that linear maps reach."""
    from normscope.models.labelled_texts import read_labelled
    from normscope.studies.separability import separability as ask

    texts, labels = read_labelled(text)
    return ask(model_of(model), text=texts, labels=labels, device=device, dtype=dtype, progress=progress)


@command(saves=False)
def fold(
    model: FolderArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the folded model to this folder, which must not exist. Without it nothing is written.",
        ),
    ] = None,
    rms: Annotated[
        bool,
        typer.Option(
            "--rms",
            metavar="",
            help="Replace norms by RMSNorm modules, and write the folded model as model.pt2, made by torch.export.",
        ),
    ] = False,
    untie: Annotated[
        bool,
        typer.Option(
            "--untie",
            metavar="",
            help="Give a head tied to the token table its own copy of the matrix, and fold that too.",
        ),
    ] = False,
    rotate: Annotated[
        str | None,
        typer.Option(
            "--rotate",
            metavar="KIND",
            help="Turn streams by an orthogonal matrix: hadamard, random, or a .npy file. Gains are folded first.",
        ),
    ] = None,
    rotate_heads: Annotated[
        bool, typer.Option("--rotate-heads", metavar="", help="With --rotate: also turn the values inside every head.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of a rotation.", min=0)] = 0,
    rescale: Annotated[
        str | None,
        typer.Option(
            "--rescale",
            metavar="TYPE",
            help="Keep streams within a type, such as float16, by powers of two. Without --rotate nothing is folded.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest relative error of rescaled gains that are stored as 1 + w.", min=0),
    ] = 1e-2,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", metavar="", help="Only decide what can be folded, for models of any size: nothing is run."
        ),
    ] = False,
    no_run: Annotated[
        bool,
        typer.Option(
            "--no-run",
            metavar="",
            help="Fold from files to files, tensor by tensor, without loading or running the model: at any size.",
        ),
    ] = False,
    text: TextOption = None,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
    device: DeviceOption = DEVICE,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Data type to store the result in: float32, float64, bfloat16 or float16. Default: as the weights."
        ),
    ] = None,
) -> Any:
    """Fold norms into the weights around them: the same function, certified, and a reason for every norm kept."""
    from normscope.models.float64_run import keep_memory
    from normscope.rewrite.fold import fold as ask

    keep_memory()
    result = ask(
        model_of(model),
        **run_on(text, inputs, column=column),
        out=out,
        rms=rms,
        untie=untie,
        rotate=rotate,
        rotate_heads=rotate_heads,
        seed=seed,
        rescale=rescale,
        tolerance=tolerance,
        plan=plan,
        run=not no_run,
        device=device,
        dtype=dtype,
        progress=progress,
    )
    tell_written([] if out is None else [out])
    return result


@command(picture=True)
def memorize(
    file: Annotated[
        Path, typer.Argument(help="Columns of numbers and one of labels: .csv, with or without a header row.")
    ],
    label: Annotated[
        str | None, typer.Option(help="Column of labels, by its name or number from 1. Default: the last.")
    ] = None,
    method: Annotated[str, typer.Option(help="search: short networks; merge: the published construction.")] = "search",
    dtype: Annotated[str, typer.Option(help="Data type of the network: float64 or float32.")] = "float64",
    eps: Annotated[float, typer.Option(help="eps of the LayerNorms.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="CPU time of the search, before merging takes over.", min=0)] = 600.0,
) -> Any:
    """A network of LayerNorms of width 3 that gives every sample of a file its label, certified."""
    from normscope.studies.memorize import memorize_file

    return memorize_file(
        file, label, method=method, dtype=dtype, eps=eps, seed=seed, seconds=seconds, progress=progress
    )


@command(resumes=True, saves=False)
def shatter(
    depth: Annotated[int, typer.Argument(help="Number of LayerNorms, L.", min=1)],
    points: Annotated[
        int | None,
        typer.Option(help="Number of points, up to 2^L + 1 and 20. Default: 2^L + 1, up to 17.", min=2),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    resume: Path | None = None,
) -> Any:
    """Points and, for every labelling of them, a certified network of L LayerNorms of width 3 that realises it."""
    from normscope.capacity.labellings import shatter as ask

    return ask(depth, points, seed=seed, resume=resume, progress=progress)


@command(saves=False)
def verify(
    file: Annotated[
        Path,
        typer.Argument(
            help="What `keys`, `vocab`, `ranges`, `memorize` or `shatter` saved with -o, a folder of `fold`, or a "
            "result saved in Python."
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Argument(
            help="For a network of `normscope memorize`: the file that it memorises. For a folder of `fold`: the "
            "original. For `vocab` and `ranges`: the model, if it has moved."
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of labels in that file, as for `normscope memorize`.")
    ] = None,
    text: TextOption = None,
    column: ColumnOption = COLUMN,
    inputs: InputsOption = None,
) -> Any:
    """Check every certificate of a saved result, without solving anything, and report what it proves.

    With --text or --inputs, a folded model and its original are run too, in float64, one tensor in memory at a time.
    """
    from normscope.verify_file import verify as check

    return check(file, against=against, label=label, **run_on(text, inputs, column=column), progress=progress)


def playground(
    out: Annotated[Path, typer.Option("-o", "--out", help="Write the page here (.html).")] = Path("playground.html"),
    force: ForceFlag = False,
) -> None:
    """Write a page that shows what norms do in three dimensions, step by step; it takes no model, and works offline."""
    from normscope.files import PAGES
    from normscope.report.playground import playground_html

    require_writable(out, PAGES, force)
    write({out: playground_html().encode()})
    tell_written([out])
