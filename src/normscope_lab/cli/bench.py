"""normscope bench: one command for each measurement."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import SAMPLE, TextOption, command, run_on

QuickFlag = Annotated[
    bool, typer.Option("--quick", metavar="", help="A small problem, to see that it runs: its times mean nothing.")
]

bench = typer.Typer(help="Measure normscope against what you would use instead.", no_args_is_help=True)


def bar(things: Iterable[Any], what: str) -> Iterable[Any]:
    """A progress bar on a terminal's standard error, without a thread of its own, whose CPU time would be measured."""
    if not sys.stderr.isatty():
        return things
    from rich.console import Console
    from rich.progress import track

    return track(things, what, console=Console(stderr=True), transient=True, auto_refresh=False)


@bench.command("axes")
@command(picture=True)
def axes(
    size: Annotated[list[int] | None, typer.Option(help="Channels to compare at; may be repeated.", min=2)] = None,
) -> Any:
    """Semi-axes and axes of a LayerNorm, against torch.linalg.eigvalsh and eigh (five minutes)."""
    from normscope_lab.bench.axes_bench import SIZES, run

    return run(size or SIZES, bar)


@bench.command("around")
@command()
def around(quick: QuickFlag = False) -> Any:
    """Outputs around one input, exactly, against interval arithmetic and linear relaxation (a minute)."""
    from normscope_lab.bench.around_bench import FULL, QUICK, run

    return run(QUICK if quick else FULL, bar)


@bench.command("inspect")
@command()
def inspect() -> Any:
    """A checkpoint of 70B shape, inspected without loading it: CPU time and peak memory of a new process."""
    from normscope_lab.bench.inspect_bench import run

    return run()


@bench.command("ranges")
@command()
def ranges(
    model: Annotated[
        list[Path] | None, typer.Option(help="A model to measure; may be repeated. Default: the demo model.")
    ] = None,
    large: Annotated[
        bool, typer.Option("--large", metavar="", help="A checkpoint of 70B shape too: half an hour.")
    ] = False,
) -> Any:
    """Ranges of every tensor: CPU time, memory, and bounds over what was reached (minutes)."""
    from normscope_lab.bench.ranges_bench import run

    return run(model or [], large, bar)


@bench.command("keys")
@command(picture=True)
def keys(quick: QuickFlag = False) -> Any:
    """Which keys are selectable, against the published procedure and a linear program per key (minutes)."""
    from normscope_lab.bench.keys_bench import FULL, QUICK, run

    return run(QUICK if quick else FULL, bar)


@bench.command("keys-agreement")
@command()
def keys_agreement(
    keys: Annotated[int, typer.Option(help="Compare at least this many keys.", min=1)] = 20_000,
) -> Any:
    """Verdicts key by key against linear programs; exit code 1 if any differs (two minutes)."""
    from normscope_lab.bench.agreement_bench import run

    return run(keys, bar)


@bench.command("vocab")
@command()
def vocab() -> Any:
    """Which tokens can be predicted, over a table of GPT-2's shape, 50,257 × 768, and the check (five minutes)."""
    from normscope_lab.bench.vocab_bench import run

    return run()


@bench.command("memorize")
@command()
def memorize(
    samples: Annotated[
        list[int] | None, typer.Option(help="Samples to memorise, in place of all tasks; may be repeated.", min=4)
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each task.", min=1)] = 5,
) -> Any:
    """Depth, time and certificates of networks that memorise random labels (half an hour)."""
    from normscope_lab.bench.memorize_bench import OTHER_TASKS, SIZES, run

    return run(samples or SIZES, () if samples else OTHER_TASKS, seeds, bar)


@bench.command("fold")
@command()
def fold(quick: QuickFlag = False) -> Any:
    """Speed of a GPT-2 of 12 layers before and after folding: whole passes and norms alone (half an hour)."""
    from normscope_lab.bench.fold_bench import FULL, QUICK, run

    return run(QUICK if quick else FULL, bar)


@bench.command("fold-time")
@command()
def fold_time(
    model: Annotated[
        list[Path] | None, typer.Option(help="Folder or .gguf file to fold; may be repeated. Default: the demo model.")
    ] = None,
    peer: Annotated[
        Path | None, typer.Option(help="Python of an environment with transformer-lens, to measure that in turn.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often everything runs.", min=1)] = 5,
) -> Any:
    """CPU time of `normscope fold` in new processes, imports and torch.export apart (a minute per model)."""
    from normscope_lab.bench.fold_time_bench import run

    return run(model or [], peer, rounds, bar)


@bench.command("rotate")
@command()
def rotate(
    model: Annotated[
        Path | None, typer.Option(help="A language model: a folder or a .gguf file. Default: the demo model.")
    ] = None,
    text: TextOption = SAMPLE,
    tokens: Annotated[int, typer.Option(help="Tokens of the text to measure the loss on, at most.", min=16)] = 8192,
    seeds: Annotated[int, typer.Option(help="Rotations to measure.", min=1)] = 3,
    bits: Annotated[
        list[str] | None,
        typer.Option(
            "--round",
            help="Bits of weights and inputs of layers that read a norm, such as W6A6, W4 or A4; with -all, those of "
            "all linear layers. May be repeated.",
        ),
    ] = None,
) -> Any:
    """Loss after rounding weights and inputs: a model as it is, folded, rotated (half an hour for 135M parameters)."""
    from normscope.data import demo_model
    from normscope_lab.bench.rotate_bench import run

    return run(model or demo_model(), run_on(text, None)["text"], tokens, seeds, bits or [], bar)


@bench.command("lng")
@command()
def lng(
    quick: QuickFlag = False,
    device: Annotated[str, typer.Option(help="What to measure: cpu, or cuda for a GPU.")] = "cpu",
) -> Any:
    """LayerNorm, RMSNorm and LN-G, fused, against torch's functions, forward and backward (some minutes)."""
    from normscope_lab.bench.lng_bench import FULL, QUICK, run

    return run(QUICK if quick else FULL, bar, device)


@bench.command("scale")
@command()
def scale(
    quick: QuickFlag = False,
    engine: Annotated[
        list[str] | None, typer.Option(help="An engine to measure; may be repeated. Default: all that are installed.")
    ] = None,
) -> Any:
    """Engines with 1 and 2 workers, what a piece costs, memory against length and size (six minutes, idle machine)."""
    from normscope.models.transformers_library import network_allowed
    from normscope_lab.bench.scale_bench import FULL, QUICK, run

    with network_allowed():  # a Ray cluster on this machine
        return run(QUICK if quick else FULL, engine, bar)
