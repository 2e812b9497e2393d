"""Rules on single channels of the stream that stand out while the model runs on a text."""

from statistics import median

import numpy as np

from normscope.results.inspection import Inspection, Landing, NormGeometry
from normscope.rules.norm_gains import FLOAT16_MAX, known, names, second
from normscope.rules.norm_inputs import landed, landed_values
from normscope.rules.prose import listed, name, number, percent, quoted_token
from normscope.rules.rule import NEEDS_TEXT, Outcome, Threshold, found, rule

MASSIVE, LARGE = 1000.0, 100.0  # largest entry over the median entry, and its size, above
OUTLIERS, OUTLYING = 3, 0.3  # channels that are added up; their share of a median input's squared length, above
FEWEST_CHANNELS = 64  # of norms where channels can be outliers
INT8, LARGEST = 127.0, float(np.finfo(float).max)  # the largest float stands for infinity


def _peak(landing: Landing) -> float | None:
    if landing.largest is None or landing.typical is None:
        return None
    size = abs(landing.largest.value)
    return size / landing.typical if landing.typical else LARGEST if size else 0.0


def _massive(landing: Landing) -> float | None:
    """The same, of inputs with a large entry: beside a median of nearly zero, any entry would stand out."""
    return _peak(landing) if landing.largest is not None and abs(landing.largest.value) > LARGE else None


@rule(
    "NS102",
    "massive-activation",
    Threshold(
        MASSIVE,
        lambda result: max(landed_values(result, _massive), default=None),
        "largest entry of a norm's input over the median, where it is above 100",
    ),
)
def massive_activation(result: Inspection) -> Outcome:
    """One channel of the stream is thousands of times larger than the others, at some tokens.

    An entry counts as massive if it is above 100 and above 1,000 times the median entry, as Sun et al. define it
    (Massive Activations in Large Language Models, 2024). The ratio alone is not enough: beside a median of nearly
    zero, as in a fresh V-JEPA 2, any entry stands out. Large models write huge values to one or two channels of a
    few tokens, mostly the first of a sequence, and use them as a constant that attention can rest on. They are a
    matter of the weights: `normscope spikes` bounds them for all inputs.

    Why it matters: they take up the range of half precision, and one scale for a whole tensor rounds everything else
    away. What to do: keep norms and the stream in float32 or bfloat16, and quantise channel by channel.
    """
    peaks = landed(result, _peak)
    if not peaks:
        return NEEDS_TEXT
    beyond = [pair for pair in landed(result, _massive) if pair[1] > MASSIVE]
    worst, ratio = max(beyond or peaks, key=second)
    assert worst.landing is not None
    assert worst.landing.largest is not None
    assert worst.landing.typical is not None
    largest = worst.landing.largest
    if not beyond:
        return (
            f"No entry of a norm's input is more than {number(ratio)} times the median entry: {number(largest.value)} "
            f"in channel {largest.channel} before {name(worst.name)}. It would be massive above {MASSIVE:,.0f} times, "
            f"and above {LARGE:.0f} itself."
        )
    massive = [norm for norm, _ in beyond if _channel(norm) == largest.channel]
    others = sorted({_channel(norm) for norm, _ in beyond} - {largest.channel, None}, key=str)
    size = abs(largest.value)
    squared = " and its square overflows" if size**2 > FLOAT16_MAX else ""
    return [
        found(
            "warning",
            "seen on the text",
            "stream",
            title=f"Channel {largest.channel} of the stream reaches {number(largest.value)} at {_place(worst)}.",
            evidence=f"The median entry there is {number(worst.landing.typical)}"
            f"{f': {number(ratio)} times less' if worst.landing.typical else ''}. "
            f"{_story(result, massive)}" + (f" Channel {listed(others)} is massive elsewhere." if others else ""),
            why=f"It uses up {percent(min(1.0, size / FLOAT16_MAX))} of float16{squared}; with one scale per tensor, "
            f"8-bit steps would be {number(size / INT8)}.",
            do="Keep norms in float32; quantise per channel. For bounds over all inputs: normscope spikes MODEL",
            sites=_writers(result, massive[0]),
            norms=names(massive),
            figure=(ratio, MASSIVE),
        )
    ]


def _channel(norm: NormGeometry) -> int | None:
    return None if norm.landing is None or norm.landing.largest is None else norm.landing.largest.channel


