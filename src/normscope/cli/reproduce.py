"""normscope reproduce"""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import dumps, loads
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from normscope.cli.options import JsonFlag, show
from normscope.errors import InputError

SPEED_SECONDS = 3600.0  # the time left is judged from the last hour: an epoch may take minutes
PARTS = 1_000_000  # that the bar counts
LINE_SECONDS = 60.0  # between lines in a file
Told = Callable[[float, int, int], None]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list shows all.", show_default=False)] = None,
    preset: Annotated[str, typer.Option(help="quick, or paper: what was published, as far as known.")] = "quick",
    seeds: Annotated[int | None, typer.Option(help="How many seeds; each preset has its own number.", min=1)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the run, continued if it has begun; by default reproductions/NAME-PRESET."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="A folder or file with the data that the experiment needs.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value of a setting; may be given several times."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one a core.", min=1)] = None,
    json: JsonFlag = False,
    list_all: Annotated[bool, typer.Option("--list", metavar="", help="Show all experiments and stop.")] = False,
) -> None:
    """One experiment of the papers, beside the published figures; a run that was interrupted goes on."""
    if list_all:
        _show_all(json)
        return
    if name is None:
        raise InputError("an experiment must be named: normscope reproduce --list shows all")
    from normscope_lab.engine.runs import reproduce as study

    folder = out or Path("reproductions") / f"{name}-{preset}"
    command = shlex.join(["normscope", *sys.argv[1:]])
    with _bar(name) as progress:
        result = study(
            name,
            folder,
            preset=preset,
            seeds=seeds,
            data=data,
            changes=dict(_change(each) for each in changes or []),
            workers=workers,
            command=command,
            progress=progress,
        )
    show(result, json)


def _show_all(json: bool) -> None:
    """Every experiment in a line, or as JSON with what it needs and the settings of its presets."""
    from normscope_lab.experiments.catalogue import experiment_named, names

    experiments = [experiment_named(each) for each in names()]
    if not json:
        for each in experiments:
            print(f"{each.name:16} {each.what} ({each.source})")
        return
    listed = [
        {
            "name": each.name,
            "what": each.what,
            "source": each.source,
            "data": each.data,
            "presets": {
                preset: {"seeds": seeds, "settings": each.settings(preset, None)}
                for preset, seeds in each.seeds.items()
            },
        }
        for each in experiments
    ]
    print(dumps({"schema_version": 1, "experiments": listed}, indent=2))


def _change(text: str) -> tuple[str, Any]:
    """A name and its value as JSON has it.

    >>> _change("learning_rate=1e-3"), _change("channels=[3, 4]")
    (('learning_rate', 0.001), ('channels', [3, 4]))
    """
    name, _, value = text.partition("=")
    try:
        return name, loads(value)
    except (ValueError, RecursionError):  # ValueError: not JSON, or a number of too many digits
        from normscope.checks import quoted

        raise InputError(f"--set must be NAME=VALUE, a value like 3, 0.5, true or [3, 4], got {quoted(text)}") from None


@contextmanager
def _bar(name: str) -> Iterator[Told]:
    """A bar on standard error with the time that is left; where that is no terminal, a line now and then."""
    if not sys.stderr.isatty():
        yield _lines(name, LINE_SECONDS)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, speed_estimate_period=SPEED_SECONDS) as bar:
        task = bar.add_task(name, total=PARTS)
        begun = False

        def told(done: float, finished: int, cells: int) -> None:
            nonlocal begun
            if not begun:  # what an earlier run has done does not count for the speed of this one
                bar.reset(task, completed=round(PARTS * done))
                begun = True
            bar.update(task, completed=PARTS * done, description=f"{name}: {finished} of {cells} cells")

        yield told


def _lines(name: str, every: float) -> Told:
    """Lines on standard error, at least `every` seconds apart, for a run whose output goes to a file."""
    start = last = monotonic()
    before: float | None = None  # what an earlier run had done

    def told(done: float, finished: int, cells: int) -> None:
        nonlocal last, before
        before = done if before is None else before
        now = monotonic()
        if now - last >= every and before < done < 1:
            left = (now - start) * (1 - done) / (done - before)
            print(
                f"{name}: {finished} of {cells} cells, {done:.0%}, {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )
            last = now

    return told
