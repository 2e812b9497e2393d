"""What stands out among spikes: channels that one token can make far larger than the others."""

from collections import Counter
from collections.abc import Iterator

from normscope.results.spike_list import Spike, SpikeList
from normscope.rules.prose import count, name, number
from normscope.rules.rule import Outcome, Skipped, Threshold, found, rule

OUTSTANDING = 5.0  # times the median bound of the layer, or more
ALMOST_ALL = 0.99  # of a bound that is reached: then one number says it


def _largest(result: SpikeList) -> float | None:
    return max((spike.times_median for spike in result.spikes), default=None)


@rule("NS103", "possible-spike", Threshold(OUTSTANDING, _largest, "bound of a channel over the layer's median bound"))
def possible_spike(result: SpikeList) -> Outcome:
    """A layer can write far more to one channel of the stream than to the others.

    The largest value that a layer can write to each channel follows from its weights. A channel whose bound stands
    out is where massive activations (NS102) come from, whether or not a text shows them.

    What to do: watch this channel in half precision, and when you quantise the layer.
    """
    if not result.spikes:
        return Skipped("no layer writes to a stream")
    standing = [spike for spike in result.spikes if spike.times_median > OUTSTANDING]
    first = result.spikes[0]
    if not standing:
        return (
            f"No channel can become {OUTSTANDING:g} times as large as the median channel of its layer; "
            f"the most is {number(first.times_median)} times."
        )
    channels = Counter(spike.channel for spike in standing)
    often, many = channels.most_common(1)[0]
    again = f" Channel {often} stands out in {many} layers." if many > 2 else ""
    return [
        found(
            "note",
            "proved for all inputs",
            "stream",
            title=f"{name(first.module)} can write {_between(first)} to channel {first.channel} of one token, "
            f"{number(first.times_median)} times the median of the layer.",
            evidence=_evidence(first) + again,
            why="Such a channel takes up the range of half precision, and of a scale per tensor.",
            do="Watch it in half precision; quantise this layer per channel. All of them: normscope spikes MODEL",
            sites=tuple(dict.fromkeys(spike.module for spike in standing)),
            norms=tuple(dict.fromkeys(spike.norm for spike in standing if spike.norm is not None)),
            figure=(first.times_median, OUTSTANDING),
        )
    ]


def _between(spike: Spike) -> str:
    """What can be written, as far as it is known: an upper bound, and what an input gave."""
    if spike.reached is None:
        return f"at most {number(spike.bound)}"
    if abs(spike.reached) >= ALMOST_ALL * abs(spike.bound):
        return number(spike.reached)
    return f"{number(spike.reached)} (at most {number(spike.bound)})"


def _evidence(spike: Spike) -> str:
    reached = (
        "No input that reaches it was looked for."
        if spike.reached is None
        else f"An input of {name(spike.norm or '')} gives {number(spike.reached)}, and none gives more than "
        f"{number(spike.bound)}."
    )
    text = "" if spike.observed is None else f" The text makes it {number(spike.observed)}."
    return f"{reached}{text}"


def remarks(result: SpikeList) -> Iterator[str]:
    """The channels that stand out most, and whether the text made them large."""
    if not result.spikes:
        yield "No layer writes to a stream."
        return
    outcome = possible_spike(result)
    if isinstance(outcome, str):
        yield outcome
        return
    standing = [spike for spike in result.spikes if spike.times_median > OUTSTANDING]
    yield from map(_sentence, standing[:3])
    for channel, many in Counter(spike.channel for spike in standing).items():
        if many > 2:
            yield f"Channel {channel} stands out in {count(many, 'layer')}."


def _sentence(spike: Spike) -> str:
    reached = "" if spike.reached is None else f" (reached: {spike.reached:.6g})"
    text = "" if spike.observed is None else f"; the text makes it {spike.observed:.4g}, at {spike.token}"
    where = f"Layer {spike.layer}" if spike.layer is not None else spike.module
    return (
        f"{where}, channel {spike.channel}: one token can make it at most {spike.bound:.6g}{reached}, "
        f"{spike.times_median:.0f} times the median of the layer{text}."
    )
