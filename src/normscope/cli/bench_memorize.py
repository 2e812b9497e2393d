"""normscope bench memorize"""

from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, progress, show


def bench_memorize(
    json: JsonFlag = False,
    samples: Annotated[
        list[int] | None, typer.Option(help="So many samples, and only these tasks; may be repeated.", min=4)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each task.", min=1)] = 5,
) -> None:
    """Depth, time and certificates of networks that memorise random labels (about half an hour)."""
    from normscope_lab.bench.memorize_bench import OTHER_TASKS, SIZES, run

    show(run(samples or SIZES, () if samples else OTHER_TASKS, seeds, progress), json)
