"""Rules on the gains of norms, which need no text: channels that they mute, directions that they pass on."""

from collections import Counter
from collections.abc import Callable
from math import isfinite
from statistics import median

from normscope.results.finding_list import Finding
from normscope.results.inspection import Inspection, NormGeometry
from normscope.rules.prose import count, listed, name, number, part, percent, verb
from normscope.rules.rule import Outcome, Skipped, Threshold, found, rule

FLOAT16_MAX = 65504.0
CLOSED = 0.01  # |gain| over the median |gain| of the norm, below
FEW_AXES = 0.1  # effective axes over dimensions, below
UNEVEN = 100.0  # longest over shortest axis, above
NO_NORMS = Skipped("no norm of the model has axes")


def known(result: Inspection, figure: Callable[[NormGeometry], float | None]) -> list[tuple[NormGeometry, float]]:
    """The norms for which a figure has a finite value, with it."""
    values = ((norm, figure(norm)) for norm in result.norms)
    return [(norm, value) for norm, value in values if value is not None and isfinite(value)]


def second(pair: tuple[NormGeometry, float]) -> float:
    return pair[1]


def names(some: list[NormGeometry]) -> tuple[str, ...]:
    return tuple(norm.name for norm in some)


def _reach(norm: NormGeometry) -> float | None:
    return None if norm.axes is None else max(norm.axes.high, -norm.axes.low)


def _largest_reach(result: Inspection) -> float | None:
    return max((value for _, value in known(result, _reach)), default=None)


@rule("NS105", "norm-overflow", Threshold(FLOAT16_MAX, _largest_reach, "largest output of a norm"))
def norm_overflow(result: Inspection) -> Outcome:
    """A norm can put out a number that float16 can't hold.

    The outputs of a norm fill an ellipsoid, so the largest value of each channel follows from its gain and bias: it is
    approached by an input of the norm. Beyond 65,504, float16 has infinity.

    What to do: run the norm and what reads it in bfloat16 or float32, or fold its gain (`normscope fold`).
    """
    reach = known(result, _reach)
    if not reach:
        return NO_NORMS
    worst, bound = max(reach, key=second)
    beyond = [norm for norm, value in reach if value > FLOAT16_MAX]
    if not beyond:
        return f"No output of a norm can pass {number(bound)} ({name(worst.name)}); float16 ends at 65,504."
    assert worst.axes is not None
    channel = worst.axes.high_channel if worst.axes.high >= -worst.axes.low else worst.axes.low_channel
    return [
        found(
            "error",
            "proved for all inputs",
            "norm",
            title=f"Channel {channel} of {name(worst.name)} can reach {number(bound)}, more than float16 can hold "
            "(65,504).",
            evidence=f"The bound is exact: inputs of the norm come as near to it as you like. "
            f"{part(beyond, result.norms)} can pass the end of float16.",
            why="In float16 such an output is infinite, and everything behind it is infinite or not a number.",
            do="Run these norms and the layers behind them in bfloat16 or float32.",
            sites=names(beyond),
            norms=names(beyond),
            figure=(bound, FLOAT16_MAX),
        )
    ]


def _least_gain(norm: NormGeometry) -> float | None:
    gains = norm.found.gain
    middle = 0.0 if gains is None else median(map(abs, gains.tolist()))
    return None if gains is None or not middle else min(map(abs, gains.tolist())) / middle


def _least_gain_of_all(result: Inspection) -> float | None:
    return min((value for _, value in known(result, _least_gain)), default=None)


@rule(
    "NS201",
    "dead-channels",
    Threshold(CLOSED, _least_gain_of_all, "least |gain| over the median |gain| of its norm", below=True),
)
def dead_channels(result: Inspection) -> Outcome:
    """A norm mutes channels: their gains are zero, or nearly zero.

    Whatever the input, the layers behind the norm get (nearly) nothing of such a channel but its bias. A gain is
    dead if it is zero within float32 rounding of the norm's largest gain; it is almost mute below one hundredth of the
    median gain. A trained norm often mutes a channel that carries a massive activation (NS102), which protects the
    layer behind it.

    What to do: usually nothing. A dead channel can be pruned from the layers that read this norm.
    """
    if not any(norm.gains for norm in result.norms):
        return Skipped("no norm of the model has gains")
    findings = []
    having = [(norm, norm.gains.dead) for norm in result.norms if norm.gains and norm.gains.dead]
    if having:
        most, dead = max(having, key=lambda pair: len(pair[1]))
        are = "Channel {} of {} is" if len(dead) == 1 else "Channels {} of {} are"
        also = f" {part(having, result.norms)} have dead channels." if len(having) > 1 else ""
        findings.append(
            found(
                "note",
                "proved for all inputs",
                "norm",
                title=f"{are.format(listed(dead), name(most.name))} dead (gain zero within rounding): "
                f"{most.dimension} live dimensions.",
                evidence=f"The gains are at most 1.2·10⁻⁷ of the largest gain of the norm.{also}",
                why="The layers behind the norm get the bias of such a channel, and nothing of its input.",
                do="Nothing; or prune the columns of the layers that read these channels.",
                sites=tuple(norm.name for norm, _ in having),
                norms=tuple(norm.name for norm, _ in having),
                figure=(sum(len(channels) for _, channels in having), None),
            )
        )
    closing = {norm.name: channels for norm in result.norms if (channels := closed_channels(norm))}
    if closing:
        findings.append(_closing(result, closing))
    if findings:
        return findings
    least = _least_gain_of_all(result)
    shown = "" if least is None else f": the least |gain| is {number(least)} of the median of its norm"
    return f"No gain is below {percent(CLOSED)} of the median gain of its norm{shown}."


