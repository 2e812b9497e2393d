"""What the report says in words: of the model as a whole, and of each norm."""

from collections.abc import Sequence
from pathlib import PurePath

from normscope.report.places import short_place, stacks_of
from normscope.results.finding_list import SEVERITIES, Finding, FindingList
from normscope.results.inspection import Inspection, NormGeometry
from normscope.results.layer_ranges import LayerRanges
from normscope.results.result import Result
from normscope.rules.inspection import KINDS, headline
from normscope.rules.prose import count, number, quoted_token

LONGEST = 2000  # characters of a name, a token or a sentence in the page


def visible(text: object, most: int = LONGEST) -> str:
    r"""A text without control and direction marks, which become ·; line breaks become ↵.

    >>> visible("a\u202eb\nc"), visible("abc", 2)
    ('a·b↵c', 'ab…')
    """
    shown = str(text)
    kept = "".join(
        "↵" if each == "\n" else each if each.isprintable() or "\ud800" <= each <= "\udfff" else "·"
        for each in shown[:most]
    )
    return kept + ("…" if len(shown) > most else "")


def norm_sentence(norm: NormGeometry) -> str:
    """One norm in one sentence."""
    found = norm.found
    kind = KINDS[norm.kind]
    article = "An" if kind[0] in "RL" and kind[:2] in ("RM", "LN") else "A"
    what = (
        f"{article} {kind} of {count(found.size, 'channel')}" if norm.kind != "unknown" else "A layer of unknown kind"
    )
    if norm.kind == "unknown" or norm.dimension is None:
        return f"{what}."
    if norm.axes is None:
        return f"{what}. It does not scale, so its outputs have no bound." if norm.dimension else f"{what}."
    return f"{what}. Everything it can ever write lies on or in an ellipsoid of {norm.dimension:,} dimensions."


def norm_facts(norm: NormGeometry) -> list[tuple[str, str]]:
    """Labels and values in words."""
    found, facts = norm.found, []
    for label, names in (("reads", norm.reads), ("read by", norm.read_by)):
        if names:
            shown = ", ".join(short_place(name) for name in names) if len(names) <= 3 else f"{len(names)} modules"
            facts.append((label, shown))
    if norm.axes is not None:
        reach = max(norm.axes.high, -norm.axes.low)
        channel = norm.axes.high_channel if norm.axes.high >= -norm.axes.low else norm.axes.low_channel
        facts.append(("largest output ever", f"±{number(reach)} in channel {channel}"))
    if norm.landing is not None and norm.landing.largest is not None:
        largest = norm.landing.largest
        at = ""
        if largest.token is not None:
            text = "" if largest.token.text is None else f"{quoted_token(largest.token.text)}, "
            at = f" at {text}token {largest.token.position} of sequence {largest.token.sequence}"
        facts.append(("largest input", f"{number(largest.value)} in channel {largest.channel}{at}"))
        if norm.landing.typical is not None:
            facts.append(("median input", number(norm.landing.typical)))
    if found.eps is not None:
        facts.append(("eps", number(found.eps)))
    if norm.gains is not None and norm.gains.dead:
        facts.append(("zero gains", f"{norm.gains.zero:,}"))
    for label, value in (("gate", found.gate), ("called at", found.function), ("not checked", found.unchecked)):
        if value:
            facts.append((label, str(value)))
    if found.assumed:
        facts.append(("assumed", ", ".join(found.assumed)))
    return [(label, visible(value, 300)) for label, value in facts]


def model_title(model: str) -> str:
    """A model by the last parts of its path."""
    parts = PurePath(model).parts
    return model if len(parts) < 2 else parts[-1] if "." in parts[-1] else "/".join(parts[-2:])


def model_lead(results: Sequence[Result], inspection: Inspection | None, findings: Sequence[Finding]) -> str:
    """What it is; its worst finding; its best guarantee."""
    sentences = []
    if inspection is not None:
        stacks = stacks_of(inspection)
        blocks = sum(any(row is not None for row, _ in column.cells) for stack in stacks for column in stack.columns)
        kinds = dict.fromkeys(KINDS[norm.kind] for norm in inspection.norms)
        sizes = sorted({norm.found.size for norm in inspection.norms if norm.found.size})
        plural = [
            f"{sum(KINDS[norm.kind] == kind for norm in inspection.norms)} {kind}{'s' if kind.endswith('Norm') else ''}"
            for kind in kinds
        ]
        inside = f" in {count(blocks, 'block')}" if blocks else ""
        wide = f" of {sizes[-1]:,} channels" if sizes else ""
        where = {"pre-norm": ", each before an attention or an MLP", "post-norm": ", each after a sum"}
        sentences.append(
            f"{' and '.join(plural) or 'No norm'}{inside}{wide}{where.get(inspection.placement or '', '')}."
        )
    worst = next((finding for finding in findings if finding.severity != "note"), None)
    if worst is not None:
        sentences.append(worst.title if worst.title.endswith(".") else f"{worst.title}.")
    ranges = next((result for result in results if isinstance(result, LayerRanges)), None)
    bounds = [abs(row.bound or 0.0) for row in ranges.layers if row.grade == "exact"] if ranges is not None else []
    if ranges is not None and ranges.limit.tensors and ranges.limit.excluded == ranges.limit.tensors:
        sentences.append(f"None of its tensors can leave {ranges.limit.type}, whatever the input.")
    elif bounds:
        sentences.append(
            f"Every linear layer that reads a norm stays within ±{number(max(bounds))}, whatever the input."
        )
    return " ".join(sentences) or "Nothing is known about its norms."


def model_facts(model: str, inspection: Inspection | None) -> list[str]:
    return [model, *(headline(inspection)[1:] if inspection is not None else [])]


def verdict_on(findings: FindingList | None) -> str:
    if findings is None:
        return "Findings were not asked for"
    counts = [(findings.count(severity), severity) for severity in SEVERITIES]
    words = [count(many, severity) for many, severity in counts if many]
    if not words:
        return "No finding"
    joined = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return joined if any(many for many, severity in counts if severity != "note") else f"No warning, and {joined}"
