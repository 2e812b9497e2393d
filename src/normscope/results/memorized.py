"""`normscope.capacity.memorize`: a network of LayerNorms of width 3, and the samples that it was certified on."""

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.check_networks import journey
from normscope.certificates.network_weights import WIDTH, ExactNetwork, StoredNetwork, require_layers, unpacked
from normscope.checks import Floats, quoted
from normscope.errors import InputError
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result, named

DTYPE = r"[<>|][biufU]\d{1,6}"  # as numpy writes it
Array = Annotated[NDArray[Any] | None, NOT_IN_JSON]


@dataclass(frozen=True)
class MemorizedClass:
    """The samples of one label."""

    label: Annotated[bool | int | float | str, Column("label", "What the samples of this class are called.")]
    samples: Annotated[int, Column("samples", "How many samples have this label.", ",")]
    certified: Annotated[
        int, Column("certified", "Samples whose right score is shown to be the highest, in exact arithmetic.", ",")
    ]
    margin: Annotated[
        float | None, Column("least margin", "The right score leads by this much or more, in exact arithmetic.", ".2g")
    ]
    float_right: Annotated[int, Column("right in floats", "Samples that get this label in the module's own type.", ",")]


@dataclass(frozen=True)
class Stage:
    """The samples after some LayerNorms, in the order of the line that the next layer reads."""

    layer: Annotated[int, Column("LayerNorms", "How many LayerNorms the samples have passed.")]
    runs: Annotated[int, Column("runs", "Runs of equal labels along the line.", ",")]
    labels: Annotated[
        str, Column("labels along the line", "A character for each class; where samples are many, for the commonest.")
    ]


