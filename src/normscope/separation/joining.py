"""The certificates of a whole batch, or of one set, from those of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from normscope.certificates.key_certificates import Certificates, Ints


def placed(parts: Mapping[int, Certificates], shape: tuple[int, ...]) -> list[Certificates]:
    """Certificates of single sets, by their number in a batch of keys (..., n), as parts of the batch.

    >>> alone = Certificates.of_queries((2,), np.array([1]), np.ones((1, 3)), np.array([0.5]))
    >>> placed({4: alone}, (5, 2))[0].query_keys
    array([9])
    """
    return [
        replace(
            part,
            shape=shape,
            query_keys=part.query_keys + number * shape[-1],
            weight_keys=part.weight_keys + number * shape[-1],
        )
        for number, part in parts.items()
    ]


def joined(parts: Sequence[Certificates], shape: tuple[int, ...], channels: int) -> Certificates:
    """One for many parts of the same batch, each of them for other keys, in the order of the keys."""
    parts = [Certificates.of_queries(shape, np.zeros(0, np.int64), np.zeros((0, channels)), np.zeros(0)), *parts]
    query_keys = np.concatenate([part.query_keys for part in parts])
    by_query = _order(query_keys)
    weight_keys = np.concatenate([part.weight_keys for part in parts])
    by_weight = _order(weight_keys)
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    before = (np.cumsum(lengths) - lengths)[by_weight]
    lengths = lengths[by_weight]
    starts = np.append(0, np.cumsum(lengths))
    entries = np.arange(starts[-1]) + np.repeat(before - starts[:-1], lengths)
    return Certificates(
        shape=shape,
        query_keys=query_keys[by_query],
        queries=np.concatenate([part.queries for part in parts if len(part.query_keys) or part is parts[0]])[by_query],
        margins=np.concatenate([part.margins for part in parts])[by_query],
        weight_keys=weight_keys[by_weight],
        starts=starts,
        indices=np.concatenate([part.indices for part in parts])[entries],
        weights=np.concatenate([part.weights for part in parts])[entries],
        residuals=np.concatenate([part.residuals for part in parts])[by_weight],
    )


def _order(keys: Ints) -> Ints | slice:
    """What sorts ascending keys: everything as it is, if they are sorted, so that large arrays are not copied."""
    return slice(None) if (np.diff(keys) > 0).all() else np.argsort(keys)
