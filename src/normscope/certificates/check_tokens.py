"""Are findings about a table right? From the table and their certificates alone.

    a hidden vector h       wᵢ·h + cᵢ > wⱼ·h + cⱼ for all j ≠ i
    a u, |u| ≤ 1            the same for h = b + √N·GΠu
    weights λ > 0, Σλ = 1   token i is a weighted mean of others, of no less height, as `hull_proofs` judges it; or, of
                            reachable vectors, d = wᵢ − Σλw has |√N·ΠGd| + b·d + cᵢ − Σλc ≤ 0 beyond doubt

All this in double precision, with a bound on what rounding may have done: an inequality counts if it holds by more. Own
directions are asked again in single precision first, with a bound of their own, and near ties as above.

Which verdict weights give is found out here and nowhere else: a token is tied if it equals another one, or if its
weights hold only up to rounding, and never wins otherwise. The search asks the functions of this file before it keeps
anything, and own directions are set up by the same code there and here (`own_directions`, `table`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.hull_proofs import NEAR_TIE, PROVEN, TINY, WRONG, judged, proven_in_floats, tolerance
from normscope.certificates.key_certificates import Ints
from normscope.certificates.key_margins import lifted, margins
from normscope.certificates.token_directions import POWERS, OwnDirections
from normscope.certificates.token_table import UNIT, Outputs, Table, View, in_parts
from normscope.checks import Floats
from normscope.separation.duplicates import set_duplicates_apart
from normscope.vocabulary.findings import NEVER, OPEN, TIED, WINS, Answers, Findings

Progress = Callable[[Iterable[Any], str], Iterable[Any]]  # wraps what is gone through, with a word on what it is

AT_ONCE = 256  # vectors
MOST_NEAR = 64  # rivals within rounding of a token, beyond which it is not looked at again


def first_fault(table: Table, findings: Findings, progress: Progress = lambda things, _: things) -> str | None:
    """The first thing that is wrong with findings about a table; None if each has its proof."""
    return next(_faults(table, findings, progress), None)


def prefers(table: Table, tokens: Ints, vectors: Floats) -> NDArray[np.bool_]:
    """Whether each hidden vector (m, N) prefers its token to all others beyond doubt.

    >>> table = Table(np.array([[0.0], [1.0], [3.0]], np.float32))
    >>> prefers(table, np.array([2, 1]), np.array([[1.0], [1.0]]))
    array([ True, False])
    """
    return _wins(table, np.arange(len(table)), tokens, vectors, table.bias, np.zeros_like(vectors))


def prefers_by_row(table: Table, rivals: Ints, tokens: Ints, vectors: Floats) -> NDArray[np.bool_]:
    """Whether each hidden vector, once it is long enough for biases not to matter, prefers its token to all rivals."""
    return _wins(table, rivals, tokens, vectors, None, np.zeros_like(vectors))


def prefers_reachable(table: Table, tokens: Ints, u: Floats) -> NDArray[np.bool_]:
    """Whether the outputs of the norm for each u (m, N) prefer its token to all others, and |u| ≤ 1."""
    outputs, size = _outputs_of(table), table.channels
    inside = np.einsum("ij,ij->i", u, u) <= 1 - 2 * (size + 2) * UNIT
    reach = np.sqrt(size) * np.abs(outputs.gain)
    mean = np.abs(u).mean(axis=1, keepdims=True) if outputs.projects else 0.0
    off = (size + 8) * UNIT * reach * (np.abs(u) + mean) + 2 * UNIT * np.abs(outputs.center)
    inside &= _wins(table, np.arange(len(table)), tokens, outputs.at(u), table.bias, off)
    return np.asarray(inside)


def verdict_of(table: Table, reachable: bool, token: int, indices: Ints, weights: Floats) -> int:
    """What weights of other tokens show: NEVER, TIED, or nothing: OPEN. Tokens that occur twice are tied anyway.

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
        rows = np.append(token, indices)
        keys = lifted(table.doubles(rows), None if table.bias is None else table.bias[rows])
        kind = int(judged(keys[:1], keys[None, 1:], weights[None], table.bias is not None)[0])
    return {WRONG: OPEN, NEAR_TIE: TIED, PROVEN: NEVER}[kind]


