"""The panel of a vocabulary: the tokens that can't win."""

from collections.abc import Iterator

from normscope.report.marks import Framed, Panel, Tokens
from normscope.results.token_verdicts import TokenVerdict, TokenVerdicts


def panels(result: TokenVerdicts) -> Iterator[Panel]:
    """One panel: the tokens without a win, by verdict."""
    counts = result.counts[-1]
    lost, total = counts.never + counts.tied, result.tokens
    reached = "output of the last norm" if result.reachable is not None else "hidden vector"
    if lost:
        title = f"{lost:,} of {total:,} tokens can’t win alone"
    elif counts.open:
        title = f"{counts.wins:,} of {total:,} tokens can win; {counts.open:,} are open"
    else:
        title = f"Every one of {total:,} tokens can win"
    see = f"For each of {counts.wins:,} tokens there is an {reached} that scores it above all others."
    see = see.replace("an hidden", "a hidden")
    if counts.tied:
        see += f" {counts.tied:,} {'is' if counts.tied == 1 else 'are'} equal to another token, or decided by rounding."
    if counts.open:
        see += f" {counts.open:,} {'has' if counts.open == 1 else 'have'} no verdict yet: the search was stopped."
    notes = [] if not result.assumed else [f"Assumed, as only tensors were at hand: {'; '.join(result.assumed)}."]
    if result.not_asked:
        notes.append(f"Not asked of outputs of the last norm: {result.not_asked}.")
    rows = [row for row in result.listed if _word(row) != "open"]
    items = tuple(Framed(f"token {row.token}" if row.text is None else row.text, note=_word(row)) for row in rows)
    yield Panel(
        "vocabulary",
        "vocabulary",
        title,
        see,
        (Tokens(items),) if items else (),
        tuple(notes),
        "brody",
        "Token t wins for some h iff its row of the output matrix is not a weighted mean of the others; h runs over "
        "all vectors, then over the ellipsoid of the last norm.",
        command="normscope vocab MODEL -o verdicts.safetensors" if counts.open else "",
    )


def _word(row: TokenVerdict) -> str:
    return row.reachable or row.any_vector
