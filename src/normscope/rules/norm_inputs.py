"""Rules on what goes into the norms of a model while it runs on a text."""

from collections import Counter
from collections.abc import Callable
from statistics import median

from normscope.results.inspection import Inspection, Landing, NormGeometry
from normscope.results.rows import Spread
from normscope.rules.norm_gains import known, names, second
from normscope.rules.prose import listed, name, number, part, percent, verb
from normscope.rules.rule import NEEDS_TEXT, Outcome, Threshold, found, rule

RISKY_MEAN = 30.0  # |mean|/σ, above: half precision loses about five of its eleven bits to the mean
MUCH_ALONG_ONES = 0.1  # median share of |x|², above
FAR_FROM_SURFACE = 0.95  # median closeness, below
SHARP = 5.0  # median step over the least, above
NOT_AFFINE = 0.1  # share of the output's variance that an affine map leaves, above


def landed(result: Inspection, figure: Callable[[Landing], float | None]) -> list[tuple[NormGeometry, float]]:
    """The norms that were seen on the text and for which a figure has a finite value, with it."""
    return known(result, lambda norm: None if norm.landing is None else figure(norm.landing))


def landed_values(result: Inspection, figure: Callable[[Landing], float | None]) -> list[float]:
    """The finite values of a figure, of all norms that were seen on the text."""
    return [value for _, value in landed(result, figure)]


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


@rule(
    "NS104",
    "large-mean",
    Threshold(
        RISKY_MEAN,
        lambda result: max((value for _, value in _means(result)), default=None),
        "largest |mean|/σ of a norm's input",
    ),
)
def large_mean(result: Inspection) -> Outcome:
    """The mean of a norm's input is far larger than its spread.

    A norm that projects must subtract the mean. If |mean|/σ is 30, half precision loses about five of its eleven
    bits to it, and what is left is mostly rounding.

    What to do: run the norm in float32, or fold the mean into the layers that write it (`normscope fold`).
    """
    means = _means(result)
    if not means:
        return NEEDS_TEXT
    worst, value = max(means, key=second)
    risky = [norm for norm, each in means if each > RISKY_MEAN]
    if not risky:
        return (
            f"|mean|/σ of the inputs is at most {number(value)} ({name(worst.name)}); above {RISKY_MEAN:.0f} is a risk."
        )
    projects = worst.kind in ("layernorm", "lng", "projection")
    return [
        found(
            "warning" if projects else "note",
            "seen on the text",
            "norm",
            title=f"|mean|/σ of the input reaches {number(value)} in {name(worst.name)} and exceeds {RISKY_MEAN:.0f} "
            f"in {part(risky, result.norms)}: a risk in half precision.",
            evidence=f"The median over all norms and inputs is "
            f"{number(median(landed_values(result, lambda landing: _median(landing.mean_over_sigma)) or [0.0]))}.",
            why="Half precision holds eleven bits, and the mean takes log2 of this ratio of them.",
            do="Run this norm in float32, or fold its mean: normscope fold MODEL -o FOLDER",
            sites=names(risky),
            norms=names(risky),
            figure=(value, RISKY_MEAN),
        )
    ]


def _means(result: Inspection) -> list[tuple[NormGeometry, float]]:
    return landed(result, lambda landing: landing.mean_over_sigma_max)


def _ones(landing: Landing) -> float | None:
    return _median(landing.ones_share)