def _place(norm: NormGeometry) -> str:
    """The token of the largest entry."""
    assert norm.landing is not None
    at = None if norm.landing.largest is None else norm.landing.largest.token
    if at is None:
        return f"one input of {name(norm.name)}"
    text = "" if at.text is None else f", {quoted_token(at.text)}"
    place = "the first token of a sequence" if at.position == 0 else f"token {at.position} of sequence {at.sequence}"
    return f"{place}{text}"


def _before(result: Inspection, norm: NormGeometry) -> NormGeometry | None:
    """The norm before this one that has as many channels, and was seen."""
    alike = [each for each in result.norms if each.found.size == norm.found.size and _channel(each) is not None]
    place = next(at for at, each in enumerate(alike) if each is norm)
    return alike[place - 1] if place else None


def _writers(result: Inspection, norm: NormGeometry) -> tuple[str, ...]:
    """The modules that write to the input of a norm, but not to that of the norm before it."""
    before = _before(result, norm)
    known_before = set(before.reads or ()) if before is not None else set()
    return tuple(path for path in norm.reads or () if path not in known_before) or (norm.name,)


def _story(result: Inspection, massive: list[NormGeometry]) -> str:
    """Who writes a massive activation, and how far it stays."""
    first, last, before = massive[0], massive[-1], _before(result, massive[0])
    least = ""
    if before is not None and before.landing is not None and before.landing.largest is not None:
        least = f" ({number(abs(before.landing.largest.value))} just before)"
    stays = f"; it stays until {name(last.name)}" if last is not first else ""
    return f"{listed(map(name, _writers(result, first)), 2)} writes it{least}{stays}."


def _shares(norm: NormGeometry) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None":
    sample = None if norm.landing is None else norm.landing.sample
    return None if sample is None else sample.input_shares


def _outlying(norm: NormGeometry) -> float | None:
    """What the largest channels hold of the squared length of a median input."""
    shares = _shares(norm)
    return None if shares is None or len(shares) < FEWEST_CHANNELS else float(np.sort(shares)[-OUTLIERS:].sum())


def _most_outlying(result: Inspection) -> float | None:
    return max((value for _, value in known(result, _outlying)), default=None)


@rule(
    "NS304",
    "outlier-channel",
    Threshold(OUTLYING, _most_outlying, "share of the three largest channels in the squared length of a median input"),
)
def outlier_channel(result: Inspection) -> Outcome:
    """A few channels of the stream hold much of a typical token.

    A norm divides by the length of its input. Where three of hundreds of channels hold half of it, a change in these
    three rescales all the others.

    What to do: look at these channels first when you patch, steer or quantise; quantise channel by channel.
    """
    values = known(result, _outlying)
    if not values:
        narrow = any(norm.landing for norm in result.norms)
        return f"No norm has {FEWEST_CHANNELS} channels or more." if narrow else NEEDS_TEXT
    worst, share = max(values, key=second)
    having = [norm for norm, value in values if value > OUTLYING]
    if not having:
        return (
            f"The three largest channels hold at most {percent(share)} of a median token, before {name(worst.name)}; "
            f"an even share is {percent(OUTLIERS / worst.found.size)}."
        )
    size = worst.found.size
    alike = {norm.name: shares for norm in having if (shares := _shares(norm)) is not None and len(shares) == size}
    for most in (np.sum(list(alike.values()), axis=0), alike[worst.name]):  # the same channels everywhere, if there are
        channels = [int(at) for at in np.argsort(-most, kind="stable")[:OUTLIERS]]
        held = {path: total for path, shares in alike.items() if (total := float(shares[channels].sum())) > OUTLYING}
        if held:
            break
    where = list(held)
    before = name(where[0]) if len(where) == 1 else f"{len(where)} norms, {name(where[0])} to {name(where[-1])}"
    shares_held = f"{percent(min(held.values()))} to {percent(max(held.values()))}" if len(where) > 1 else "as much"
    return [
        found(
            "warning",
            "seen on the text",
            "stream",
            title=f"Channels {listed(channels)} hold about {100 * median(held.values()):.0f}% of a typical token's "
            "squared length.",
            evidence=f"Of a median token they hold {shares_held} before {before}; an even share "
            f"of {len(channels)} channels is {percent(len(channels) / size)}.",
            why=f"A change in them rescales the other {size - len(channels)} channels.",
            do="Look at them first when you patch, steer or quantise.",
            sites=_writers(result, next(norm for norm in having if norm.name in held)),
            norms=tuple(where),
            figure=(share, OUTLYING),
        )
    ]
