"""Check that certificates prove what a result says about its keys: from the result alone, without any search code.

A key reported as selectable must have a query that prefers it to all others, beyond rounding; one that is never
selected, weights that reproduce it; a near tie, or a key without either, must be marked as such. Marking another key
is allowed: the mark claims nothing. Margins, residuals and counts must follow from the certificates.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from normscope.certificates.check_reachable_keys import advantages_of_sets, reach_margins_of_sets
from normscope.certificates.hull_proofs import NEAR_TIE, WRONG
from normscope.certificates.key_certificates import Bools, Certificates, Ints, equal_keys
from normscope.certificates.key_margins import judged_sets, lifted, margins, residuals
from normscope.checks import Floats, as_floats
from normscope.progress import Progress, silent


class Proven(NamedTuple):
    """How many keys have each verdict proven."""

    selectable: int
    never_selected: int
    near_ties: int
    open: int

    def in_words(self, by: str = "") -> str:
        """
        >>> Proven(3, 1, 2, 0).in_words()
        '3 keys shown selectable, 1 never selected, 2 near ties (means of others up to rounding)'
        """
        words = f"{self.selectable:,} keys shown selectable{by}, {self.never_selected:,} never selected"
        words += f", {self.near_ties:,} near ties (means of others up to rounding)" if self.near_ties else ""
        return words + (f", {self.open:,} left open" if self.open else "")


def check(result: Any, progress: Progress = silent, against: Any = None) -> tuple[bool, str]:
    """Whether a `Selection` proves what it says, for these keys if given; and what it proves, or the first fault.

    Parameters
    ----------
    result
        A `normscope.results.Selection`, new or loaded.
    progress
        See `normscope.progress`; one step.
    against
        The keys that the result must be for.

    Returns
    -------
    tuple[bool, str]
        Whether it holds, and the reason in one sentence.

    >>> from normscope.separation.selectable import selectable
    >>> check(selectable([[0.0], [1.0], [3.0]]))
    (True, '2 keys shown selectable, 1 never selected')
    """
    if against is not None and not np.array_equal(as_floats(against, "keys"), result.keys):
        return False, "the certificates are for other keys than these"
    found = next(iter(progress((checked(result.keys, result.bias, result.certificates),), "sets of keys")))
    fault = first_fault(found, result.near_ties, result.certificates)
    if fault is not None:
        return False, fault
    by = "" if result.certificates.reach is None else " by reachable queries"
    return True, proven(found, result.certificates).in_words(by)


def check_places(result: Any, progress: Progress = silent) -> tuple[bool, str]:
    """Whether the certificates of a `KeySelection` prove what it says; and what they prove, or the first fault.

    Parameters
    ----------
    result
        A `normscope.results.KeySelection`, new or loaded.
    progress
        See `normscope.progress`; one step for each set of keys.

    Returns
    -------
    tuple[bool, str]
        Whether it holds, and the reason in one sentence.
    """
    if not result.holds:
        return False, "the result itself says that a certificate did not hold"
    totals, counts = Proven(0, 0, 0, 0), [_Counts() for _ in result.places]
    for each in progress(result.sets, "sets of keys"):
        name = _name(result, each)
        fault = next(_set_faults(result, each), None)
        if fault is not None:
            return False, f"{name}: {fault}"
        earlier = result.rivals == "causal"
        found = checked(each.keys, each.bias, each.certificates, earlier=earlier)
        fault = first_fault(found, each.near_ties, each.certificates)
        if fault is not None:
            return False, f"{name}: {fault}"
        totals = Proven(*map(sum, zip(totals, proven(found, each.certificates), strict=True)))
        for place in each.places:
            counts[place].add(each, earlier)
    for place, counted in zip(result.places, counts, strict=True):
        for field in fields(counted):
            if getattr(place, field.name) != getattr(counted, field.name):
                where = place.layer if place.head is None else f"{place.layer}, head {place.head}"
                return False, f"{where}: {field.name} does not follow from the certificates"
    by = " by reachable queries" if result.queries == "reachable" else ""
    return True, f"{len(result.sets):,} sets of keys: {totals.in_words(by)}"


@dataclass
class _Counts:
    """The counts of a place, derived from its certificates."""

    keys: int = 0
    never_selected: int = 0
    duplicates: int = 0
    near_ties: int = 0
    open: int = 0
    positions: tuple[tuple[int, int], ...] = ()  # of the keys that are never selected: sequence, position

    def add(self, each: Any, earlier: bool) -> None:
        never = never_selected(each.certificates)
        self.keys += len(each.keys)
        self.never_selected += int(never.sum())
        self.duplicates += int((never & equal_keys(each.keys, earlier)).sum())
        self.near_ties += int(each.near_ties.sum())
        self.open += len(each.keys) - len(each.query_keys) - len(each.weight_keys)
        self.positions += tuple((each.sequence, position) for position in each.positions[never].tolist())


def never_selected(certificates: Certificates) -> Bools:
    """Which keys of one set have weights."""
    found = np.zeros(certificates.shape, bool)
    found[certificates.weight_keys] = True
    return found


def _name(result: Any, each: Any) -> str:
    place = result.places[each.places[0]] if each.places and each.places[0] in range(len(result.places)) else None
    where = "a set of keys" if place is None else place.layer
    head = "" if place is None or place.head is None else f", head {place.head}"
    return f"{where}{head}, sequence {each.sequence}"


def _set_faults(result: Any, each: Any) -> Iterator[str]:
    if not each.places or not all(place in range(len(result.places)) for place in each.places):
        yield "it must belong to one or more of the places"
    if each.sequence not in range(result.sequences):
        yield f"it must be one of {result.sequences} sequences"
    if (np.diff(each.positions) <= 0).any() or each.positions[0] < 0:
        yield "positions of keys must be in ascending order"
    if result.max_keys is not None and len(each.keys) > result.max_keys:
        yield f"it must have at most {result.max_keys} keys, got {len(each.keys)}"
    if (each.certificates.reach is not None) != (result.queries == "reachable"):
        yield f"its certificates must be for {result.queries} queries"


@dataclass(frozen=True, eq=False)
class Checked:
    """What checking the certificates found, to compare with what the result says."""

    fault: str | None  # the first error; if there is one, the rest is meaningless
    near_ties: Bools  # weights that are decided by rounding
    margins: tuple[Floats, Floats]  # of the queries, and a bound on their error
    residuals: tuple[Floats, Floats]  # of the weights, and a bound on their error


def checked(keys: Floats, bias: Floats | None, certificates: Certificates, *, earlier: bool = False) -> Checked:
    """Whether every certificate for keys (..., n, d) is right; with `earlier`, against the keys before each."""
    c = certificates
    if c.reach is not None:
        shown, found, off, proofs = _checked_reach(keys, bias, c)
        query = "the query of key {} is not reachable, or does not prefer it to all others"
        weights = "the weights of key {} do not rule out all reachable queries"
    else:
        points = lifted(keys, bias)
        queries = c.queries if bias is None else np.column_stack([c.queries, np.ones(len(c.queries))])
        by_query = margins(points, c.query_keys, queries, earlier=earlier)
        shown = (by_query.proven, by_query.least, 2 * by_query.rounding)
        weighted = (points, bias is not None, c.weight_keys, c.starts, c.indices, c.weights)
        reproduced, proofs = residuals(*weighted), judged_sets(*weighted)
        found, off = reproduced.length, reproduced.rounding
        query = "the query of key {} does not prefer it to all others"
        weights = "the weights of key {} do not reproduce it"
    right = proofs != WRONG
    if earlier:
        owner = np.repeat(c.weight_keys % keys.shape[-2], np.diff(c.starts))
        right = right & np.logical_and.reduceat(c.indices < owner, c.starts[:-1]) if len(right) else right
    fault = _first_wrong(keys.shape[:-1], (query, c.query_keys, shown[0]), (weights, c.weight_keys, right))
    return Checked(fault, proofs == NEAR_TIE, shown[1:], (found, off))


def _checked_reach(keys: Floats, bias: Floats | None, c: Certificates) -> Any:
    shown = reach_margins_of_sets(keys, bias, c)
    held, proofs = advantages_of_sets(keys, bias, c)
    return (shown.proven, shown.least, 2 * shown.rounding), held.largest, 2 * held.rounding, proofs


def first_fault(found: Checked, near_ties: Bools, certificates: Certificates) -> str | None:
    """The first thing that is wrong with verdicts whose certificates were checked; None if each one has its proof."""
    if found.fault is not None:
        return found.fault
    c, unsure = certificates, np.ones(near_ties.size, bool)
    unsure[c.query_keys], unsure[c.weight_keys] = False, found.near_ties
    return _first_wrong(
        near_ties.shape,
        (
            "key {} is open or a near tie, and is not marked as such",
            np.arange(unsure.size),
            near_ties.ravel() | ~unsure,
        ),
        ("the margin of the query of key {} is not the one stated", c.query_keys, _is(c.margins, found.margins)),
        (
            "the residual of the weights of key {} is not the one stated",
            c.weight_keys,
            _is(c.residuals, found.residuals),
        ),
    )


def proven(found: Checked, certificates: Certificates) -> Proven:
    """What correct certificates prove."""
    near, wins, loses = int(found.near_ties.sum()), len(certificates.query_keys), len(certificates.weight_keys)
    return Proven(wins, loses - near, near, int(np.prod(certificates.shape)) - wins - loses)


def _is(said: Floats, found: tuple[Floats, Floats]) -> Bools:
    with np.errstate(invalid="ignore"):  # a single key wins by an infinite margin
        return np.asarray((said == found[0]) | (np.abs(said - found[0]) <= found[1]))


def _first_wrong(shape: tuple[int, ...], *facts: tuple[str, Ints, Bools]) -> str | None:
    """The first fact, about numbered keys in a batch of that shape, that is false."""
    for what, numbers, right in facts:
        if not right.all():
            place = np.unravel_index(int(numbers[~right][0]), shape)
            return what.format(", ".join(str(entry) for entry in place))
    return None
