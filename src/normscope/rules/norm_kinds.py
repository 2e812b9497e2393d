"""Rules on what the norms of a model are: layers that fit no known norm, what is assumed, what is unusual."""

from collections import Counter

from normscope.results.inspection import Inspection
from normscope.rules.norm_gains import names
from normscope.rules.prose import count, listed, name, part, verb
from normscope.rules.rule import Outcome, Skipped, found, rule

UNBOUNDED = ("projection", "affine")


def _every(many: int) -> str:
    return "The only norm is" if many == 1 else f"All {many:,} norms are"


@rule("NS401", "unknown-norm")
def unknown_norm(result: Inspection) -> Outcome:
    """A layer is called like a norm, but computes none that is known here.

    Every layer is identified by running it on test inputs: it must project, scale, and apply gain and bias, or
    leave some of that out. The check that failed is named. Nothing else is said about such a layer.

    What to do: look at the layer. If it is a norm of another family, its outputs are not covered by any other finding.
    """
    unknown = [norm for norm in result.norms if norm.kind == "unknown"]
    if not unknown:
        return (
            f"{_every(len(result.norms))} of a known kind (LayerNorm, RMSNorm, LN-G or a part of these)."
            if result.norms
            else "No norms."
        )
    named = "; ".join(f"{name(norm.name)} ({norm.found.problem or 'no reason given'})" for norm in unknown[:2])
    rest = f"; and {len(unknown) - 2} more" if len(unknown) > 2 else ""
    return [
        found(
            "note",
            "proved for all inputs",
            "norms",
            title=f"{part(unknown, result.norms)} {verb(unknown, 'fits', 'fit')} no member of the family: "
            f"{named}{rest}.",
            evidence="Its outputs for a few inputs differ from those of every norm that is known here.",
            why="No other finding says anything about what it does.",
            do="Look at its code; an unusual norm may need care in every tool, not only in this one.",
            sites=names(unknown),
            norms=names(unknown),
            figure=(len(unknown), None),
        )
    ]


@rule("NS402", "unusual-eps-place")
def unusual_eps_place(result: Inspection) -> Outcome:
    """A norm has its eps in an unusual place: outside the root, or as a floor.

    Most norms divide by √(σ² + ε). One that divides by σ + ε, or by max(σ, ε), gives other outputs for small
    inputs, and code that converts the model to another framework easily gets it wrong.

    What to do: check that the place of eps survives every conversion of this model.
    """
    unusual = [norm for norm in result.norms if norm.found.eps_place in ("outside", "floor")]
    told = [norm for norm in result.norms if norm.found.eps_place is not None]
    if not told:
        return Skipped("the place of eps is not known of any norm")
    if not unusual:
        return f"eps stands inside the root in all {count(len(told), 'norm')} where it can be told."
    places = Counter(str(norm.found.eps_place) for norm in unusual)
    words = {"outside": "outside the root", "floor": "a floor of the divisor"}
    where = " and ".join(f"{words[place]} in {many}" for place, many in places.items())
    return [
        found(
            "note",
            "proved for all inputs",
            "norms",
            title=f"eps is {where} of {count(len(result.norms), 'norm')}, as in {name(unusual[0].name)}.",
            evidence="Most norms divide by the root of variance plus eps; the place was found by running the module.",
            why="Converted to another framework, such a norm gives other outputs for small inputs.",
            do="Check that eps keeps its place whenever the model is converted.",
            sites=names(unusual),
            norms=names(unusual),
            figure=(len(unusual), None),
        )
    ]