def closed_channels(norm: NormGeometry) -> dict[int, float]:
    """The channels of a norm whose gain is nearly zero, but not dead, with the gain over the median gain."""
    if norm.found.gain is None or norm.gains is None:
        return {}
    gains = [abs(float(gain)) for gain in norm.found.gain]
    middle, dead = median(gains), set(norm.gains.dead)
    return {at: gain / middle for at, gain in enumerate(gains) if at not in dead and gain < CLOSED * middle}


def _closing(result: Inspection, closing: dict[str, dict[int, float]]) -> Finding:
    """The finding on channels that are almost mute, those that most norms mute first."""
    counts = Counter(channel for channels in closing.values() for channel in channels)
    order = sorted(counts, key=lambda channel: (-counts[channel], channel))
    where = {channel: [norm for norm, channels in closing.items() if channel in channels] for channel in order}
    deepest = min(closing, key=lambda norm: min(closing[norm].values()))
    least = min(closing[deepest], key=lambda channel: closing[deepest][channel])
    spans = [f"{channel} in {_span(where[channel])}" for channel in order[:3]]
    more = f"; {count(len(order) - 3, 'more channel')}" if len(order) > 3 else ""
    peaks = {norm.landing.largest.channel for norm in result.norms if norm.landing and norm.landing.largest}
    loud = [channel for channel in order[:3] if channel in peaks]
    mostly = listed([f"{channel} ({count(counts[channel], 'norm')})" for channel in order[:2]])
    return found(
        "note",
        "proved for all inputs",
        "norm",
        title=f"{part(list(closing), result.norms)} almost {verb(list(closing), 'mutes', 'mute')} a channel (a gain "
        f"below {percent(CLOSED)} of the median gain){', mostly' if len(order) > 2 else ':'} {mostly}.",
        evidence=f"Channel {'; channel '.join(spans)}{more}. In {name(deepest)} the gain of channel {least} is "
        f"{number(closing[deepest][least])} of the median gain."
        + (f" On the text, the largest values of the stream are in channel {listed(loud)}." if loud else ""),
        why="Whatever the size of such a channel, the layers behind these norms get almost nothing of it.",
        do="Nothing. When you patch or steer this channel, do not expect an effect there.",
        sites=tuple(closing),
        norms=tuple(closing),
        figure=(closing[deepest][least], CLOSED),
    )


def _span(norms: list[str]) -> str:
    """Norms in few words: the first and the last of many."""
    return name(norms[0]) if len(norms) == 1 else f"{len(norms)} norms, {name(norms[0])} to {name(norms[-1])}"


@rule("NS309", "negative-gains")
def negative_gains(result: Inspection) -> Outcome:
    """Gains of a norm are negative.

    A negative gain flips the sign of a channel. The layers behind it can undo that, so nothing is lost; but a rule that
    assumes positive gains (such as clipping, or a logarithm of gains) does not hold.

    What to do: nothing, unless code of yours assumes positive gains.
    """
    having = [(norm, flipped) for norm in result.norms if (flipped := _flipped(norm))]
    if not any(norm.gains for norm in result.norms):
        return Skipped("no norm of the model has gains")
    if not having:
        return "No gain is negative, apart from those that are zero within rounding."
    most, worst = max(having, key=lambda pair: pair[1])
    total, rest = sum(many for _, many in having), len(having) - 1
    others = f"{count(rest, 'other norm')} {'flips' if rest == 1 else 'flip'} {total - worst:,}."
    others = others if rest else "No other norm has a negative gain."
    return [
        found(
            "note",
            "proved for all inputs",
            "norm",
            title=f"{name(most.name)} flips the sign of {worst:,} of {count(most.found.size, 'channel')}.",
            evidence=f"Their gains are negative. {others}",
            why="Such channels change their sign; the layers behind can undo that.",
            do="Nothing, unless code of yours takes gains to be positive.",
            sites=tuple(norm.name for norm, _ in having),
            norms=tuple(norm.name for norm, _ in having),
            figure=(total, None),
        )
    ]