@rule(
    "NS302",
    "mean-dominates",
    Threshold(
        MUCH_ALONG_ONES,
        lambda result: max(landed_values(result, _ones), default=None),
        "share of the mean in |x|² at a norm, median over inputs",
    ),
)
def mean_dominates(result: Inspection) -> Outcome:
    """Much of a norm's input is its mean.

    A LayerNorm removes the part of its input along the ones vector, and an RMSNorm keeps it. Where that part is small,
    both are nearly the same, and the mean can be dropped; where it is large, they are not.

    What to do: do not replace this LayerNorm by an RMSNorm as it is; `normscope fold --rms` does it without a change.
    """
    shares = landed(result, _ones)
    if not shares:
        return NEEDS_TEXT
    most, share = max(shares, key=second)
    much = [norm for norm, value in shares if value > MUCH_ALONG_ONES]
    if not much:
        return f"At most {percent(share)} of |x|² lies along the mean ({name(most.name)}, median over the inputs)."
    keeps = most.kind in ("rmsnorm", "affine")
    fate = "which it keeps" if keeps else "which its projection removes"
    return [
        found(
            "note",
            "seen on the text",
            "norm",
            title=f"{percent(share)} of |x|² at {name(most.name)} lies along the ones vector (median over the inputs), "
            f"{fate}.",
            evidence=f"{part(much, result.norms)} {verb(much, 'has', 'have')} more than {percent(MUCH_ALONG_ONES)}; "
            f"the median over norms is {percent(median(value for _, value in shares))}.",
            why="A LayerNorm and an RMSNorm of the same input differ by an angle that grows with this share.",
            do="Nothing, if the norm keeps the mean."
            if keeps
            else "To use an RMSNorm here: normscope fold MODEL -o FOLDER --rms",
            sites=names(much),
            norms=names(much),
            figure=(share, MUCH_ALONG_ONES),
        )
    ]


def _nearness(landing: Landing) -> float | None:
    return _median(landing.nearness)


@rule(
    "NS303",
    "eps-dominates",
    Threshold(
        FAR_FROM_SURFACE,
        lambda result: min(landed_values(result, _nearness), default=None),
        "closeness of outputs to the surface, median over inputs",
        below=True,
    ),
)
def eps_dominates(result: Inspection) -> Outcome:
    """Outputs of a norm stay far from its surface: its inputs are small beside eps.

    With eps = 0 every output lies on the surface of the ellipsoid. A large eps, or a small input, leaves it inside, and
    the norm scales less than it is meant to.

    What to do: check that eps is that of training, and that the input is not scaled down by mistake.
    """
    near = landed(result, _nearness)
    if not near:
        return NEEDS_TEXT
    worst, value = min(near, key=second)
    far = [norm for norm, each in near if each < FAR_FROM_SURFACE]
    if not far:
        return (
            "eps is small beside the inputs: it shortens half of the outputs of every norm by "
            f"{percent(max(0.0, 1 - value))} or less."
        )
    return [
        found(
            "note",
            "seen on the text",
            "norm",
            title=f"Half of the inputs of {name(worst.name)} land at {number(value)} or less of the way to "
            "the surface.",
            evidence=f"The median is below {FAR_FROM_SURFACE} in {part(far, result.norms)}; eps is "
            f"{number(worst.found.eps or 0.0)}.",
            why="The norm does not bring its inputs to one size: small inputs stay small behind it.",
            do="Check that eps is that of training, and that the input is not scaled down.",
            sites=names(far),
            norms=names(far),
            figure=(value, FAR_FROM_SURFACE),
        )
    ]


def _steps(result: Inspection) -> list[tuple[NormGeometry, float]]:
    """The median step of the norms that have as many channels as most."""
    steps = [pair for pair in landed(result, lambda landing: _median(landing.step)) if pair[1] > 0]
    sizes = Counter(norm.found.size for norm, _ in steps)
    return [(norm, step) for norm, step in steps if norm.found.size == sizes.most_common(1)[0][0]]


def _sharpest(result: Inspection) -> float | None:
    steps = [step for _, step in _steps(result)]
    return median(steps) / min(steps) if len(steps) > 1 else None


