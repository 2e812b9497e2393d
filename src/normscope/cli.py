"""The command line: arguments and exit codes, nothing else.

0: done; 1: a check that was run did not hold; 2: bad input, said in one line; 141 in a shell: whoever read the output
stopped reading, as `| head` does (the process ends by SIGPIPE, as other tools do).
"""

import io
import json as jsonlib
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import normscope

app = typer.Typer(
    help="What the normalization layers of a neural network really do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure normscope against what you would use instead.", no_args_is_help=True)
app.add_typer(bench, name="bench")

SAMPLE = "sample"
DEVICE, DTYPE = "cpu", "float32"
ModelArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A folder in Hugging Face format, or a .safetensors, .gguf, .pt, .pth or .bin file. "
        "Without it: the small GPT that ships with the package.",
        show_default=False,
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
PictureOption = Annotated[Path | None, typer.Option("--picture", help="Write a picture here: .png, .svg or .pdf.")]
ForceFlag = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.command()
def inspect(
    model: ModelArgument = None,
    json: JsonFlag = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here.")] = None,
    picture: PictureOption = None,
    text: Annotated[
        str | None, typer.Option(help="Run the model on this UTF-8 file, or on 'sample', and say where inputs land.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run the model on the text.")] = DEVICE,
    dtype: Annotated[str, typer.Option(help="In what to run it: float32, float64, bfloat16 or float16.")] = DTYPE,
    force: ForceFlag = False,
) -> None:
    """What every norm of a model really is: its kind, the ellipsoid that its outputs fill, where it stands."""
    from normscope.files import PAGES, PICTURES

    _require_writable(html, PAGES, force)
    _require_writable(picture, PICTURES, force)
    if text is None and (device, dtype) != (DEVICE, DTYPE):
        raise ValueError("--device and --dtype need --text: without a text the model is not run")
    words = _text(text)
    from normscope.studies.inspect import inspect as study

    result = study(model, text=words, device=device, dtype=dtype, progress=_progress)
    contents: dict[Path, bytes] = {}  # all made before any is written
    if html:
        from normscope.report.html import render

        contents[html] = render(result).encode()
    if picture:
        from normscope.files import drawn
        from normscope.report.pictures import geometry_picture

        contents[picture] = drawn(geometry_picture(result), picture)
    _write(contents)
    _show(result, json)
    _tell_written(contents)


@app.command()
def ranges(model: ModelArgument = None, json: JsonFlag = False) -> None:
    """The exact output range of every linear layer that reads a norm, over all inputs, from weights alone."""
    from normscope.studies.ranges import ranges as study

    result = study(model)
    _show(result, json)
    if not result.verified:
        print("normscope: an input that should approach its bound did not; see the gaps", file=sys.stderr)
        raise typer.Exit(1)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="Certificates saved by normscope.save_certificates: an .npz file.")],
    json: JsonFlag = False,
) -> None:
    """Check saved certificates again, every one, without the solver that found them."""
    from normscope.separation.storage import verify_certificates

    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    holds, reason = verify_certificates(file)
    print(jsonlib.dumps({"schema_version": 1, "file": str(file), "holds": holds, "reason": reason}) if json else reason)
    if not holds:
        raise typer.Exit(1)


@bench.command("axes")
def bench_axes(
    json: JsonFlag = False,
    picture: PictureOption = None,
    force: ForceFlag = False,
    size: Annotated[list[int] | None, typer.Option(help="N to compare at; may be repeated.", min=2)] = None,
) -> None:
    """Semi-axes and axes of a LayerNorm, against torch.linalg.eigvalsh and eigh (about five minutes)."""
    from normscope.files import PICTURES

    _require_writable(picture, PICTURES, force)
    from normscope.benchmarks.axes import SIZES, run

    result = run(size or SIZES)
    contents: dict[Path, bytes] = {}
    if picture:
        from normscope.files import drawn
        from normscope.report.pictures import growth_picture

        contents[picture] = drawn(growth_picture(result), picture)
    _write(contents)
    _show(result, json)
    _tell_written(contents)


@bench.command("inspect")
def bench_inspect(json: JsonFlag = False) -> None:
    """A checkpoint of 70B shape, inspected without loading it: CPU time and peak memory of a new process."""
    from normscope.benchmarks.inspect import run

    _show(run(), json)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(normscope.__version__)
        raise typer.Exit


def main() -> None:
    """Run the application; what a user can put right becomes one line and exit code 2."""
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    try:
        app(prog_name="normscope")
    except (ValueError, OSError) as error:
        print(f"normscope: {_printable(str(error))}", file=sys.stderr)
        sys.exit(2)


def _text(given: str | None) -> str | None:
    if given is None:
        return None
    if given == SAMPLE:
        from normscope.data import sample_text

        return sample_text()
    from normscope.models.load import read_text

    return read_text(Path(given))


def _show(result: Any, json: bool) -> None:
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from normscope.report.tables import tables

    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in tables(result):
        console.print(part)


def _progress(things: Iterable[Any], what: str) -> Iterable[Any]:
    """A bar on standard error while things are gone through; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        return things
    from rich.console import Console
    from rich.progress import track

    return track(things, what, console=Console(stderr=True), transient=True)


def _require_writable(path: Path | None, endings: tuple[str, ...], force: bool) -> None:
    if path:
        from normscope.files import require_writable

        require_writable(path, force=force, endings=endings)


def _write(contents: Mapping[Path, bytes]) -> None:
    if contents:
        from normscope.files import write_whole

        for path, content in contents.items():
            write_whole(content, path)


def _tell_written(paths: Iterable[Path]) -> None:
    for path in paths:
        print(f"wrote {_printable(str(path))}", file=sys.stderr)


def _printable(line: str) -> str:
    """One line that can't move the cursor or change colours, whatever names of files or tensors are in it."""
    return "".join(character if character.isprintable() else "?" for character in line)
