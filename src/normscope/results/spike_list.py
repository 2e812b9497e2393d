"""`normscope.spikes`: channels of the residual stream that one token can make far larger than the others."""

from dataclasses import dataclass, field
from typing import Annotated

from normscope.checks import Floats
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.layer_ranges import Grade, share
from normscope.results.result import Result


@dataclass(frozen=True)
class Spike:
    """A channel that a layer can write, ranked by its bound over the median bound of the layer's channels."""

    layer: Annotated[int | None, Column("layer", "Number of the layer in its list; none outside lists.")]
    channel: Annotated[int, Column("channel", "The channel of the stream.")]
    bound: Annotated[float, Column("bound", "The largest value that can be written there, whatever the input.", ".6g")]
    reached: Annotated[
        float | None,
        Column("reached", "What the model's own operations wrote for an input of the norm before.", ".6g"),
    ]
    times_median: Annotated[
        float, Column("times median", "The bound over the median bound of the channels that the layer writes.", ".1f")
    ]
    observed: Annotated[float | None, Column("on the text", "The largest value there on the text.", ".4g")]
    used: Annotated[float | None, Column("used", "That over the bound.", share, brief=False)]
    token: Annotated[str | None, Column("at token", "The token at which it was largest, and its place in the text.")]
    module: Annotated[str, Column("module", "What writes it.")]
    norm: Annotated[str | None, Column("norm", "The norm before it.", brief=False)]
    direction: Annotated[
        str | None,
        Column("triggered by", "Channels of the norm's input that make up most of the direction.", brief=False),
    ]
    readers: Annotated[
        tuple[str, ...],
        Column(
            "read by",
            "Later layers that weigh this channel most, against their median channel.",
            ", ".join,
            brief=False,
        ),
    ]
    grade: Annotated[Grade | None, Column("bound is", "tight: with a certificate; otherwise cheap.", brief=False)]
    input: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)  # of the norm


@dataclass(frozen=True, repr=False)
class SpikeList(
    Result,
    kind="spike_list",
    remarked_by="normscope.rules.spike_list:remarks",
    plotted_by="normscope.report.spike_picture:draw",
):
    """Channels that could carry massive activations, the most outstanding first.

    `peaks` has the bound of every channel for each of the layers that write to the stream, named in `writers`, and
    `seen` the largest absolute value of each on the text.
    """

    model: str
    spikes: Annotated[
        tuple[Spike, ...],
        Table(
            "Channels of the stream of {0.model} that stand out, over all inputs",
            "No layer writes to a stream.",
            most=12,
        ),
    ]
    writers: tuple[str, ...]
    text: str | None = None
    peaks: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, compare=False)
    seen: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, compare=False)

    def __repr__(self) -> str:
        first = self.spikes[0] if self.spikes else None
        said = "none" if first is None else f"layer {first.layer}, channel {first.channel}: ±{abs(first.bound):.4g}"
        return f"SpikeList({self.model}: {len(self.writers)} layers write to the stream; first {said})"
