"""normscope reproduce"""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from normscope.cli.options import LOCAL, EngineOption, WorkersOption, command, engine_of
from normscope.errors import InputError

SPEED_SECONDS = 3600.0  # the time left is estimated from the last hour: an epoch may take minutes
PARTS = 1_000_000  # of the bar
LINE_SECONDS = 60.0  # between lines in a file
Told = Callable[[float, int, int], None]


@command(saves=False)
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of the experiment; --list shows all.", show_default=False)
    ] = None,
    preset: Annotated[
        str, typer.Option(help="quick: minutes to an hour; paper: the published scale, as far as it is known.")
    ] = "quick",
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds.", show_default="that of the preset", min=1)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Folder of the run; resumed if it exists.",
            show_default="reproductions/NAME-PRESET",
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder or file with the data that the experiment needs.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value of a setting; may be repeated."),
    ] = None,
    engine: EngineOption = LOCAL,
    workers: WorkersOption = None,
    list_all: Annotated[bool, typer.Option("--list", metavar="", help="Show all experiments and stop.")] = False,
) -> Any:
    """Run an experiment of a paper, beside the published figures; an interrupted run is resumed."""
    if list_all:
        from normscope_lab.engine.experiment import experiments_list

        return experiments_list()
    if name is None:
        raise InputError("NAME must be an experiment: normscope reproduce --list shows all")
    from normscope_lab.engine.runs import parsed_change
    from normscope_lab.engine.runs import reproduce as study

    with engine_of(engine, workers) as where, _bar(name) as progress:
        return study(
            name,
            out or Path("reproductions") / f"{name}-{preset}",
            preset=preset,
            seeds=seeds,
            data=data,
            changes=dict(parsed_change(each) for each in changes or []),
            engine=where,
            command=shlex.join(["normscope", *sys.argv[1:]]),
            progress=progress,
        )


@contextmanager
def _bar(name: str) -> Iterator[Told]:
    """A bar on standard error with the time left; where that is no terminal, a line now and then."""
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
            if not begun:  # what an earlier process did does not count for the speed of this one
                bar.reset(task, completed=round(PARTS * done))
                begun = True
            bar.update(task, completed=PARTS * done, description=f"{name}: {finished} of {cells} cells")

        yield told


def _lines(name: str, every: float) -> Told:
    """Lines on standard error, at least `every` seconds apart, for a run whose output goes to a file."""
    start = last = monotonic()
    before: float | None = None  # the share that an earlier process had done

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