@dataclass(frozen=True, repr=False)
class Memorized(
    Result,
    kind="memorized",
    schema_version=2,
    checked_by="normscope.certificates.check_networks:check_memorized",
    plotted_by="normscope.report.journey:journey_picture",
    remarked_by="normscope.rules.memorized:remarks",
    reread_by="normscope.models.labelled_table:table_for",
):
    """A network of LayerNorms of width 3 that gives samples their labels, with the samples; see `network`.

    Exact weights are stored if they have more bits than the module holds: the module then has them rounded.
    """

    file: str | None  # of the samples; None if they came as arrays
    label_column: str | None
    eps: float  # of the LayerNorms
    label_type: str  # numpy's dtype of the labels
    bits: int  # precision that was enough to certify every sample
    classes: Annotated[tuple[MemorizedClass, ...], Table("{0.title}", most=20)]
    stages: Annotated[tuple[Stage, ...], Table("Labels along the line")]
    first: Array = field(
        default=None, repr=False, compare=False
    )  # (3, channels + 1): the weight with the bias as last column; None without LayerNorms
    inner: Array = field(default=None, repr=False, compare=False)  # (depth − 1, 3, 4)
    last: Array = field(
        default=None, repr=False, compare=False
    )  # (classes, 4); (classes, channels + 1) without LayerNorms
    line: Array = field(default=None, repr=False, compare=False)  # (channels + 1,): exact weights read p = w·x + b
    mantissas: Array = field(default=None, repr=False, compare=False)  # (exact weights, bytes)
    powers: Array = field(default=None, repr=False, compare=False)  # (exact weights,): of two
    samples: Array = field(default=None, repr=False, compare=False)  # (samples, channels), in the module's type
    label_numbers: Array = field(default=None, repr=False, compare=False)  # (samples,): places in `classes`
    seconds: Annotated[float | None, NOT_IN_JSON] = field(default=None, compare=False)  # CPU time; not saved
    attempts: Annotated[int | None, NOT_IN_JSON] = field(default=None, compare=False)  # searches begun; not saved

    def __post_init__(self) -> None:
        if not 0 <= self.eps < math.inf:
            raise InputError(f"eps must be a finite number, 0 or more, got {quoted(self.eps)}")
        for name in ("last", "samples", "label_numbers"):
            if getattr(self, name) is None:
                raise InputError(f"array {name} is missing")
        if (self.first is None) != (self.inner is None) or (
            self.inner is not None and self.inner.shape[1:] != (WIDTH, WIDTH + 1)
        ):
            raise InputError(f"layers must be of width {WIDTH}")
        require_layers(self.layers)
        self._require_samples()
        if len({self.line is None, self.mantissas is None, self.powers is None}) != 1:
            raise InputError("exact weights must be complete: line, mantissas and powers")
        _ = self.exact_network, self.label_array

    def _require_samples(self) -> None:
        samples, numbers = self.samples, self.label_numbers
        assert samples is not None
        assert numbers is not None
        if samples.ndim != 2 or samples.shape[1] != self.channels or samples.dtype != self.layers[0].dtype:
            raise InputError(f"samples must be {self.dtype}, with {self.channels} channels")
        if not np.isfinite(samples).all() or numbers.shape != (len(samples),) or numbers.dtype != np.int64:
            raise InputError("samples must be finite, with a label for each")
        if len(self.layers[-1]) != len(self.classes):
            raise InputError(
                f"there must be a score for each of {len(self.classes)} classes, got {len(self.layers[-1])}"
            )
        if set(np.unique(numbers).tolist()) != set(range(len(self.classes))):
            raise InputError("every class must have samples, and every sample a class")

    @cached_property
    def layers(self) -> list[NDArray[Any]]:
        """The Linears of the module, each a weight with the bias as last column."""
        assert self.last is not None
        return [*([] if self.first is None else [self.first]), *([] if self.inner is None else self.inner), self.last]

    @cached_property
    def exact_network(self) -> ExactNetwork | None:
        """The network that is certified, where the module only has its rounded weights."""
        if self.line is None or self.mantissas is None or self.powers is None:
            return None
        if self.line.shape != (self.channels + 1,):
            raise InputError(f"the line of exact weights must have {self.channels + 1} numbers")
        classes = len(self.classes)
        return unpacked(self.line, self.mantissas, self.powers, depth=self.depth, classes=classes, eps=self.eps)

    @cached_property
    def label_array(self) -> NDArray[Any]:
        """The labels of the classes exactly as given, with their dtype, ascending."""
        labels = [each.label for each in self.classes]
        try:
            found = np.array(labels, self.label_type if re.fullmatch(DTYPE, self.label_type) else None)
        except (TypeError, ValueError, OverflowError):
            found = np.array([])
        back = found.tolist()
        same = found.dtype.str == self.label_type and back == labels and [*map(type, back)] == [*map(type, labels)]
        if not same or len(labels) < 2 or not np.array_equal(np.unique(found), found):
            raise InputError(f"classes must be two or more values of dtype {quoted(self.label_type)}, ascending")
        return found

    @cached_property
    def labels(self) -> NDArray[Any]:
        """The label of each sample, as given."""
        found: NDArray[Any] = self.label_array[self.label_numbers]
        return found

    @cached_property
    def network(self) -> Any:
        """The network to use: an `LNNet`, with a torch module and `predict`."""
        return named("normscope.capacity.ln_net:network_of")(self)

    @cached_property
    def journey(self) -> Floats:
        """Places of samples on a line from 0 to 1 after each LayerNorm, (depth + 1, samples), in exact arithmetic."""
        network = self.exact_network or StoredNetwork(self.layers, self.eps)
        assert self.samples is not None
        return np.stack([places for _, places, _ in journey(network, self.samples.astype(np.float64), self.bits)])

    @property
    def depth(self) -> int:
        """The number of LayerNorms."""
        return len(self.layers) - 1

    @property
    def width(self) -> int:
        """Channels of every LayerNorm."""
        return WIDTH

    @property
    def channels(self) -> int:
        """Of a sample."""
        return int(self.layers[0].shape[1]) - 1

    @property
    def dtype(self) -> str:
        """Data type of the module."""
        return str(self.layers[0].dtype)

    @property
    def method(self) -> str:
        """How the network was found: "search", or "merge" with exact weights."""
        return "search" if self.line is None else "merge"

    @property
    def count(self) -> int:
        """Samples."""
        return sum(each.samples for each in self.classes)

    @property
    def certified(self) -> int:
        """Samples whose right score is shown to be the highest, in exact arithmetic."""
        return sum(each.certified for each in self.classes)

    @property
    def float_right(self) -> int:
        """Samples that are right in the module's own dtype."""
        return sum(each.float_right for each in self.classes)

    @property
    def margin(self) -> float | None:
        """The smallest lead of a right score, in exact arithmetic."""
        return min((each.margin for each in self.classes if each.margin is not None), default=None)

    @property
    def weight_bits(self) -> int:
        """Bits of the weights that are certified."""
        return np.finfo(self.dtype).nmant + 1 if self.exact_network is None else self.exact_network.bits

    @property
    def runs(self) -> int:
        """Runs of equal labels along the line that the network lays the samples on."""
        return self.stages[0].runs if self.stages else 0

    @property
    def paper_depth(self) -> int:
        """The most LayerNorms that projection merge needs: samples − classes, m − 2 for two classes."""
        return self.count - len(self.classes)

    @property
    def least_depth(self) -> int | None:
        """For two classes: no network that reads the samples from this line has fewer LayerNorms.

        A line of r runs takes r ≤ 2^L + 1, as every layer can at most lay the line onto itself once: L ≥ log₂(r − 1).
        """
        return math.ceil(math.log2(max(2, self.runs) - 1)) if len(self.classes) == 2 else None

    @property
    def holds(self) -> bool:
        """Whether exact arithmetic proves every sample right."""
        return self.certified == self.count

    @cached_property
    def title(self) -> str:
        """Title of the table."""
        file = "" if self.file is None else f" of {self.file}"
        column = "" if self.label_column is None else f" of {self.label_column}"
        return f"{self.count:,} samples{file}, {len(self.classes)} classes{column}"

    def __repr__(self) -> str:
        return (
            f"Memorized(depth {self.depth}, width {self.width}, {len(self.classes)} classes, by {self.method}: "
            f"{self.certified} of {self.count} samples certified, {self.float_right} right in floats)"
        )