@rule("NS403", "unchecked-norm")
def unchecked_norm(result: Inspection) -> Outcome:
    """What a norm computes inside the model was not checked.

    A norm is identified alone, and then again where the model calls it. Where the second was not possible, claims
    for all inputs are not made about it.

    What to do: give inputs with which the model can be traced (`--inputs`).
    """
    unchecked = [norm for norm in result.norms if norm.found.unchecked and not norm.found.assumed]
    if not unchecked:
        assumed = sum(norm.found.unchecked is not None for norm in result.norms)
        checked = count(len(result.norms) - assumed, "norm")
        rest = f"; what {assumed:,} compute is assumed (NS404)" if assumed else ""
        return f"{checked} {'was' if checked.startswith('1 ') else 'were'} checked where the model calls them{rest}."
    reasons = Counter(norm.found.unchecked for norm in unchecked)
    named = "; ".join(f"{reason} ({many})" if len(reasons) > 1 else str(reason) for reason, many in reasons.items())
    computes = verb(unchecked, "computes", "compute")
    return [
        found(
            "note",
            "heuristic",
            "norms",
            title=f"What {part(unchecked, result.norms)} {computes} inside the model was not checked: {named}.",
            evidence="Run alone, they compute what is reported.",
            why="If the model calls them in another way, figures about them describe something else.",
            do="Give inputs that the model can be called with: --inputs FILE.",
            sites=names(unchecked),
            norms=names(unchecked),
            figure=(len(unchecked), None),
        )
    ]


@rule("NS404", "assumed-norm")
def assumed_norm(result: Inspection) -> Outcome:
    """A fact about a norm was assumed, because the file does not show it.

    A checkpoint without its architecture has gains, but neither the kind of the norm nor its eps.

    What to do: give the folder with config.json instead of the file of weights.
    """
    together = Counter(norm.found.assumed for norm in result.norms if norm.found.assumed)
    if not together:
        return "Nothing about a norm was assumed."
    assumed = [norm for norm in result.norms if norm.found.assumed]
    clauses = [
        f"{listed(fact.replace('_', ' ') for fact in what)} of {many} of {count(len(result.norms), 'norm')}"
        for what, many in together.items()
    ]
    return [
        found(
            "note",
            "heuristic",
            "norms",
            title=f"Assumed, because it could not be observed: {'; '.join(clauses)}.",
            evidence="The file holds tensors by name, and nothing that computes.",
            why="Where an assumption is wrong, all figures about the norm are.",
            do="Give the folder with config.json.",
            sites=names(assumed),
            norms=names(assumed),
            figure=(len(assumed), None),
        )
    ]


@rule("NS405", "gated-norm")
def gated_norm(result: Inspection) -> Outcome:
    """A norm has a gate, a second input that multiplies its input or output.

    Figures describe the norm inside. A gate behind the norm moves its outputs out of the ellipsoid.

    What to do: nothing.
    """
    gated = [norm for norm in result.norms if norm.found.gate]
    if not gated:
        return "No norm has a gate."
    together = Counter(str(norm.found.gate) for norm in gated)
    clauses = [f"{many} of {count(len(result.norms), 'norm')} compute {gate}" for gate, many in together.items()]
    return [
        found(
            "note",
            "proved for all inputs",
            "norms",
            title=f"Gated: {'; '.join(clauses)}; the figures describe the norm inside.",
            evidence="The gate was found by running the module with two inputs.",
            why="A gate behind a norm can make its outputs as large as the gate is.",
            do="Nothing.",
            sites=names(gated),
            norms=names(gated),
            figure=(len(gated), None),
        )
    ]


@rule("NS406", "unscaled-norm")
def unscaled_norm(result: Inspection) -> Outcome:
    """A norm does not scale, so nothing bounds its outputs.

    It may subtract the mean, or apply gain and bias, but it does not divide by the size of its input.

    What to do: nothing, if that is meant; bounds that hold for all inputs end at such a norm.
    """
    unbounded = [norm for norm in result.norms if norm.kind in UNBOUNDED]
    if not unbounded:
        return "Every norm of a known kind divides by the size of its input."
    return [
        found(
            "note",
            "proved for all inputs",
            "norms",
            title=f"{part(unbounded, result.norms)} ({listed(names(unbounded), 2)}) "
            f"{verb(unbounded, 'does', 'do')} not scale: the outputs are unbounded.",
            evidence="Twice the input gives twice the output, apart from the bias.",
            why="No range behind such a norm holds for all inputs.",
            do="Nothing, if that is meant.",
            sites=names(unbounded),
            norms=names(unbounded),
            figure=(len(unbounded), None),
        )
    ]
