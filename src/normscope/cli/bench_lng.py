"""normscope bench lng"""

from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, show


def bench_lng(
    json: JsonFlag = False,
    quick: Annotated[
        bool, typer.Option("--quick", metavar="", help="One small tensor, to see that it runs: no figures.")
    ] = False,
) -> None:
    """LayerNorm, RMSNorm and LN-G, fused, against torch's ways to the same, forward and backward (some minutes)."""
    from normscope_lab.bench.lng_bench import FULL, QUICK, run

    show(run(QUICK if quick else FULL), json)
