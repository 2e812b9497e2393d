"""What commands share: their common arguments, and how results are shown, drawn and written."""

import json as jsonlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

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
FolderArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A folder in Hugging Face format, with weights. Without it: the small GPT that ships with the package.",
        show_default=False,
    ),
]
JsonFlag = Annotated[
    bool, typer.Option("--json", metavar="", help="Print JSON on standard output, and nothing else there.")
]
PictureOption = Annotated[Path | None, typer.Option("--picture", help="Write a picture here: .png, .svg or .pdf.")]
ForceFlag = Annotated[bool, typer.Option("--force", metavar="", help="Replace files that exist.")]
InputsOption = Annotated[
    Path | None,
    typer.Option(help="Call the model, a folder, with the named tensors of this .npz or .safetensors file."),
]
LinesFlag = Annotated[bool, typer.Option("--lines", metavar="", help="Each line of the text is a sequence of its own.")]
DeviceOption = Annotated[str, typer.Option(help="Where to run the model on the text or inputs.")]
DtypeOption = Annotated[str, typer.Option(help="In what to run it: float32, float64, bfloat16 or float16.")]


def text_of(given: str | None) -> str | None:
    """The text that --text names: a file, or the one that ships with the package."""
    if given is None:
        return None
    if given == SAMPLE:
        from normscope.data import sample_text

        return sample_text()
    from normscope.models.load import read_text

    return read_text(Path(given))


def inputs_of(given: Path | None, text: str | None = None, lines: bool = False) -> "dict[str, Tensor] | None":
    """The batch that --inputs names; refused beside a text, as --lines is without one."""
    if lines and text is None:
        raise InputError("--lines needs --text: it is about the lines of a text")
    if given is None:
        return None
    if text is not None:
        raise InputError("--text and --inputs can't be given together: the model runs on one of them")
    from normscope.models.batches import read_inputs

    return read_inputs(given)


def show(result: Any, json: bool) -> None:
    """A result on standard output: as JSON, or as tables."""
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from normscope.report.tables import tables

    console = Console(width=None if sys.stdout.isatty() else 100)
    for part in tables(result):
        console.print(part)


def progress(things: Iterable[Any], what: str) -> Iterable[Any]:
    """A bar on standard error while things are gone through; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        return things
    from rich.console import Console
    from rich.progress import track

    return track(things, what, console=Console(stderr=True), transient=True)


def require_picture(path: Path | None, force: bool) -> None:
    """Refuse a picture that could not be written, before the work begins."""
    from normscope.files import PICTURES

    require_writable(path, PICTURES, force)


def require_writable(path: Path | None, endings: tuple[str, ...], force: bool) -> None:
    if path:
        from normscope.files import require_writable as require

        require(path, force=force, endings=endings)


def picture_of(path: Path | None, draw: "Callable[[], Figure]") -> dict[Path, bytes]:
    """The picture that was asked for, if one was, ready to be written."""
    if path is None:
        return {}
    from normscope.files import drawn

    return {path: drawn(draw(), path)}


def write(contents: Mapping[Path, bytes]) -> None:
    """Write files that were all made before the first is written."""
    if contents:
        from normscope.files import write_whole

        for path, content in contents.items():
            write_whole(content, path)


def tell_written(paths: Iterable[Path]) -> None:
    for path in paths:
        print(f"wrote {printable(str(path))}", file=sys.stderr)


def printable(line: str) -> str:
    """One line that can't move the cursor or change colours, whatever names of files or tensors are in it."""
    return "".join(character if character.isprintable() else "?" for character in line)
