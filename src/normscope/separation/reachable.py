"""One problem with reachable queries: first for any query, then over the ellipsoid for the remaining keys.

A key that no query prefers at all is not preferred by a reachable one either, and its weights prove that too. Keys that
are clearly weighted means of others are no rivals: a query that beats the others beats them.
"""

import numpy as np

from normscope.certificates.check_reachable_keys import advantages, lift, reach_margins
from normscope.certificates.key_certificates import Bools, Certificates, Ints, joined
from normscope.certificates.key_margins import lifted
from normscope.checks import Floats
from normscope.separation.ellipsoid_queries import REACHABLE, UNREACHABLE, reach, rivals_of
from normscope.separation.passes import CLEAR, solve_sets


def solve_reachable(keys: Floats, bias: Floats | None, matrix: Floats, center: Floats) -> tuple[Certificates, Bools]:
    """Certificates for keys (n, d) and queries center + matrix·y, and near ties (n,).

    Queries in them are the y, inside the unit ball.
    """
    count, rank = len(keys), matrix.shape[1]
    plain, (near_ties,) = solve_sets(lifted(keys, bias)[None], bias is not None)
    never, weighted = plain.weight_keys, (plain.weight_keys, plain.starts, plain.indices, plain.weights)
    held = advantages(keys, bias, matrix, center, *weighted)
    parts = [Certificates.of_weights((count,), *weighted, held.largest)]
    clearly_inside = np.zeros(count, bool)
    clearly_inside[never[~near_ties[never]]] = True
    asked, rivals = plain.query_keys, np.flatnonzero(~clearly_inside)
    if len(rivals) == 1:
        endless = np.full(len(asked), np.inf)
        parts.append(Certificates.of_queries((count,), asked, np.zeros((len(asked), rank)), endless))
    elif len(asked):
        parts += _ask(keys, bias, matrix, center, rivals, asked, near_ties)
    return joined(parts, (count,), rank), near_ties


def _ask(
    keys: Floats,
    bias: Floats | None,
    matrix: Floats,
    center: Floats,
    rivals: Ints,
    asked: Ints,
    near_ties: Bools,
) -> list[Certificates]:
    seen = lift(keys[rivals], None if bias is None else bias[rivals], matrix, center).rows
    place = np.searchsorted(rivals, asked)
    # The longest rival is a fair start: it is an extreme point of the lifted keys, and so often in the way.
    longest = np.argsort(-np.einsum("ij,ij->i", seen, seen))[:2]
    first = np.where(place == longest[0], longest[1], longest[0])
    status, coordinates, supports, weights = reach(rivals_of(seen[:, :-1], seen[:, -1]), place, first)
    near_ties[asked] = True

    won, inside = asked[status == REACHABLE], coordinates[status == REACHABLE]
    by_query = reach_margins(keys, bias, matrix, center, won, inside)
    proven = by_query.proven
    near_ties[won[proven]] = by_query.gap[proven] <= CLEAR

    never, supports, weights = (part[status == UNREACHABLE] for part in (asked, supports, weights))
    used = supports >= 0
    weights = weights / weights.sum(axis=1, keepdims=True)
    starts = np.append(0, np.cumsum(used.sum(axis=1)))
    by_weights = advantages(keys, bias, matrix, center, never, starts, rivals[supports[used]], weights[used])
    right = by_weights.right
    near_ties[never[right]] = by_weights.gap[right] <= CLEAR
    kept = used & right[:, None]
    starts = np.append(0, np.cumsum(used[right].sum(axis=1)))
    return [
        Certificates.of_queries((len(keys),), won[proven], inside[proven], by_query.least[proven]),
        Certificates.of_weights(
            (len(keys),), never[right], starts, rivals[supports[kept]], weights[kept], by_weights.largest[right]
        ),
    ]
