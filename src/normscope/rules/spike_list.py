"""What stands out among spikes, in sentences."""

from collections import Counter
from collections.abc import Iterator

from normscope.results.spike_list import Spike, SpikeList

OUTSTANDING = 5.0  # times the median bound of the layer


def remarks(result: SpikeList) -> Iterator[str]:
    """The channels that stand out most, and whether the text made them large."""
    standing = [spike for spike in result.spikes if spike.times_median >= OUTSTANDING]
    if not result.spikes:
        yield "No layer writes to a stream."
        return
    if not standing:
        yield f"No channel can become {OUTSTANDING:g} times as large as the median channel of its layer."
    for spike in standing[:3]:
        yield _sentence(spike)
    counts = Counter(spike.channel for spike in standing)
    for channel, count in counts.items():
        if count > 2:
            yield f"Channel {channel} stands out in {count} layers."


def _sentence(spike: Spike) -> str:
    reached = "" if spike.reached is None else f" (reached: {spike.reached:.6g})"
    text = "" if spike.observed is None else f"; the text makes it {spike.observed:.4g}, at {spike.token}"
    where = f"Layer {spike.layer}" if spike.layer is not None else spike.module
    return (
        f"{where}, channel {spike.channel}: one token can make it {spike.bound:.6g}{reached}, "
        f"{spike.times_median:.0f} times the median of the layer{text}."
    )
