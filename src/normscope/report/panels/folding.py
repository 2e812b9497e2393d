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
    notes = [
        f"{part[0].upper()}{part[1:]} of {listed([name(each) for each in norms])} stays: {reason}."
        for part, norms, reason in _kept(result)
    ]
    if certificate.rewrite_difference is not None:
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


def _kept(result: Folding) -> list[tuple[str, tuple[str, ...], str]]:
    return [(each.part, each.norms, each.reason) for each in result.reasons]


def _cell(norm: str, decision: Decision) -> Cell:
    return Cell(norm, STATES[decision.what], decision.reason)
