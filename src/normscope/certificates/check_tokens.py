"""Check verdicts on the tokens of a table, from the table and the certificates alone.

    a hidden vector h       wᵢ·h + cᵢ > wⱼ·h + cⱼ for all j ≠ i
    a u, |u| ≤ 1            the same for h = b + √N·GΠu
    weights λ > 0, Σλ = 1   token i is a weighted mean of others, at no less height, as `hull_proofs` decides; or, for
                            reachable vectors, d = wᵢ − Σλw has |√N·ΠGd| + b·d + cᵢ − Σλc ≤ 0 beyond rounding

Vectors, including own directions, are scored by `token_scores`, which bounds its rounding: an inequality counts if it
holds by more. The verdict of weights is decided here: a token is tied if it equals another one, or if its weights
hold only up to rounding, and never wins otherwise. Every verdict, count and list must follow from that.

This file and its imports know the table and the certificates, and no search code. The search calls these
functions before it keeps a certificate, but screens own directions with faster code of its own.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.hull_proofs import NEAR_TIE, PROVEN, TINY, WRONG, judged, proven_in_floats, tolerance
from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import NEVER, OPEN, TIED, WINS, WORDS, TokenCertificates
from normscope.certificates.token_scores import (
    MANY,
    OwnDirectionCheck,
    outputs_of,
    prefers,
    prefers_reachable,
)
from normscope.certificates.token_table import UNIT, Table
from normscope.checks import Floats, quoted
from normscope.errors import InputError
from normscope.progress import Progress, silent

NAMES = {False: "any hidden vector", True: "reachable vectors"}


class TableRead(NamedTuple):
    """A model read again: its table, and the other facts that a result states about it."""

    table: Table
    says: Mapping[str, Any]  # by the field names of a result


def check(result: Any, progress: Progress = silent, against: TableRead | None = None) -> tuple[bool, str]:
    """Whether every certificate is right and gives the verdicts, counts and lists of a result, and why.

    Parameters
    ----------
    result
        A `TokenVerdicts`, returned by `normscope.vocab` or loaded from a file.
    progress
        See `normscope.progress`.
    against
        The model, read again: a file has only the SHA-256 of its table. `normscope.verify` gives it.

    Returns
    -------
    tuple of bool and str
        Whether it holds, and what it proves, or the first error.
    """
    if against is None:
        raise InputError("verdicts on tokens can only be checked against the table of the model: use normscope.verify")
    if result.sha256 != against.table.sha256:
        return False, "the certificates are for another table: its SHA-256 differs"
    fault = first_fault(against.table, result.any_vector, result.reachable, progress) or _wrong_summary(result)
    if fault is not None:
        return False, fault
    said = result.to_dict()
    for name, value in against.says.items():
        if said[name] != value:
            return False, f"{name} must be {quoted(value)}, as the model has it, got {quoted(said[name])}"
    found = [(result.any_vector, False), (result.reachable, True)]
    proven = [f"{NAMES[kind]}: {_in_words(each)}" for each, kind in found if each is not None]
    return True, "; ".join([*proven, *([f"assumed: {', '.join(result.assumed)}"] if result.assumed else [])])


def first_fault(
    table: Table, any_vector: TokenCertificates, reachable: TokenCertificates | None, progress: Progress = silent
) -> str | None:
    """The first error in verdicts on a table; None if each has its proof."""
    return next(_faults(table, any_vector, reachable, progress), None)


def verdict_of(table: Table, reachable: bool, token: int, indices: Ints, weights: Floats) -> int:
    """The verdict that weights of other tokens prove: NEVER, TIED, or OPEN. A token equal to another is always tied.

    >>> line = Table(np.array([[0.0], [1.0], [4.0]], np.float32))
    >>> verdict_of(line, False, 1, np.array([0, 2]), np.array([0.75, 0.25])) == NEVER
    True
    """
    if (indices == token).any() or not (weights > 0).all():
        return OPEN
    if reachable:
        if rules_out(table, token, indices, weights):
            return NEVER
        kind = _judged_by_reachable(table, token, indices, weights)
    else:
        keys = table.keys(np.append(token, indices))
        kind = int(judged(keys[:1], keys[None, 1:], weights[None], table.bias is not None)[0])
    return {WRONG: OPEN, NEAR_TIE: TIED, PROVEN: NEVER}[kind]


def _judged_by_reachable(table: Table, token: int, indices: Ints, weights: Floats) -> int:
    """The same for the points and heights that count for reachable vectors.

    ΠGx = 0 iff all entries of Gx are equal; iff x is 0 in the live channels, where a gain is 0 or nothing is projected.
    """
    outputs, share = outputs_of(table), tolerance(table.channels)
    others = table.doubles(indices)
    difference = others - table.doubles(np.array([token]))
    scaled = difference * outputs.gain
    heights, sizes = difference @ outputs.center, np.abs(difference) @ np.abs(outputs.center)
    if table.bias is not None:
        added = table.bias[indices] - table.bias[token]
        heights, sizes = heights + added, sizes + np.abs(added)
    pulled, whole = outputs.pull(weights @ difference), np.abs(outputs.gain) * (weights @ np.abs(difference))
    whole = np.sqrt(table.channels) * (whole + (whole.mean() if outputs.projects else 0.0))
    if (np.abs(pulled) > share * whole).any() or weights @ heights < -share * (weights @ sizes):
        return WRONG
    if abs(weights.sum() - 1) > share:
        return WRONG
    if outputs.projects and outputs.gain.all():
        rows = scaled[:, 1:] - scaled[:, :1]
        moved = (difference[:, 1:] != 0) | (difference[:, :1] != 0)
        off = 4 * UNIT * (np.abs(scaled[:, 1:]) + np.abs(scaled[:, :1])) + TINY * moved
    else:
        rows = difference[:, outputs.gain != 0]
        off = UNIT * np.abs(rows) + TINY * (rows != 0)
    rows = np.column_stack([rows, heights])
    raised = ((difference != 0) & (outputs.center != 0)).any(axis=1) | (heights != 0)
    off = np.column_stack([off, (table.channels + 4) * (UNIT * sizes + TINY * raised)])
    proven = proven_in_floats(rows[None], off[None], weights[None], True)[0]
    return PROVEN if proven and len(indices) > 1 else NEAR_TIE


def rules_out(table: Table, token: int, indices: Ints, weights: Floats) -> bool:
    """Whether weights of other tokens show that no reachable vector prefers a token to all of them."""
    outputs = outputs_of(table)
    if (indices == token).any() or not (weights > 0).all():
        return False
    own, others = table.doubles(np.array([token]))[0], table.doubles(indices)
    difference = weights @ (own - others)
    off = (len(weights) + 3) * UNIT * (weights @ (np.abs(own) + np.abs(others)))
    size, terms = table.channels, np.abs(outputs.center) @ np.abs(difference)
    gained = float(outputs.center @ difference)
    doubt = float((size + 2) * UNIT * terms + np.abs(outputs.center) @ off)
    if table.bias is not None:
        gained += float(weights @ (table.bias[token] - table.bias[indices]))
        doubt += (len(weights) + 3) * UNIT * float(weights @ (np.abs(table.bias[token]) + np.abs(table.bias[indices])))
    turned = np.linalg.norm(outputs.pull(difference))
    doubt += np.sqrt(size) * float(
        np.linalg.norm(outputs.gain * off) + (size + 8) * UNIT * np.linalg.norm(outputs.gain * difference)
    )
    return bool(turned * (1 + (size + 4) * UNIT) + gained + 1.01 * doubt <= 0)


def _faults(
    table: Table, any_vector: TokenCertificates, reachable: TokenCertificates | None, progress: Progress
) -> Iterator[str]:
    """Errors, most basic first; only the first is meaningful."""
    if reachable is not None and table.outputs is None:
        yield "the file has verdicts on reachable vectors, but the outputs of the norm are not known to be bounded"
        return
    shown = {}
    for found, kind in ((any_vector, False), (reachable, True)):
        if found is not None:
            yield from _form_faults(table, found, kind)
            yield from _wrong_vectors(table, found, kind, progress)
            shown[kind] = _shown(table, found, kind)
    shown[False][table.duplicates & (shown[False] == NEVER)] = TIED
    if reachable is not None:  # a token that wins by a reachable vector wins, and one that never wins has none
        ours, theirs = shown[False].copy(), shown[True].copy()
        shown[False] = np.where((ours == OPEN) & (theirs == WINS), WINS, ours)
        shown[True] = np.where((theirs == OPEN) & np.isin(ours, (NEVER, TIED)), ours, theirs)
    for found, kind in ((any_vector, False), (reachable, True)):
        wrong = np.flatnonzero(found is not None and found.verdict != shown[kind])
        if found is not None and len(wrong):
            said, right = (WORDS[int(of[wrong[0]])] for of in (found.verdict, shown[kind]))
            yield f"{NAMES[kind]}: the verdict on token {wrong[0]} is {said!r}, and its certificate shows {right!r}"


def _form_faults(table: Table, found: TokenCertificates, reachable: bool) -> Iterator[str]:
    if len(found.verdict) != len(table):
        yield f"{NAMES[reachable]}: there must be a verdict on each of {len(table)} tokens, got {len(found.verdict)}"
    sizes = [found.queries.shape[1] for _ in range(len(found.queries) > 0)]
    sizes += [] if found.frame is None else [len(found.frame.center)]
    if any(size != table.channels for size in sizes):
        yield f"{NAMES[reachable]}: vectors, center and axes must have {table.channels} channels"


def _wrong_vectors(table: Table, found: TokenCertificates, reachable: bool, progress: Progress) -> Iterator[str]:
    if found.frame is not None:
        own = OwnDirectionCheck(table, found.frame, reachable)
        blocks = [
            (float(power), tokens[start : start + MANY])
            for power in np.unique(found.power[found.power != 0])
            for tokens in [np.flatnonzero(found.power == power)]
            for start in range(0, len(tokens), MANY)
        ]
        for power, tokens in progress(blocks, f"own directions, {NAMES[reachable]}"):
            wins = own.wins(power, tokens)
            if not wins.all():
                yield f"{NAMES[reachable]}: token {tokens[~wins][0]} does not win along its own direction"
    if len(found.queries):
        ask = prefers_reachable if reachable else prefers
        wins = ask(table, found.query_tokens, found.queries)
        if not wins.all():
            token = found.query_tokens[~wins][0]
            yield f"{NAMES[reachable]}: the vector of token {token} does not prefer it to all others"


def _shown(table: Table, found: TokenCertificates, reachable: bool) -> NDArray[np.int8]:
    """The verdicts that certificates give, once the vectors have been checked."""
    shown = np.where(found.power != 0, WINS, OPEN).astype(np.int8)
    shown[found.query_tokens] = WINS
    for token, indices, weights in found.weighted():
        shown[token] = verdict_of(table, reachable, token, indices, weights)
    return shown


def _wrong_summary(result: Any) -> str | None:
    """What contradicts the checked verdicts: counts, or the list of tokens."""
    counts = [
        tuple(found.count(verdict) for verdict in WORDS) for found in (result.any_vector, result.reachable) if found
    ]
    said = [(row.open, row.wins, row.never, row.tied) for row in result.counts]
    if said != counts:
        return f"the counts of verdicts must be {counts}, got {said}"
    others = (
        [result.any_vector.verdict]
        if result.reachable is None
        else [result.any_vector.verdict, result.reachable.verdict]
    )
    rest = np.flatnonzero((np.array(others) != WINS).any(axis=0))
    if [row.token for row in result.listed] != rest.tolist():
        return f"the list of tokens must have the {len(rest)} that do not win, in their order"
    for row in result.listed:
        words = [WORDS[int(found[row.token])] for found in others]
        if [row.any_vector, row.reachable] != [*words, None][:2]:
            return f"the list of tokens contradicts the verdicts on token {row.token}"
    return None


def _in_words(found: TokenCertificates) -> str:
    rest = f", {found.count(TIED):,} tied (equal to another, or decided by rounding)" if found.count(TIED) else ""
    rest += f", {found.count(OPEN):,} left open" if found.count(OPEN) else ""
    return f"{found.count(WINS):,} tokens can win, {found.count(NEVER):,} never{rest}"
