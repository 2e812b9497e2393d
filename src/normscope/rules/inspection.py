"""What stands out in an inspection: one function per rule, each with a sentence that gives its numbers, or None."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

from normscope.results.inspection import Inspection, Landing, NormGeometry
from normscope.results.rows import Spread

MOST_SENTENCES = 8
FLOAT16_MAX = 65504.0
RISKY_MEAN = 30.0  # |mean|/σ above which half precision loses about five of its eleven bits to the mean
FAR_FROM_SURFACE = 0.95  # median closeness below this
MUCH_ALONG_ONES = 0.1  # median share of |x|² above this
FAR_ABOVE_MEDIAN, VERY_ANISOTROPIC = 2.0, 100.0
FEW_AXES = 0.1  # effective axes over dimensions below this
NOT_AFFINE = 0.01  # share of the output's variance, unexplained by an affine map, above this
NAMED_CHANNELS = 5  # dead channels that are named

KINDS = {
    "layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
    "lng": "LN-G",
    "projection": "projection only",
    "affine": "affine only",
    "unknown": "unknown",
}
PLACEMENTS: dict[str | None, str] = {
    "pre-norm": "pre-norm",
    "post-norm": "post-norm",
    "both": "pre-norm and post-norm",
}
EMBEDDINGS = {True: "tied embeddings", False: "untied embeddings", None: "embeddings tied or not: unknown"}
NO_QK_NORM = {True: "no QK-norm", False: "no QK-norm by name"}  # traced, not traced
UNBOUNDED = ("projection", "affine")

Norms = Sequence[NormGeometry]


def remarks(result: Inspection) -> list[str]:
    """What a reader should know first, most important first, in at most eight sentences.

    >>> remarks(Inspection("empty", None, None, False, None, 0, ()))
    ['No normalization layer was found in empty.']
    """
    if not result.norms:
        return [_no_norms(result), *result.notes]
    caveats = [*result.notes, *(sentence for rule in CAVEATS if (sentence := rule(result)))]
    findings = [sentence for rule in FINDINGS if (sentence := rule(result))]
    return (caveats + (findings or [_nothing_stands_out(result, after_caveats=bool(caveats))]))[:MOST_SENTENCES]


def headline(result: Inspection) -> list[str]:
    """The model in a few short facts: its norms by kind, their placement, embeddings, QK-norm, parameters.

    >>> headline(Inspection("empty", "pre-norm", True, False, 1000, 20, ()))
    ['no norms', 'pre-norm', 'tied embeddings', 'no QK-norm', '20 of 1,000 parameters in norms (2%)']
    """
    kinds = Counter(norm.kind for norm in result.norms)
    facts = [", ".join(f"{count} {KINDS[kind]}" for kind, count in kinds.items()) or "no norms"]
    facts.append(PLACEMENTS.get(result.placement, "placement unknown"))
    facts.append(EMBEDDINGS[result.tied_embeddings])
    facts.append("QK-norm" if result.qk_norm else NO_QK_NORM[result.untraced is None])
    inside = f"{result.norm_parameters:,}"
    if result.parameters:
        share = result.norm_parameters / result.parameters
        facts.append(f"{inside} of {result.parameters:,} parameters in norms ({100 * share:.2g}%)")
    else:
        facts.append(f"{inside} parameters in norms")
    if result.text is not None:
        facts.append(f"run on {result.text}")
    return facts


def unknown_norms(result: Inspection) -> str | None:
    """Layers that fit no member of the family, with the check that failed."""
    unknown = [norm for norm in result.norms if norm.kind == "unknown"]
    if not unknown:
        return None
    named = "; ".join(f"{norm.name} ({norm.found.problem or 'no reason given'})" for norm in unknown[:2])
    rest = f"; and {len(unknown) - 2} more" if len(unknown) > 2 else ""
    return f"{_part(unknown, result)} {_verb(unknown, 'fits', 'fit')} no member of the family: {named}{rest}."


def unchecked_norms(result: Inspection) -> str | None:
    """Norms that are only known by what they compute alone, although the architecture is known."""
    unchecked = [norm for norm in result.norms if norm.found.unchecked and not norm.found.assumed]
    if not unchecked:
        return None
    reasons = Counter(norm.found.unchecked for norm in unchecked)
    named = "; ".join(f"{reason} ({count})" if len(reasons) > 1 else str(reason) for reason, count in reasons.items())
    computes = _verb(unchecked, "computes", "compute")
    return f"What {_part(unchecked, result)} {computes} inside the model was not checked: {named}."


def gated_norms(result: Inspection) -> str | None:
    """Norms with a gate, and what they compute with it."""
    together = Counter(str(norm.found.gate) for norm in result.norms if norm.found.gate)
    clauses = [f"{count} of {_count(len(result.norms), 'norm')} compute {gate}" for gate, count in together.items()]
    return f"Gated: {'; '.join(clauses)}; the figures describe the norm inside." if clauses else None


def assumed_facts(result: Inspection) -> str | None:
    """What a checkpoint without its architecture does not show: kind, eps, gain convention."""
    together = Counter(norm.found.assumed for norm in result.norms if norm.found.assumed)
    if not together:
        return None
    whole = _count(len(result.norms), "norm")
    clauses = [f"{' and '.join(what)} of {count} of {whole}" for what, count in together.items()]
    return f"Assumed, because it could not be observed: {'; '.join(clauses)}."


def beyond_float16(result: Inspection) -> str | None:
    """The largest output that any channel can reach, against the largest number of float16."""
    reach = _known(result, lambda norm: None if norm.axes is None else max(norm.axes.high, -norm.axes.low))
    beyond = [norm for norm, bound in reach if bound > FLOAT16_MAX]
    if not beyond:
        return None
    worst, bound = max(reach, key=_second)
    also = f"; {_part(beyond, result)} can exceed it" if len(beyond) > 1 else ""
    return (
        f"A channel of {worst.name} can reach {_number(bound)}, more than float16 can hold ({FLOAT16_MAX:,.0f}){also}."
    )


def large_means(result: Inspection) -> str | None:
    """The largest |mean|/σ of the inputs, which half precision must subtract away."""
    means = _landed(result, lambda landing: landing.mean_over_sigma_max)
    risky = [norm for norm, value in means if value > RISKY_MEAN]
    if not risky:
        return None
    worst, value = max(means, key=_second)
    return (
        f"|mean|/σ of the input reaches {_number(value)} in {worst.name} and exceeds {RISKY_MEAN:.0f} in "
        f"{_part(risky, result)}: a risk in half precision."
    )


def far_from_surface(result: Inspection) -> str | None:
    """The median closeness of outputs to the surface: far from it, eps is large beside the inputs."""
    nearness = _landed(result, lambda landing: _median(landing.nearness))
    far = [norm for norm, value in nearness if value < FAR_FROM_SURFACE]
    if not far:
        return None
    worst, value = min(nearness, key=_second)
    return (
        f"Half of the inputs of {worst.name} land at {_number(value)} or less of the way to the surface; "
        f"the median is below {FAR_FROM_SURFACE} in {_part(far, result)}."
    )


def dead_channels(result: Inspection) -> str | None:
    """Channels whose gain is zero within rounding: their outputs are constant."""
    having = [(norm, norm.gains.dead) for norm in result.norms if norm.gains and norm.gains.dead]
    if not having:
        return None
    most, dead = max(having, key=lambda pair: len(pair[1]))
    more = f" and {len(dead) - NAMED_CHANNELS} more" if len(dead) > NAMED_CHANNELS else ""
    named = f"{', '.join(map(str, dead[:NAMED_CHANNELS]))}{more}"
    subject = f"Channel {named} of {most.name} is" if len(dead) == 1 else f"Channels {named} of {most.name} are"
    also = f"; {_part(having, result)} have dead channels" if len(having) > 1 else ""
    return f"{subject} dead (gain zero within rounding): {most.dimension} live dimensions{also}."


def small_and_negative_gains(result: Inspection) -> str | None:
    """How many gains are near zero, and how many are negative, and where most of them are."""
    clauses = []
    for what, count in (
        ("near zero", lambda norm: norm.gains and norm.gains.near_zero),
        ("negative", lambda norm: norm.gains and norm.gains.negative),
    ):
        having = [(norm, number) for norm, number in _known(result, count) if number]
        if having:
            most, number = max(having, key=_second)
            total = sum(number for _, number in having)
            most_of = f"{number:.0f} of {most.found.size} in {most.name}"
            where = most_of if len(having) == 1 else f"in {len(having)} norms, up to {most_of}"
            clauses.append(f"{_count(int(total), 'gain')} {'is' if total == 1 else 'are'} {what} ({where})")
    return f"{'; '.join(clauses)}." if clauses else None


def anisotropic(result: Inspection) -> str | None:
    """The longest axis over the shortest, where one norm is far above the median of the model."""
    ratios = _known(result, _anisotropy)
    if not ratios:
        return None
    most, ratio = max(ratios, key=_second)
    middle = median(value for _, value in ratios)
    if ratio < FAR_ABOVE_MEDIAN * middle and ratio < VERY_ANISOTROPIC:
        return None
    against = f", {_number(ratio / middle)} times the median of {len(ratios)} norms" if len(ratios) > 1 else ""
    return (
        f"{most.name} is the most anisotropic norm: its longest axis is {_number(ratio)} times its shortest{against}."
    )


def large_shares_of_the_mean(result: Inspection) -> str | None:
    """How much of the inputs lies along the ones vector, which a projection removes and an RMSNorm keeps."""
    shares = _landed(result, lambda landing: _median(landing.ones_share))
    much = [norm for norm, value in shares if value > MUCH_ALONG_ONES]
    if not much:
        return None
    most, share = max(shares, key=_second)
    fate = "which it keeps" if most.kind in ("rmsnorm", "affine") else "which its projection removes"
    return (
        f"{100 * share:.0f}% of |x|² at {most.name} lies along the ones vector (median over the inputs), {fate}; "
        f"{_part(much, result)} {_verb(much, 'has', 'have')} more than {100 * MUCH_ALONG_ONES:.0f}%."
    )


def few_effective_axes(result: Inspection) -> str | None:
    """Norms whose spread is carried by a small part of their axes."""
    shares = _known(result, lambda norm: norm.axes.effective / norm.dimension if norm.axes and norm.dimension else None)
    few = [norm for norm, share in shares if share < FEW_AXES]
    if not few:
        return None
    worst, share = min(shares, key=_second)
    also = f"; {_part(few, result)} use less than {100 * FEW_AXES:.0f}% of theirs" if len(few) > 1 else ""
    effective = share * (worst.dimension or 0)
    return (
        f"The spread of {worst.name} is carried by few axes: {_number(effective)} effective axes of "
        f"{worst.dimension}{also}."
    )


def not_affine(result: Inspection) -> str | None:
    """Norms whose outputs an affine map does not explain; by full fits, or where there are none, by frozen scales."""
    fits = [(norm, norm.landing.affine_fit) for norm in result.norms if norm.landing and norm.landing.affine_fit]
    kind = "full" if any(fit.fit == "full" for _, fit in fits) else "frozen scale"
    shares = [(norm, fit.unexplained) for norm, fit in fits if fit.fit == kind]
    bent = [norm for norm, share in shares if share > NOT_AFFINE]
    if not bent:
        return None
    (most, high), (least, low) = max(shares, key=_second), min(shares, key=_second)
    by = "the best affine map" if kind == "full" else "the norm with one fixed number in place of its divisor"
    if least is most:
        return f"On held-out inputs, {by} misses {_percent(high)} of the output's variance at {most.name}."
    return (
        f"On held-out inputs, {by} misses {_percent(low)} ({least.name}) to {_percent(high)} ({most.name}) of the "
        "output's variance: that is how far the norms are from affine on this text."
    )


def unbounded_outputs(result: Inspection) -> str | None:
    """Norms without the scale step: nothing bounds their outputs."""
    unbounded = [norm for norm in result.norms if norm.kind in UNBOUNDED]
    if not unbounded:
        return None
    named = unbounded[0].name if len(unbounded) == 1 else f"{unbounded[0].name} and others"
    does = _verb(unbounded, "does", "do")
    return f"{_part(unbounded, result)} ({named}) {does} not scale: the outputs are unbounded."


Rule = Callable[[Inspection], str | None]
CAVEATS: tuple[Rule, ...] = (unknown_norms, unchecked_norms, gated_norms, assumed_facts)
FINDINGS: tuple[Rule, ...] = (  # most important first
    beyond_float16,
    large_means,
    far_from_surface,
    dead_channels,
    small_and_negative_gains,
    anisotropic,
    large_shares_of_the_mean,
    few_effective_axes,
    not_affine,
    unbounded_outputs,
)


def _no_norms(result: Inspection) -> str:
    if result.untraced is None:
        return f"No normalization layer was found in {result.model}."
    return (
        f"No module of {result.model} is a normalization layer; "
        f"calls of functions were not looked for: {result.untraced}."
    )


def _nothing_stands_out(result: Inspection, after_caveats: bool) -> str:
    ratios = [value for _, value in _known(result, _anisotropy)]
    shape = f" Longest over shortest axis is {_number(min(ratios))} to {_number(max(ratios))}." if ratios else ""
    start = "Nothing else" if after_caveats else "Nothing"
    return f"{start} stands out in the {_count(len(result.norms), 'norm')} of {result.model}.{shape}"


def _anisotropy(norm: NormGeometry) -> float | None:
    return None if norm.axes is None else norm.axes.anisotropy


def _known(result: Inspection, figure: Callable[[NormGeometry], float | None]) -> list[tuple[NormGeometry, float]]:
    """The norms for which a figure has a finite value, with it."""
    values = ((norm, figure(norm)) for norm in result.norms)
    return [(norm, value) for norm, value in values if value is not None and isfinite(value)]


def _landed(result: Inspection, figure: Callable[[Landing], float | None]) -> list[tuple[NormGeometry, float]]:
    return _known(result, lambda norm: None if norm.landing is None else figure(norm.landing))


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _second(pair: tuple[NormGeometry, float]) -> float:
    return pair[1]


def _part(some: Sequence[object], result: Inspection) -> str:
    return f"{len(some)} of {_count(len(result.norms), 'norm')}"


def _verb(some: Norms, singular: str, plural: str) -> str:
    return singular if len(some) == 1 else plural


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _percent(share: float) -> str:
    """
    >>> _percent(0.0398), _percent(0.00071)
    ('3.98%', '0.071%')
    """
    return f"{100 * share:.3g}%"


def _number(value: float) -> str:
    """Three digits, without an exponent where a reader would not want one.

    >>> _number(0.0123456), _number(123456.0), _number(1e12)
    ('0.0123', '123,456', '1e+12')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