def _flipped(norm: NormGeometry) -> int:
    """Negative gains, without those of dead channels, which pass nothing on."""
    if norm.gains is None or not norm.gains.negative or norm.found.gain is None:
        return 0
    return norm.gains.negative - sum(bool(norm.found.gain[channel] < 0) for channel in norm.gains.dead)


def _effective(norm: NormGeometry) -> float | None:
    return norm.axes.effective / norm.dimension if norm.axes and norm.dimension else None


def _least_effective(result: Inspection) -> float | None:
    return min((value for _, value in known(result, _effective)), default=None)


@rule(
    "NS305", "narrow-norm", Threshold(FEW_AXES, _least_effective, "effective axes of a norm, of its dimensions", True)
)
def narrow_norm(result: Inspection) -> Outcome:
    """The ellipsoid of a norm is narrow: most of its axes are short beside the longest.

    The number of effective axes is the participation ratio (Σℓ²)²/Σℓ⁴ of the semi-axes ℓ: 576 equal axes count as 576,
    and one long axis beside 575 short ones as 1. This is a property of the gains; which axes a text uses is another
    question (`normscope inspect --text`).

    What to do: look at the longest axes first, they carry what the layers behind can see; a low rank may be enough
    there."""
    shares = known(result, _effective)
    if not shares:
        return NO_NORMS
    worst, share = min(shares, key=second)
    few = [norm for norm, value in shares if value < FEW_AXES]
    if not few:
        return f"The ellipsoid of every norm is as wide as {percent(share)} of its axes or more ({name(worst.name)})."
    assert worst.axes is not None
    others = [value * (norm.dimension or 0) for norm, value in shares if norm not in few]
    beside = f" Those of the other norms count as {number(min(others))} to {number(max(others))}." if others else ""
    return [
        found(
            "note",
            "heuristic",
            "norm",
            title=f"The ellipsoid of {name(worst.name)} is as narrow as {number(worst.axes.effective)} equal axes, of "
            f"{worst.dimension}.",
            evidence=f"Its semi-axes go from {number(worst.axes.longest)} to {number(worst.axes.shortest)}, half of "
            f"them are below {number(worst.axes.median)}."
            + (f" {part(few, result.norms)} are below {percent(FEW_AXES)} of theirs." if len(few) > 1 else beside),
            why="What the layers behind it can tell apart lies in these few directions.",
            do="Look at its longest axes first; a low rank may be enough for the layers that read it.",
            sites=names(few),
            norms=names(few),
            figure=(share, FEW_AXES),
        )
    ]


def anisotropy(norm: NormGeometry) -> float | None:
    """Longest over shortest axis."""
    return None if norm.axes is None else norm.axes.anisotropy


def _largest_anisotropy(result: Inspection) -> float | None:
    return max((value for _, value in known(result, anisotropy)), default=None)


@rule("NS308", "uneven-axes", Threshold(UNEVEN, _largest_anisotropy, "longest over shortest axis of a norm"))
def uneven_axes(result: Inspection) -> Outcome:
    """The longest axis of a norm is far longer than its shortest.

    Along its short axes, a norm makes different inputs nearly equal; rounding its output loses them first.

    What to do: quantise the layer behind it with one scale per channel, or fold the gain first (`normscope fold`).
    """
    ratios = known(result, anisotropy)
    if not ratios:
        return NO_NORMS
    most, ratio = max(ratios, key=second)
    middle = median(value for _, value in ratios)
    uneven = [norm for norm, value in ratios if value > UNEVEN]
    if not uneven:
        least, dead = min(value for _, value in ratios), any(norm.gains and norm.gains.dead for norm in result.norms)
        span = number(ratio) if least == ratio else f"{number(least)} to {number(ratio)}"
        return f"Longest over shortest axis is {span}{', without dead channels' if dead else ''}."
    against = f", {number(ratio / middle)} times the median of {len(ratios)} norms" if len(ratios) > 1 else ""
    return [
        found(
            "note",
            "heuristic",
            "norm",
            title=f"{name(most.name)} is the most uneven norm: its longest axis is {number(ratio)} times its shortest.",
            evidence=f"That is {against.removeprefix(', ')}; " * bool(against)
            + f"{part(uneven, result.norms)} {verb(uneven, 'is', 'are')} above {UNEVEN:.0f}.",
            why="Rounding its output to few bits loses what lies along the short axes first.",
            do="Quantise what reads it channel by channel, or fold its gain first: normscope fold MODEL -o FOLDER",
            sites=names(uneven),
            norms=names(uneven),
            figure=(ratio, UNEVEN),
        )
    ]
