"""normscope bench fold"""

from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, show


def bench_fold(
    json: JsonFlag = False,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="A tiny model, to see that it runs: no figures.")
    ] = False,
) -> None:
    """Speed of a 12 × 768 GPT-2 before and after folding: whole passes and norms alone (half an hour)."""
    from normscope_lab.bench.fold_bench import FULL, QUICK, run

    show(run(QUICK if quick else FULL), json)
