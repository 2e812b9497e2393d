"""`memorize`: a network of nothing but Linear maps and LayerNorms of width 3 that gives every sample its label.

Samples are laid on a line by a direction that keeps different labels apart, and then

- by search: each layer creases the line, which lays one part of it onto the other so that runs of equal labels meet.
  The search works on the floats that the module will use, and the result is certified for the weights it stores;
- by merging [1]: each layer lays two points onto each other. That takes up to m − 2 layers for two classes, and more
  bits than floats have: the network is kept in exact arithmetic, and the module holds its rounded weights.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from normscope.capacity.crease_network import LIMITS, Creasing
from normscope.capacity.ln_net import torch_winners
from normscope.capacity.merge_network import Merging, TooFewBitsError
from normscope.capacity.plane_scaling import layers_of, require_eps
from normscope.capacity.samples import Samples, checked_samples, choose_line
from normscope.certificates.check_networks import figures
from normscope.certificates.network_weights import HIGHEST, ExactNetwork, Layers, unpacked
from normscope.checks import as_count
from normscope.errors import InputError, NotCertifiedError
from normscope.progress import Progress, silent
from normscope.results.memorized import Memorized, MemorizedClass, Stage

METHODS = ("search", "merge")
TRIES, FEWEST_TRIES, EFFORT = 60_000, 15_000, 2 * 10**7  # candidates for each crease: EFFORT/runs, within these limits
ATTEMPTS = 4  # searches until floats are right on all samples; the best one is kept
PATIENCE = 0.2  # share of the time after which a certified network is accepted even if floats are wrong on some samples
FEWEST_BITS = 64  # of merging, plus one for every two samples; doubled where too few


def memorize(
    samples: Any,
    labels: Any,
    *,
    method: str = "search",
    dtype: Any = "float64",
    eps: float = 0.0,
    seed: int = 0,
    seconds: float = 600.0,
    progress: Progress = silent,
) -> Memorized:
    """A certified network of LayerNorms of width 3 that gives every sample its label.

    Parameters
    ----------
    samples
        Numbers, one row per sample, of any dimension. Equal samples must have equal labels.
    labels
        Numbers or text, one per sample; two classes or more.
    method
        "search" creases a line, and falls back to "merge" where it fails; "merge" is the published construction.
    dtype
        Data type of the module: float64 or float32.
    eps
        eps of its LayerNorms.
    seed
        Random seed of the search.
    seconds
        CPU time for the search.
    progress
        Called with the steps of the search and a description; see `normscope.progress`.

    Returns
    -------
    Memorized
        The network, in `.network`, its samples, and what was certified about them.

    >>> found = memorize([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "a", "b"])
    >>> found
    Memorized(depth 2, width 3, 2 classes, by search: 4 of 4 samples certified, 4 right in floats)
    >>> found.network.predict([[1.0], [2.0]])
    array(['b', 'a'], dtype='<U1')
    """
    start = time.process_time()
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    kind = str(dtype).removeprefix("torch.")
    if kind not in LIMITS:
        raise InputError(f"dtype must be one of {', '.join(LIMITS)}, got {dtype!r}")
    require_eps(eps)
    checked = checked_samples(samples, labels, kind)
    search = _Search(checked, kind, float(eps), as_count(seed, "seed", 0), start, float(seconds), progress)
    found = (search.by_creases() if method == "search" else None) or search.by_merging()
    return replace(found, seconds=time.process_time() - start, attempts=search.attempts)


class _Search:
    """The two methods, on the same samples."""

    def __init__(
        self,
        samples: Samples,
        dtype: str,
        eps: float,
        seed: int,
        start: float,
        seconds: float,
        progress: Progress,
    ) -> None:
        self._samples, self._dtype, self._eps, self._seed = samples, dtype, eps, seed
        self._start, self._seconds, self._progress = start, seconds, progress
        self.attempts = 0

    def by_creases(self) -> Memorized | None:
        """The best certified network of a few searches, or the first that is right in floats; None if all fail."""
        from torch import nn

        best, most, count = None, -1, len(self._samples.labels)
        while self.attempts < ATTEMPTS and (self.attempts == 0 or self._time_left() > 0):
            if best is not None and self._time_left() < (1 - PATIENCE) * self._seconds:
                break
            layers = self._creased()
            if layers is None:
                continue
            module = nn.Sequential(*layers)
            found = self._result(layers_of(module), None)
            winners = torch_winners(module, self._samples.inputs)
            right = min(found.float_right, *(int((each == self._samples.labels).sum()) for each in winners))
            if found.holds and right > most:
                best, most = found, right
            if most == count:
                break
        return best

    def by_merging(self) -> Memorized:
        """Merge with as many bits as needed."""
        samples = self._samples
        line = choose_line(samples.inputs, samples.labels, self._seed)
        bits = FEWEST_BITS + len(samples.labels) // 2
        while True:
            merging = Merging(samples, line, eps=self._eps, bits=bits)
            try:
                for _ in self._progress(merging, f"merging {len(samples.labels)} samples in {bits} bits"):
                    pass
            except TooFewBitsError:
                if bits >= HIGHEST:
                    raise InputError(
                        f"samples must be distinguishable along a line, but {bits} bits do not suffice: "
                        "try another seed, or remove near copies with different labels"
                    ) from None
                bits = min(HIGHEST, bits * 2)
                continue
            assert merging.network is not None
            found = self._result(merging.network.rounded(self._dtype), merging.network)
            if not found.holds:
                raise NotCertifiedError(
                    f"exact arithmetic shows {found.certified} of {found.count} samples to be right: try another seed",
                    found,
                )
            return found

    def _creased(self) -> "list[Any] | None":
        """The layers of one search; None if it got stuck or ran out of time."""
        number = self.attempts
        self.attempts += 1
        line = choose_line(self._samples.inputs, self._samples.labels, self._seed + number)
        tries = min(TRIES, max(FEWEST_TRIES, EFFORT // line.runs))  # each takes time in proportion to the runs
        creasing = Creasing(
            self._samples, line, dtype=self._dtype, eps=self._eps, seed=self._seed + number, tries=tries
        )
        again = f", search {number + 1}" if number else ""
        for _ in self._progress(creasing, f"creasing {line.runs} runs{again}"):
            if self._time_left() < 0:
                break
        return creasing.layers if creasing.finished else None

    def _result(self, layers: Layers, exact: ExactNetwork | None) -> Memorized:
        """A network with its certified figures."""
        samples, classes = self._samples, self._samples.classes
        arrays: dict[str, Any] = {"last": layers[-1]}
        if len(layers) > 1:
            inner = np.array(layers[1:-1], layers[0].dtype).reshape(-1, 3, 4)
            arrays |= {"first": layers[0], "inner": inner}
        if exact is not None:
            mantissas, powers = exact.packed()
            arrays |= {"line": exact.line, "mantissas": mantissas, "powers": powers}
            exact = unpacked(
                exact.line, mantissas, powers, depth=exact.depth, classes=len(classes), eps=self._eps
            )  # as the checker computes it
        found = figures(layers, self._eps, exact, samples.inputs, samples.labels, len(classes))
        rows = zip(classes.tolist(), found.samples, found.certified, found.margins, found.float_right, strict=True)
        return Memorized(
            file=None,
            label_column=None,
            eps=self._eps,
            label_type=classes.dtype.str,
            bits=found.bits,
            classes=tuple(MemorizedClass(*row) for row in rows),
            stages=tuple(Stage(*stage) for stage in found.stages),
            samples=samples.inputs.astype(self._dtype),
            label_numbers=samples.labels,
            **arrays,
        )

    def _time_left(self) -> float:
        return self._seconds - (time.process_time() - self._start)
