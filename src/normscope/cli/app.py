"""The command line: arguments and exit codes, nothing else.

0: done; 1: something that was checked does not hold, or an error was found; 2: bad input; 141 in a shell: the reader
closed the pipe, as `| head` does (the process ends by SIGPIPE, as other tools do).
"""

import atexit
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import normscope
from normscope.cli import commands
from normscope.cli.options import RESEARCH, printable
from normscope.errors import InputError, NormscopeError, PieceWarning
from normscope.models.transformers_library import NotFollowedWarning, no_network

PANELS = {  # of `normscope --help`, in this order
    "The three that most people need": ("check", "report", "ranges"),
    "Questions": ("inspect", "spikes", "keys", "vocab", "separability"),
    "Rewrites": ("fold",),
    RESEARCH: ("memorize", "shatter"),
    "Other": ("verify", "playground"),
}
LONGEST_LINE, LONGEST_QUOTE = 500, 200  # characters of a message, and of typer's message about an argument


class _Commands(TyperGroup):
    """The commands; errors in their arguments take a few lines, however long the arguments are."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _shortened():
            return super().make_context(*arguments, **options)

    def invoke(self, *arguments: Any) -> Any:
        with _shortened():
            return super().invoke(*arguments)

    def get_help_option(self, ctx: Any) -> Any:
        _show_help_without_a_value(self.commands.values(), ctx)
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option


def _show_help_without_a_value(commands: Iterable[Any], context: Any) -> None:
    """Typer would show --help with the value <bool>."""
    for each in commands:
        if (option := each.get_help_option(context)) is not None:
            option.metavar = ""
        _show_help_without_a_value(getattr(each, "commands", {}).values(), context)


@contextmanager
def _shortened() -> Iterator[None]:
    """Shorten typer's messages about arguments."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "exit_code") and isinstance(getattr(error, "message", None), str):
            from normscope.checks import shortened

            error.message = shortened(error.message, LONGEST_QUOTE)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    help="What the normalization layers of a neural network do.",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for panel, names in PANELS.items():
    for name in names:
        app.command(rich_help_panel=panel)(getattr(commands, name))


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print the version and stop.")] = False,
    max_gigabytes: Annotated[
        float | None,
        typer.Option(help="Memory that a file may ask for beyond its own size. Default: 1.", show_default=False),
    ] = None,
    max_modules: Annotated[
        int | None,
        typer.Option(help="Modules that a config.json may describe. Default: 50000.", show_default=False),
    ] = None,
) -> None:
    if max_gigabytes is not None:
        from normscope.checks import allow_memory

        before = allow_memory(max_gigabytes)
        context.call_on_close(lambda: allow_memory(before))
    if max_modules is not None:
        from normscope.models.config_rules import allow_modules

        most = allow_modules(max_modules)
        context.call_on_close(lambda: allow_modules(most))
    if version:
        print(normscope.__version__)
        raise typer.Exit


def _add_commands_of_others() -> None:
    """Add the commands of installed packages, such as `normscope_lab`; one that fails is reported and skipped."""
    for entry in entry_points(group="normscope.commands"):
        try:
            entry.load()(app)
        except Exception as error:  # all other commands must still work
            _tell(f"commands of {entry.name} ({entry.value}) can't be loaded: {type(error).__name__}: {error}")


def collect_rarely() -> None:
    """Libraries and graphs stay: to look for garbage among them takes a tenth of the time, and a second at the end."""
    gc.set_threshold(50_000, 20, 50)
    atexit.register(gc.freeze)


def wait_asleep() -> None:
    """Threads of torch that wait for others soon sleep, if the user did not decide how they wait.

    They would spin for milliseconds. Where other programs use the cores too, those that spin keep the others from
    work: folding a model of 135M parameters took 100 s of CPU time beside two such programs, and takes 9 s so.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "1000"  # read when torch is loaded


def main() -> None:
    """Run the application; an error that the user can fix becomes one line and exit code 2."""
    if hasattr(signal, "SIGPIPE"):  # not on Windows
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode gets question marks, not a traceback
    collect_rarely()
    wait_asleep()
    os.environ["USE_HUB_KERNELS"] = "NO"  # transformers would look for faster code on the hub
    try:
        if any("\0" in argument for argument in sys.argv):
            raise InputError("arguments must not contain null characters")
        with no_network(), _notes_in_one_line():
            app(prog_name="normscope")
    except (NormscopeError, OSError, MemoryError) as error:
        _tell(_said(error))
        sys.exit(2)


@contextmanager
def _notes_in_one_line() -> Iterator[None]:
    with warnings.catch_warnings():
        for shown in (NotFollowedWarning, PieceWarning):
            warnings.simplefilter("always", shown)
        show_others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, (NotFollowedWarning, PieceWarning)):
                _tell(f"note: {message}")
            else:
                show_others(message, category, *place, **options)

        warnings.showwarning = show
        yield


def _tell(line: str) -> None:
    from normscope.checks import shortened

    print(f"normscope: {shortened(printable(line), LONGEST_LINE)}", file=sys.stderr)


def _said(error: NormscopeError | OSError | MemoryError) -> str:
    """The message of an error; that of an OSError starts with the file."""
    if isinstance(error, MemoryError):
        return "there is not enough memory for this on this machine"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


_add_commands_of_others()