def _judged_by_reachable(table: Table, token: int, indices: Ints, weights: Floats) -> int:
    """The same for the points and heights that reachable vectors see.

    ΠGx = 0 iff all entries of Gx are equal; iff x is 0 in the live channels, where a gain is 0 or nothing is projected.
    """
    outputs, share = _outputs_of(table), tolerance(table.channels)
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
    outputs = _outputs_of(table)
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


def _wins(
    table: Table, rivals: Ints, tokens: Ints, vectors: Floats, bias: Floats | None, off: Floats
) -> NDArray[np.bool_]:
    """Whether each vector, entries of which may be off by so much, scores its token above all rivals beyond doubt.

    Rivals are in order, and the tokens are among them. What is within rounding is computed again without, unless the
    vector itself is only known so far.
    """
    wins = np.zeros(len(tokens), bool)
    for start in range(0, len(tokens), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        some, asked = tokens[part], vectors[part]
        own = np.einsum("ij,ij->i", table.doubles(some), asked) + (0.0 if bias is None else bias[some])
        best = np.full(len(some), -np.inf)
        for _, scores in _scores(table, rivals, some, asked, bias):
            best = np.maximum(best, scores.max(axis=1))
        doubt = ((table.channels + 3) * UNIT * np.abs(asked) + off[part]) @ table.widest
        doubt += 0.0 if bias is None else 2 * UNIT * np.abs(bias).max()
        wins[part] = own - best > 2.02 * doubt
        for a in np.flatnonzero((np.abs(own - best) <= 2.02 * doubt) & ~off[part].any(axis=1)):
            near = [
                rivals[first + np.flatnonzero(own[a] - scores[0] <= 4.04 * doubt[a])]
                for first, scores in _scores(table, rivals, some[[a]], asked[[a]], bias)
            ]
            wins[start + a] = _wins_exactly(table, int(some[a]), np.concatenate(near), asked[a], bias)
    return wins


def _scores(
    table: Table, rivals: Ints, tokens: Ints, vectors: Floats, bias: Floats | None
) -> Iterator[tuple[int, Floats]]:
    """Scores of some rivals at a time, with the number of the first: (m, some); −∞ for the token itself."""
    places, line = np.searchsorted(rivals, tokens), np.arange(len(tokens))
    for part in in_parts(len(rivals), table.channels):
        scores = vectors @ table.doubles(rivals[part]).T
        scores += 0.0 if bias is None else bias[rivals[part]]
        here = (places >= part.start) & (places < part.stop)
        scores[line[here], places[here] - part.start] = -np.inf
        yield part.start, scores


def _wins_exactly(table: Table, token: int, near: Ints, vector: Floats, bias: Floats | None) -> bool:
    if len(near) > MOST_NEAR:
        return False
    rows = np.append(token, near)
    keys = lifted(table.doubles(rows), None if bias is None else bias[rows])
    query = vector if bias is None else np.append(vector, 1.0)
    return bool(margins(keys, np.array([0]), query[None]).proven[0])


def _faults(table: Table, findings: Findings, progress: Progress) -> Iterator[str]:
    """To be asked for the first only."""
    plain, reachable = findings.plain, findings.reachable
    questions = [("plain", plain)] if reachable is None else [("plain", plain), ("reachable", reachable)]
    if reachable is not None and table.outputs is None:
        yield "the file says what can be reached, but nothing is known of what the norm writes"
        return
    names, twin_of = set_duplicates_apart(table.stored(), table.bias)
    for question, answers in questions:
        yield from _form_faults(table, answers, question)
        yield from _wrong_own_directions(table, names, np.array(list(twin_of), np.int64), answers, question, progress)
        yield from _wrong_queries(table, answers, question)
    tied = [token for token, twin in twin_of.items() if table.bias is None or table.bias[token] == table.bias[twin]]
    shown = {question: _shown(table, answers, question) for question, answers in questions}
    shown["plain"][tied] = np.where(shown["plain"][tied] == NEVER, TIED, shown["plain"][tied])
    if reachable is not None:  # who wins by a reachable vector wins, and who never wins is not won by one
        ours, theirs = shown["plain"].copy(), shown["reachable"].copy()
        shown["plain"] = np.where((ours == OPEN) & (theirs == WINS), WINS, ours)
        shown["reachable"] = np.where((theirs == OPEN) & np.isin(ours, (NEVER, TIED)), ours, theirs)
    for question, answers in questions:
        wrong = np.flatnonzero(answers.verdict != shown[question])
        if len(wrong):
            said, found = (WORDS[int(of[wrong[0]])] for of in (answers.verdict, shown[question]))
            yield f"{question}: token {wrong[0]} is said {said}, and its certificate shows it {found}"


WORDS = {OPEN: "to be open", WINS: "to win", NEVER: "never to win", TIED: "to be tied"}


def _form_faults(table: Table, answers: Answers, question: str) -> Iterator[str]:
    if len(answers.verdict) != len(table):
        yield f"{question}: there must be a verdict for each of {len(table)} tokens, got {len(answers.verdict)}"
    if any(query.shape != (table.channels,) for query in answers.queries.values()):
        yield f"{question}: queries must have {table.channels} channels"
    frame, along_themselves = answers.frame, answers.power != 0
    if along_themselves.any() and (frame is None or frame.center.shape != (table.channels,)):
        yield f"{question}: own directions need a frame of {table.channels} channels"
    if not np.isin(answers.power[along_themselves], POWERS).all():
        yield f"{question}: powers must be among {', '.join(map(str, POWERS))}"
    certificates = along_themselves.astype(int)
    certificates[list(answers.queries)] += 1
    certificates[list(answers.weights)] += 1
    if (certificates > 1).any():
        yield f"{question}: token {np.flatnonzero(certificates > 1)[0]} must have one certificate, got more"


def _shown(table: Table, answers: Answers, question: str) -> NDArray[np.int8]:
    """The verdicts that the certificates of one question give, where vectors are known to be right."""
    shown = np.where(answers.power != 0, WINS, OPEN).astype(np.int8)
    shown[list(answers.queries)] = WINS
    for token, (indices, weights) in answers.weights.items():
        shown[token] = verdict_of(table, question == "reachable", token, indices, weights)
    return shown


def _wrong_own_directions(
    table: Table, names: Ints, twins: Ints, answers: Answers, question: str, progress: Progress
) -> Iterator[str]:
    served = answers.power != 0
    if not served.any():
        return
    assert answers.frame is not None  # or it would have been a fault of form
    if served[twins].any():  # the view below holds one of each kind only
        yield f"{question}: token {twins[served[twins]][0]} is said to win, but has a twin"
    view = View(table, names, question == "reachable")
    for power in np.unique(answers.power[served]):
        own = OwnDirections(view, answers.frame, float(power))
        tokens = np.searchsorted(names, np.flatnonzero(answers.power == power))
        for block in progress(own.blocks(tokens), f"checking own directions, {question}"):
            asked = own.ask(block)
            doubtful = np.flatnonzero(~asked.proven)
            if len(doubtful):
                again = win_in_doubles(view, own, block[doubtful])
                if not again.all():
                    token = names[block[doubtful[~again]][0]]
                    yield f"{question}: token {token} does not win along itself"


def win_in_doubles(view: View, own: OwnDirections, tokens: Ints) -> NDArray[np.bool_]:
    """Whether tokens of a view win along themselves, in double precision."""
    queries, names = own.queries(tokens), view.names[tokens]
    if view.reachable:
        return prefers_reachable(view.table, names, queries)
    return prefers_by_row(view.table, view.names, names, queries)


def _wrong_queries(table: Table, answers: Answers, question: str) -> Iterator[str]:
    if not answers.queries:
        return
    tokens = np.array(sorted(answers.queries), np.int64)
    queries = np.array([answers.queries[token] for token in tokens.tolist()])
    wins = prefers(table, tokens, queries) if question == "plain" else prefers_reachable(table, tokens, queries)
    if not wins.all():
        yield f"{question}: the vector of token {tokens[~wins][0]} does not prefer it to all others"


def _outputs_of(table: Table) -> Outputs:
    return View(table, np.arange(0), reachable=True).outputs
