"""normscope bench keys and normscope bench keys-agreement"""

from typing import Annotated

import typer

from normscope.cli.options import (
    ForceFlag,
    JsonFlag,
    PictureOption,
    picture_of,
    require_picture,
    show,
    tell_written,
    write,
)


def bench_keys(
    json: JsonFlag = False,
    picture: PictureOption = None,
    force: ForceFlag = False,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="A few small sets, to see that it runs: no figures.")
    ] = False,
) -> None:
    """Which keys can win, against the published procedure and a linear program per key (about ten minutes)."""
    require_picture(picture, force)
    from normscope_lab.bench.keys_bench import FULL, QUICK, run
    from normscope_lab.bench.keys_picture import key_growth_picture

    result = run(QUICK if quick else FULL)
    contents = picture_of(picture, lambda: key_growth_picture(result))
    write(contents)
    show(result, json)
    tell_written(contents)


def bench_keys_agreement(
    keys: Annotated[int, typer.Option(help="Compare on at least so many keys.", min=1)] = 20_000,
    json: JsonFlag = False,
) -> None:
    """Verdicts key by key against linear programs; exit code 1 if any differs (about two minutes)."""
    from normscope_lab.bench.keys_agreement import run

    result = run(keys)
    show(result, json)
    if not result.holds:
        raise typer.Exit(1)
