"""The panel of folding: what can go, and why the rest stays."""

from collections.abc import Iterator
from typing import Literal

from normscope.report.marks import Cell, Panel, Verdicts
from normscope.results.folding import Decision, Folding
from normscope.rules.prose import count, listed, name, number

STATES: dict[str, Literal["yes", "no", "later", "nothing"]] = {
    "folded": "yes",
    "kept": "no",
    "after look-up": "later",
    "nothing to fold": "nothing",
}
WORDS = (
    ("yes", "folds"),
    ("no", "stays"),
    ("later", "folds after look-up, with --rms"),
    ("nothing", "nothing to fold"),
)
REASONS = 4  # in sentences
VERBS = {"kept": "stays", "after look-up": "goes only with --rms"}


def panels(result: Folding) -> Iterator[Panel]:
    """One panel: a row of cells for each step."""
    if not result.norms:
        return
    gains = [each for each in result.norms if each.affine.what != "nothing to fold"]
    folded = [each for each in gains if each.affine.what == "folded"]
    means = sum(each.centring.what == "folded" for each in result.norms)
    title = f"{len(folded)} of {count(len(gains), 'gain')} fold away" if gains else "There is no gain to fold"
    if means:
        title += f", and {count(means, 'mean')}"
    certificate = result.certificate
    kept = _kept(result)
    notes = [
        f"{part} of {listed([name(each) for each in norms])} {VERBS[what]}: {reason}."
        for (part, what, reason), norms in list(kept.items())[:REASONS]
    ]
    if len(kept) > REASONS:
        notes.append(f"{len(kept) - REASONS} more reasons are in the list of every verdict.")
    if certificate is None:
        notes.append("Planned only: the folded model was not made, so there is no certificate of it.")
    elif certificate.rewrite_difference is not None:
        notes.append(
            f"Certificate: in float64 the outputs differ by {number(certificate.rewrite_difference)}, relative; "
            f"{certificate.identities:,} identities were checked, {len(certificate.broken)} failed."
        )
    yield Panel(
        "folding",
        "folding",
        title,
        "What a norm does beside scaling can often be done by the matrices around it. The function stays the same; the "
        "norm does less.",
        (
            Verdicts(
                (
                    ("mean", tuple(_cell(each.norm, each.centring) for each in result.norms)),
                    ("gain and bias", tuple(_cell(each.norm, each.affine) for each in result.norms)),
                ),
                WORDS,
            ),
        ),
        tuple(notes),
        formula="W(g ∘ x + b) + c = (W·diag g)x + (Wb + c); a mean is 0 if all that writes to the stream is centred.",
        command="normscope fold MODEL -o FOLDER",
    )


def _kept(result: Folding) -> dict[tuple[str, str, str], list[str]]:
    """The norms that keep a part, by part, verdict and reason."""
    kept: dict[tuple[str, str, str], list[str]] = {}
    for each in result.norms:
        learned = "The gain" if each.kind.startswith("rms") else "Gain and bias"
        for part, decision in (("The mean", each.centring), (learned, each.affine)):
            if decision.what in VERBS:
                kept.setdefault((part, decision.what, decision.reason), []).append(each.norm)
    return kept


def _cell(norm: str, decision: Decision) -> Cell:
    return Cell(norm, STATES[decision.what], decision.reason)
