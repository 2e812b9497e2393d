"""What stands out in an inspection: the findings of its rules in a sentence each; and the model in a few facts."""

from collections import Counter

from normscope.results.inspection import Inspection
from normscope.rules import norm_gains, norm_inputs, norm_kinds, stream_channels
from normscope.rules.norm_gains import anisotropy, known
from normscope.rules.prose import count, number
from normscope.rules.rule import Rule, titles

MOST_SENTENCES = 8
CAVEATS: tuple[Rule, ...] = (
    norm_kinds.unknown_norm,
    norm_kinds.unchecked_norm,
    norm_kinds.gated_norm,
    norm_kinds.assumed_norm,
)
FINDINGS: tuple[Rule, ...] = (  # most important first
    norm_gains.norm_overflow,
    stream_channels.massive_activation,
    norm_inputs.large_mean,
    stream_channels.outlier_channel,
    norm_inputs.eps_dominates,
    norm_gains.dead_channels,
    norm_gains.uneven_axes,
    norm_inputs.mean_dominates,
    norm_gains.narrow_norm,
    norm_inputs.sharp_turns,
    norm_inputs.not_affine,
    norm_kinds.unscaled_norm,
    norm_kinds.unusual_eps_place,
    norm_gains.negative_gains,
)
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


def remarks(result: Inspection) -> list[str]:
    """What a reader should know first, most important first, in at most eight sentences.

    >>> remarks(Inspection("empty", None, None, False, None, 0, ()))
    ['No normalization layer was found in empty.']
    """
    if not result.norms:
        return [_no_norms(result), *result.notes]
    caveats = [*result.notes, *titles(CAVEATS, result)]
    findings = list(titles(FINDINGS, result))
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


def _no_norms(result: Inspection) -> str:
    if result.untraced is None:
        return f"No normalization layer was found in {result.model}."
    return (
        f"No module of {result.model} is a normalization layer; "
        f"calls of functions were not looked for: {result.untraced}."
    )


def _nothing_stands_out(result: Inspection, after_caveats: bool) -> str:
    ratios = [value for _, value in known(result, anisotropy)]
    shape = f" Longest over shortest axis is {number(min(ratios))} to {number(max(ratios))}." if ratios else ""
    start = "Nothing else" if after_caveats else "Nothing"
    return f"{start} stands out in the {count(len(result.norms), 'norm')} of {result.model}.{shape}"
