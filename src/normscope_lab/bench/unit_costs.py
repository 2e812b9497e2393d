"""What a unit of each kind of work costs on one core, and from that what a model of 405B with a corpus takes.

Each figure is CPU time on one thread, of a unit that costs the same at every width or was measured at that of the
model: nothing is continued to sizes that were not measured.
"""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.studies.key_verdicts import Question, verdict
from normscope.studies.landing import LandingGatherer
from normscope.studies.ranges import ranges
from normscope_lab.bench import vocab_bench
from normscope_lab.bench.inspect_bench import LLAMA_405B, Shape, make_checkpoint
from normscope_lab.bench.key_sets import KINDS
from normscope_lab.bench.new_processes import run_command
from normscope_lab.bench.timing import cpu_seconds, one_thread
from normscope_lab.results.scale_speed import Estimate, UnitCost

TOKENS = 10**9  # of the corpus
NODES, CORES = 8, 64  # and cores of each
SEQUENCE = 1024  # tokens whose keys compete


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    model: Shape
    rows: int  # inputs of a norm
    square: int  # rows and columns of matrices that are multiplied
    sets: int  # of keys
    layer: tuple[int, int]  # channels and neurons of a model whose ranges are computed
    vocabulary: tuple[int, int]  # tokens, channels


FULL = Sizes(LLAMA_405B, 64, 4096, 4, (1024, 14_336), (20_000, 768))  # so many neurons get no quadratic bounds
QUICK = Sizes(Shape(2, 64, 128, 4, 2, 300, shards=2), 8, 64, 1, (64, 128), (300, 12))


def measured(sizes: Sizes, progress: Progress = silent) -> tuple[UnitCost, ...]:
    """The cost of one unit of each kind of work."""
    found: list[UnitCost] = []
    kinds = [_checkpoint, _norm, _product, _head, _ranges, _tokens]
    with one_thread():
        for kind in progress(kinds, "costs of units"):
            found += kind(sizes)
    return tuple(found)


def _checkpoint(sizes: Sizes) -> list[UnitCost]:
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder), sizes.model)
        ended = run_command("inspect", folder, "--json")
    return [UnitCost("inspect", "checkpoint", sizes.model.hidden, ended.cpu_seconds)]


def _norm(sizes: Sizes) -> list[UnitCost]:
    """Inputs of one RMSNorm, as `inspect --text` gathers them where full fits have no room."""
    rng, width = np.random.default_rng(0), sizes.model.hidden
    gatherer = LandingGatherer(Norm(gain=1 + 0.1 * rng.normal(size=width), project=False), full_fit=False)
    inputs = rng.normal(size=(2 * sizes.rows, width))
    gatherer.add(inputs[: sizes.rows])  # compiled
    _, seconds = cpu_seconds(gatherer.add, inputs[sizes.rows :])
    return [UnitCost("inspect --text", "token of a norm", width, seconds / sizes.rows)]


def _product(sizes: Sizes) -> list[UnitCost]:
    size = sizes.square
    matrix = torch.ones(size, size)
    torch.mm(matrix, matrix)
    _, seconds = cpu_seconds(torch.mm, matrix, matrix)
    return [UnitCost("the model itself", "parameter and token", size, seconds / size**3)]


def _head(sizes: Sizes) -> list[UnitCost]:
    rng, channels = np.random.default_rng(0), sizes.model.hidden // sizes.model.heads
    keys = [KINDS["anisotropic"](SEQUENCE, channels, rng).astype(np.float64) for _ in range(sizes.sets + 1)]
    asked = [Question((0,), 0, np.arange(SEQUENCE), None, each) for each in keys]
    verdict(asked[0])  # compiled
    _, seconds = cpu_seconds(lambda: [verdict(each) for each in asked[1:]])
    return [UnitCost("keys", f"head of {SEQUENCE} keys", channels, seconds / sizes.sets)]


def _ranges(sizes: Sizes) -> list[UnitCost]:
    """A parameter of two layers minus one, so that what is not repeated does not count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    channels, neurons = sizes.layer
    heads = max(1, channels // 64)

    def model(layers: int) -> torch.nn.Module:
        torch.manual_seed(0)
        return LlamaForCausalLM(  # type: ignore[no-untyped-call]
            LlamaConfig(
                hidden_size=channels,
                intermediate_size=neurons,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=max(1, heads // 8),
                vocab_size=64,
            )
        )

    models = [model(1), model(2)]
    ranges(models[0], tight=0, limit="float32")  # compiled
    one, two = (cpu_seconds(lambda each=each: ranges(each, tight=0, limit="float32"))[1] for each in models)
    small, large = (sum(parameter.numel() for parameter in each.parameters()) for each in models)
    return [UnitCost("ranges", "parameter", channels, max(two - one, 1e-9) / (large - small))]


def _tokens(sizes: Sizes) -> list[UnitCost]:
    tokens, channels = sizes.vocabulary
    (row,) = vocab_bench.run(tokens, channels).runs
    pairs = tokens**2 * channels
    return [
        UnitCost(
            "vocab", "pair of tokens and channel", channels, (row.own_direction_seconds + row.rest_seconds) / pairs
        ),
        UnitCost("verify of vocab", "pair of tokens and channel", channels, row.check_seconds / pairs),
    ]


def estimated(costs: tuple[UnitCost, ...], model: Shape = LLAMA_405B) -> tuple[Estimate, ...]:
    """What the model with the corpus takes, by these costs."""
    norms, cores = 2 * model.layers + 1, NODES * CORES
    parameters = sum(math.prod(shape) for _, shape in model.tensors())
    pairs = model.vocabulary**2 * model.hidden
    table = [  # question, units, at the same time
        ("inspect", 1.0, 1),
        ("inspect --text", float(norms * TOKENS), NODES),  # a process on each node
        ("the model itself", float(parameters * TOKENS), cores),
        ("keys", float(model.layers * model.key_heads * TOKENS / SEQUENCE), cores),
        ("ranges", float(parameters), 1),
        ("vocab", float(pairs), cores),
        ("verify of vocab", float(pairs), 1),
    ]
    seconds = {cost.question: cost.seconds for cost in costs}
    found = []
    for question, units, at_once in table:
        core_hours = units * seconds[question] / 3600
        found.append(Estimate(question, units, seconds[question], core_hours, at_once, core_hours / at_once))
    return tuple(found)
