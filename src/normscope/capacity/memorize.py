"""`memorize`: a network of nothing but Linear maps and LayerNorms of width 3 that gives any samples their labels.

Samples are laid on a line by a direction that keeps different labels apart, and then

- by folds: each layer lays one part of the line onto the other so that runs of equal labels meet. The search works on
  the floats that the module will see, and the result is certified for its very weights;
- by merging [1]: each layer lays two points onto each other. That takes up to m − 2 layers for two classes, and more
  bits than floats have: exact arithmetic holds the network, and the module its rounded weights.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normscope.capacity.crease_network import LIMITS, Folding
from normscope.capacity.line import choose_line
from normscope.capacity.ln_net import LNNet, Origin
from normscope.capacity.merge_network import MergeNetwork, Merging, TooFewBitsError
from normscope.capacity.samples import Samples, checked_samples
from normscope.capacity.scaling_layer import require_eps
from normscope.certificates.check_networks import HIGHEST, Certificate, certify, float_labels
from normscope.checks import Floats, as_count
from normscope.errors import InputError

if TYPE_CHECKING:
    from torch import nn

METHODS = ("fold", "merge")
TRIES, FEWEST_TRIES, EFFORT = 60_000, 15_000, 2 * 10**7  # candidates for each fold: EFFORT/runs, within these limits
ATTEMPTS = 4  # searches until floats are right on all samples; the best of them counts
PATIENCE = 0.2  # share of the time after which a certified network is taken though floats are not right on all samples
FEWEST_BITS = 64  # of merging, and one more for every two samples; doubled where they are too few
Progress = Callable[[Iterable[None], str], Iterable[None]]


def memorize(
    samples: Any,
    labels: Any,
    *,
    method: str = "fold",
    dtype: Any = "float64",
    eps: float = 0.0,
    seed: int = 0,
    seconds: float = 600.0,
    progress: Progress = lambda steps, what: steps,
) -> LNNet:
    """A certified network for samples (one row each) and their labels.

    samples: of any dimension; equal ones must have equal labels. labels: numbers or text, two classes or more.
    method: "fold", which falls back to "merge" where the search fails within the given CPU seconds, or "merge".
    dtype: of the module, float64 or float32. eps: of its LayerNorms.

    >>> net = memorize([[0.0], [1.0], [2.0], [3.0]], ["a", "b", "a", "b"])
    >>> net
    LNNet(depth 2, width 3, 2 classes, by fold: 4 of 4 samples certified, 4 right in floats)
    >>> net.predict([[1.0], [2.0]])
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
    search = Search(checked, kind, float(eps), as_count(seed, "seed", 0), start, float(seconds), progress)
    found = search.by_folds() if method == "fold" else None
    return found or search.by_merging()


class Search:
    """Ways to a network for the same samples."""

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
        self._attempts = 0

    def by_folds(self) -> LNNet | None:
        """The best certified network of a few searches, the first that floats get wholly right; None if all fail."""
        from torch import nn

        best: LNNet | None = None
        while self._attempts < ATTEMPTS and (self._attempts == 0 or self._time_left() > 0):
            if best is not None and self._time_left() < (1 - PATIENCE) * self._seconds:
                break
            number = self._attempts
            self._attempts += 1
            line = choose_line(self._samples.inputs, self._samples.labels, self._seed + number)
            folding = Folding(
                self._samples, line, dtype=self._dtype, eps=self._eps, seed=self._seed + number, tries=_tries(line.runs)
            )
            again = f", search {number + 1}" if number else ""
            for _ in self._progress(folding, f"folding {line.runs} runs{again}"):
                if self._time_left() < 0:
                    break
            if not folding.finished:
                continue
            module = nn.Sequential(*folding.layers)
            certificate = certify(module, self._samples.inputs, self._samples.labels)
            found = self._network(module, certificate, "fold", line.runs, tuple(folding.journey))
            if certificate.holds and (best is None or certificate.float_right > best.certificate.float_right):
                best = found
            if best is not None and best.certificate.float_right == len(self._samples.labels):
                break
        return best and replace(best, origin=self._origin("fold", best.origin.runs))

    def by_merging(self) -> LNNet:
        """Merges with as many bits as it takes."""
        import torch

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
                        f"samples must be told apart along a line, and are not in {bits} bits: "
                        "try another seed, or remove near copies with different labels"
                    ) from None
                bits = min(HIGHEST, bits * 2)
                continue
            assert merging.network is not None
            module = merging.network.rounded(getattr(torch, self._dtype))
            certificate = self._certificate(merging.network, module)
            if not certificate.holds:
                raise InputError(
                    f"the network must classify all {certificate.samples} samples, and exact arithmetic "
                    f"shows it for {certificate.exact}: try another seed"
                )
            return self._network(module, certificate, "merge", line.runs, tuple(merging.journey), exact=merging.network)

    def _certificate(self, network: MergeNetwork, module: "nn.Sequential") -> Certificate:
        """Shown for the network, counted for its rounded module."""
        inputs, labels = self._samples.inputs, self._samples.labels
        found = network.exact_labels(inputs)
        batch, single = float_labels(module, inputs)
        return Certificate(
            samples=len(labels),
            exact=int((found.winners == labels).sum()),
            precision=found.precision,
            weight_bits=network.bits,
            of_module=False,
            margin=found.margin,
            batch=int((batch == labels).sum()),
            single=int((single == labels).sum()),
        )

    def _network(
        self,
        module: "nn.Sequential",
        certificate: Certificate,
        method: str,
        runs: int,
        journey: tuple[Floats, ...],
        exact: MergeNetwork | None = None,
    ) -> LNNet:
        origin = self._origin(method, runs)
        return LNNet(module, self._samples.classes, self._eps, exact, certificate, origin, journey)

    def _origin(self, method: str, runs: int) -> Origin:
        inputs = self._samples.inputs
        spent = time.process_time() - self._start
        return Origin(method, len(inputs), inputs.shape[1], runs, self._seed, self._attempts, spent)

    def _time_left(self) -> float:
        return self._seconds - (time.process_time() - self._start)


def _tries(runs: int) -> int:
    """Candidates for each fold: each takes time in proportion to the runs."""
    return min(TRIES, max(FEWEST_TRIES, EFFORT // runs))