@rule("NS306", "sharp-turns", Threshold(SHARP, _sharpest, "median step of all norms over the least"))
def sharp_turns(result: Inspection) -> Outcome:
    """A norm turns its output far more easily than the others: a small step at its input is enough.

    The direction of what is normalized turns by 10° with a step of tan 10° times its length. Inputs of the first norms
    are often short (embeddings), and the stream grows from layer to layer.

    What to do: keep what writes to these norms, such as embeddings, in full precision; rounding turns them most.
    """
    steps = _steps(result)
    if not any(norm.landing for norm in result.norms):
        return NEEDS_TEXT
    if len(steps) < 2:
        return "Fewer than two norms can be compared."
    middle = median(step for _, step in steps)
    least, step = min(steps, key=second)
    sharp = [norm for norm, each in steps if middle > SHARP * each]
    if not sharp:
        return (
            f"An input change of length {number(step)} rotates the output of {name(least.name)} by 10°; at the median "
            f"norm it takes {number(middle)}."
        )
    rest = [norm for norm in sharp if norm is not least]
    many = "1 norm is" if len(sharp) == 1 else f"{len(sharp)} norms are up to"
    return [
        found(
            "note",
            "seen on the text",
            "norm",
            title=f"{many} about {number(_two_digits(middle / step))} times as sensitive as the median norm: an input "
            f"change of length {number(step)} rotates the output of {name(least.name)} by 10°.",
            evidence=f"At the median norm it takes a change of {number(middle)}."
            + (f" The same holds at {listed(map(name, names(rest)), 3)}." if rest else ""),
            why="An error of the same size at its input changes what it passes on that much more.",
            do="Keep what writes its input, such as embeddings, in full precision.",
            sites=names(sharp),
            norms=names(sharp),
            figure=(middle / step, SHARP),
        )
    ]


def _two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def _fits(result: Inspection) -> tuple[str, list[tuple[NormGeometry, float]]]:
    """Which fits can be compared, and the share that each leaves: full ones, or where there are none, frozen scales."""
    fits = [(norm, norm.landing.affine_fit) for norm in result.norms if norm.landing and norm.landing.affine_fit]
    kind = "full" if any(fit.fit == "full" for _, fit in fits) else "frozen scale"
    return kind, [(norm, fit.unexplained) for norm, fit in fits if fit.fit == kind]


@rule(
    "NS310",
    "not-affine",
    Threshold(
        NOT_AFFINE,
        lambda result: max((share for _, share in _fits(result)[1]), default=None),
        "share of a norm's output that an affine map leaves unexplained",
    ),
)
def not_affine(result: Inspection) -> Outcome:
    """A norm can't be replaced by an affine map without a loss.

    An affine map is fitted to half of the inputs and measured on the others: the share of the output's variance that it
    does not explain. Where inputs are too few for that, one fixed number stands in for the norm's divisor.

    What to do: nothing. Do not freeze these norms, or treat them as linear when you attribute outputs.
    """
    kind, shares = _fits(result)
    if not any(norm.landing for norm in result.norms):
        return NEEDS_TEXT
    if not shares:
        return "No norm was fitted: none scales, or its outputs do not differ."
    (most, high), (least, low) = max(shares, key=second), min(shares, key=second)
    by = "an affine map" if kind == "full" else "a fixed scale (one number in place of the divisor)"
    bent = [norm for norm, share in shares if share > NOT_AFFINE]
    if not bent:
        return (
            f"In place of a norm, {by} loses at most {percent(high)} of the output's variance on inputs that were held "
            f"out ({name(most.name)})."
        )
    return [
        found(
            "note",
            "seen on the text",
            "norm",
            title=f"{part(bent, result.norms)} can't be replaced by {by}: that loses over {percent(NOT_AFFINE)} of the "
            f"output's variance (most at {name(most.name)}: {percent(high)}).",
            evidence=f"Fitted to half of the inputs and measured on the others; the least loss is {percent(low)}, at "
            f"{name(least.name)}.",
            why="A method that takes these norms to be linear is wrong by that much.",
            do="Nothing; do not freeze them when you attribute outputs.",
            sites=names(bent),
            norms=names(bent),
            figure=(high, NOT_AFFINE),
        )
    ]
