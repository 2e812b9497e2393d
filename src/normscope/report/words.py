"""What stands out in an inspection, in plain sentences: each is true of the numbers and names one or gives one."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median

from normscope.studies.inspection import Inspection, Landing, NormGeometry, Spread

MOST_SENTENCES = 8
FLOAT16_MAX = 65504.0
RISKY_MEAN = 30.0  # |mean|/σ above which half precision loses about five of its eleven bits to the mean
FAR_FROM_SURFACE = 0.95  # median nearness below this
MUCH_ALONG_ONES = 0.1  # median share of |x|² above this
FAR_ABOVE_MEDIAN, VERY_ANISOTROPIC = 2.0, 100.0
FEW_AXES = 0.1  # participation ratio over dimension below this
BENDS_FAR_MORE = 1e3  # median H of one norm over that of another

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


def highlights(inspection: Inspection) -> list[str]:
    """What a reader should know first, most important first, in at most eight sentences.

    >>> highlights(Inspection("empty", None, None, False, None, 0, ()))
    ['No normalization layer was found in empty.']
    """
    norms = inspection.norms
    if not norms and inspection.untraced is not None:
        return [
            f"No module of {inspection.model} is a normalization layer; "
            f"calls of functions were not looked for: {inspection.untraced}."
        ]
    if not norms:
        return [f"No normalization layer was found in {inspection.model}."]
    caveats = [
        sentence for sentence in (_unknown(norms), _unchecked(inspection), _gated(norms), _assumed(norms)) if sentence
    ]
    remarks = [
        sentence
        for sentence in (
            _overflow(norms),
            _large_means(norms),
            _far_from_surface(norms),
            _gains(norms),
            _anisotropy(norms),
            _along_ones(norms),
            _few_axes(norms),
            _bending(norms),
            _unbounded(norms),
        )
        if sentence
    ]
    return (caveats + (remarks or [_nothing(inspection.model, norms, bool(caveats))]))[:MOST_SENTENCES]


def headline(inspection: Inspection) -> list[str]:
    """The model in a few short facts: its norms by kind, their placement, embeddings, QK-norm, parameters.

    >>> headline(Inspection("empty", "pre-norm", True, False, 1000, 20, ()))
    ['no norms', 'pre-norm', 'tied embeddings', 'no QK-norm', '20 of 1,000 parameters in norms (2%)']
    """
    kinds = Counter(norm.kind for norm in inspection.norms)
    facts = [", ".join(f"{count} {KINDS.get(kind, kind)}" for kind, count in kinds.items()) or "no norms"]
    facts.append(PLACEMENTS.get(inspection.placement, "placement unknown"))
    facts.append(EMBEDDINGS[inspection.tied_embeddings])
    facts.append("QK-norm" if inspection.qk_norm else NO_QK_NORM[inspection.untraced is None])
    inside = f"{inspection.norm_parameters:,}"
    if inspection.parameters:
        share = inspection.norm_parameters / inspection.parameters
        facts.append(f"{inside} of {inspection.parameters:,} parameters in norms ({100 * share:.2g}%)")
    else:
        facts.append(f"{inside} parameters in norms")
    if inspection.text is not None:
        facts.append(f"run on {inspection.text}")
    return facts


def _unknown(norms: Norms) -> str | None:
    unknown = [norm for norm in norms if norm.kind == "unknown"]
    if not unknown:
        return None
    named = "; ".join(f"{norm.name} ({norm.problem or 'no reason given'})" for norm in unknown[:2])
    rest = f"; and {len(unknown) - 2} more" if len(unknown) > 2 else ""
    return f"{_part(unknown, norms)} {_verb(unknown, 'fits', 'fit')} no member of the family: {named}{rest}."


def _unchecked(inspection: Inspection) -> str | None:
    """Norms that are only known by what they compute alone, where an architecture is at hand."""
    unchecked = [norm for norm in inspection.norms if norm.unchecked and not norm.assumed]
    if not unchecked:
        return None
    reasons = Counter(norm.unchecked for norm in unchecked)
    named = "; ".join(f"{reason} ({count})" if len(reasons) > 1 else str(reason) for reason, count in reasons.items())
    computes = _verb(unchecked, "computes", "compute")
    return f"What {_part(unchecked, inspection.norms)} {computes} inside the model was not checked: {named}."


def _gated(norms: Norms) -> str | None:
    together = Counter(norm.gate for norm in norms if norm.gate)
    clauses = [f"{count} of {_count(len(norms), 'norm')} compute {gate}" for gate, count in together.items()]
    return f"Gated: {'; '.join(clauses)}; what is said here is about the norm in it." if clauses else None


def _assumed(norms: Norms) -> str | None:
    together = Counter(norm.assumed for norm in norms if norm.assumed)
    if not together:
        return None
    clauses = [f"{' and '.join(what)} of {count} of {_count(len(norms), 'norm')}" for what, count in together.items()]
    return f"Assumed, because it could not be observed: {'; '.join(clauses)}."


def _overflow(norms: Norms) -> str | None:
    reach = _known(
        norms, lambda norm: None if norm.range_high is None else max(norm.range_high, -(norm.range_low or 0.0))
    )
    beyond = [norm for norm, bound in reach if bound > FLOAT16_MAX]
    if not beyond:
        return None
    worst, bound = max(reach, key=_second)
    also = f"; {_part(beyond, norms)} can exceed it" if len(beyond) > 1 else ""
    return (
        f"A channel of {worst.name} can reach {_number(bound)}, more than float16 can hold ({FLOAT16_MAX:,.0f}){also}."
    )


def _large_means(norms: Norms) -> str | None:
    means = _landed(norms, lambda landing: landing.mean_over_sigma_max)
    risky = [norm for norm, value in means if value > RISKY_MEAN]
    if not risky:
        return None
    worst, value = max(means, key=_second)
    return (
        f"|mean|/σ of the input reaches {_number(value)} in {worst.name} and exceeds {RISKY_MEAN:.0f} in "
        f"{_part(risky, norms)}: a risk in half precision."
    )


def _far_from_surface(norms: Norms) -> str | None:
    nearness = _landed(norms, lambda landing: _median(landing.nearness))
    far = [norm for norm, value in nearness if value < FAR_FROM_SURFACE]
    if not far:
        return None
    worst, value = min(nearness, key=_second)
    return (
        f"Half of the inputs of {worst.name} land at {_number(value)} or less of the way to the surface; "
        f"the median is below {FAR_FROM_SURFACE} in {_part(far, norms)}."
    )


def _gains(norms: Norms) -> str | None:
    clauses = []
    for what, count in (
        ("zero", lambda norm: norm.zero_gains),
        ("near zero", lambda norm: norm.near_zero_gains),
        ("negative", lambda norm: norm.negative_gains),
    ):
        having = [(norm, number) for norm, number in _known(norms, count) if number]
        if having:
            most, number = max(having, key=_second)
            total = sum(number for _, number in having)
            most_of = f"{number:.0f} of {most.size} in {most.name}"
            where = most_of if len(having) == 1 else f"in {len(having)} norms, up to {most_of}"
            clauses.append(f"{_count(int(total), 'gain')} {_be(total)} {what} ({where})")
    return f"{'; '.join(clauses)}." if clauses else None


def _anisotropy(norms: Norms) -> str | None:
    ratios = _known(norms, lambda norm: norm.anisotropy)
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


def _along_ones(norms: Norms) -> str | None:
    shares = _landed(norms, lambda landing: _median(landing.ones_share))
    much = [norm for norm, value in shares if value > MUCH_ALONG_ONES]
    if not much:
        return None
    most, share = max(shares, key=_second)
    fate = "which it keeps" if most.kind in ("rmsnorm", "affine") else "which its projection removes"
    return (
        f"{100 * share:.0f}% of |x|² at {most.name} lies along the ones vector (median over the inputs), {fate}; "
        f"{_part(much, norms)} {_verb(much, 'has', 'have')} more than {100 * MUCH_ALONG_ONES:.0f}%."
    )


def _few_axes(norms: Norms) -> str | None:
    shares = _known(norms, _share_of_axes)
    few = [norm for norm, share in shares if share < FEW_AXES]
    if not few:
        return None
    worst, _ = min(shares, key=_second)
    also = f"; {_part(few, norms)} use less than {100 * FEW_AXES:.0f}% of theirs" if len(few) > 1 else ""
    return (
        f"The spread of {worst.name} is carried by few axes: "
        f"participation ratio {_number(worst.participation_ratio or 0.0)} of {worst.dimension}{also}."
    )


def _share_of_axes(norm: NormGeometry) -> float | None:
    return norm.participation_ratio / norm.dimension if norm.participation_ratio and norm.dimension else None


def _bending(norms: Norms) -> str | None:
    amounts = [(norm, value) for norm, value in _landed(norms, lambda landing: _median(landing.nonlinearity)) if value]
    if not amounts:
        return None
    (most, high), (least, low) = max(amounts, key=_second), min(amounts, key=_second)
    if not isfinite(high / low) or high / low < BENDS_FAR_MORE:
        return None
    return (
        f"{most.name} bends {_number(high / low)} times as much at its inputs as {least.name} "
        f"(median H {_number(high)} against {_number(low)}): H falls with the fourth power of their size."
    )


def _unbounded(norms: Norms) -> str | None:
    unbounded = [norm for norm in norms if norm.kind in UNBOUNDED]
    if not unbounded:
        return None
    named = unbounded[0].name if len(unbounded) == 1 else f"{unbounded[0].name} and others"
    return f"{_part(unbounded, norms)} ({named}) {_verb(unbounded, 'does', 'do')} not scale: the outputs are unbounded."


def _nothing(model: str, norms: Norms, said_something: bool) -> str:
    ratios = [value for _, value in _known(norms, lambda norm: norm.anisotropy)]
    shape = f" Longest over shortest axis is {_number(min(ratios))} to {_number(max(ratios))}." if ratios else ""
    start = "Nothing else" if said_something else "Nothing"
    return f"{start} stands out in the {_count(len(norms), 'norm')} of {model}.{shape}"


def _known(norms: Norms, figure: Callable[[NormGeometry], float | None]) -> list[tuple[NormGeometry, float]]:
    """The norms for which a figure has a finite value, with it."""
    values = ((norm, figure(norm)) for norm in norms)
    return [(norm, value) for norm, value in values if value is not None and isfinite(value)]


def _landed(norms: Norms, figure: Callable[[Landing], float | None]) -> list[tuple[NormGeometry, float]]:
    return _known(norms, lambda norm: None if norm.landing is None else figure(norm.landing))


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _second(pair: tuple[NormGeometry, float]) -> float:
    return pair[1]


def _part(some: Norms, norms: Norms) -> str:
    return f"{len(some)} of {_count(len(norms), 'norm')}"


def _verb(some: Norms, singular: str, plural: str) -> str:
    return singular if len(some) == 1 else plural


def _be(total: float) -> str:
    return "is" if total == 1 else "are"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _number(value: float) -> str:
    """Three digits, without an exponent where a reader would not want one.

    >>> _number(0.0123456), _number(123456.0), _number(1e12)
    ('0.0123', '123,456', '1e+12')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"
