"""normscope bench: one command for each measurement."""

from typing import Annotated

import typer

from normscope.cli.bench_fold import bench_fold
from normscope.cli.bench_keys import bench_keys, bench_keys_agreement
from normscope.cli.bench_lng import bench_lng
from normscope.cli.bench_memorize import bench_memorize
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

bench = typer.Typer(help="Measure normscope against what you would use instead.", no_args_is_help=True)
bench.command("keys")(bench_keys)
bench.command("keys-agreement")(bench_keys_agreement)
bench.command("fold")(bench_fold)
bench.command("lng")(bench_lng)
bench.command("memorize")(bench_memorize)


@bench.command("axes")
def bench_axes(
    json: JsonFlag = False,
    picture: PictureOption = None,
    force: ForceFlag = False,
    size: Annotated[list[int] | None, typer.Option(help="N to compare at; may be repeated.", min=2)] = None,
) -> None:
    """Semi-axes and axes of a LayerNorm, against torch.linalg.eigvalsh and eigh (about five minutes)."""
    require_picture(picture, force)
    from normscope_lab.bench.axes_bench import SIZES, run
    from normscope_lab.bench.axes_picture import growth_picture

    result = run(size or SIZES)
    contents = picture_of(picture, lambda: growth_picture(result))
    write(contents)
    show(result, json)
    tell_written(contents)


@bench.command("inspect")
def bench_inspect(json: JsonFlag = False) -> None:
    """A checkpoint of 70B shape, inspected without loading it: CPU time and peak memory of a new process."""
    from normscope_lab.bench.inspect_bench import run

    show(run(), json)


@bench.command("vocab")
def bench_vocab(json: JsonFlag = False) -> None:
    """Own directions over a table of GPT-2's shape, 50,257 × 768, and their check (about five minutes)."""
    from normscope_lab.bench.vocab_bench import run

    show(run(), json)
