"""`normscope.keys`: which keys of a text no query can select, and how close heads come to equal attention."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Annotated, Any, Literal

from normscope.certificates.key_certificates import Ints
from normscope.errors import InputError
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result
from normscope.results.rows import NotCovered, Spread
from normscope.results.selection import CertifiedKeys

At = Literal["input", "output", "heads"]
Queries = Literal["any", "reachable"]
Rivals = Literal["all", "causal"]
TOKENS = 3  # listed per layer
LONGEST = 24  # characters of a token


def percent(share: float) -> str:
    """A share in percent, never 0% unless it is zero.

    >>> percent(0.0), percent(0.000042), percent(0.1234)
    ('0%', '0.0042%', '12.3%')
    """
    return f"{100 * share:.3g}%" if share >= 0.1 else f"{100 * share:.2g}%"


@dataclass(frozen=True)
class KeyAt:
    """A key that is never selected."""

    sequence: int
    position: int  # in it, special tokens counted
    token: str | None  # as the tokenizer writes it; None without one
    before: str | None = None  # the text before it; None without a tokenizer, and after the first keys of a place
    after: str | None = None


@dataclass(frozen=True)
class Place:
    """The keys of one layer, or of one head of it, over all sequences."""

    layer: Annotated[str, Column("layer", "The attention layer.")]
    head: Annotated[int | None, Column("head", "One of its heads; none at the input and output of a norm.")]
    key_head: Annotated[
        int | None, Column("key head", "The key head that it reads, the same for heads that share keys.", brief=False)
    ]
    norm: Annotated[str | None, Column("norm", "The norm whose inputs or outputs the keys are.")]
    keys: Annotated[int, Column("keys", "Over all sequences.", ",")]
    never_selected: Annotated[
        int,
        Column(
            "never selected", "Shown to be selected by no query: weighted means of others, near ties included.", ","
        ),
    ]
    duplicates: Annotated[int, Column("duplicates", "Of these, keys that equal another one of their sequence.", ",")]
    near_ties: Annotated[int, Column("near ties", "Verdicts that a rounding error could change.", ",")]
    open: Annotated[int, Column("open", "Of these, neither shown nor refuted.", ",", brief=False)]
    never_selected_keys: tuple[KeyAt, ...] = field(repr=False)

    @property
    def share(self) -> Annotated[float, Column("share never selected", "Never selected, of all keys.", percent)]:
        return self.never_selected / self.keys

    @cached_property
    def positions(self) -> tuple[tuple[int, int], ...]:
        """Sequence and position of the keys that are never selected."""
        return tuple((key.sequence, key.position) for key in self.never_selected_keys)


@dataclass(frozen=True)
class LayerKeys:
    """The keys of one layer, over all heads and sequences."""

    layer: Annotated[str, Column("layer", "The attention layer.")]
    norm: Annotated[str | None, Column("norm", "The norm whose inputs or outputs the keys are.", brief=False)]
    keys: Annotated[int, Column("keys × heads", "Over all heads and sequences.", ",")]
    never_selected: Annotated[int, Column("never selected", "Shown to be selected by no query.", ",")]
    duplicates: Annotated[int, Column("duplicates", "Of these, keys that equal another one.", ",")]
    near_ties: Annotated[int, Column("near ties", "Verdicts that a rounding error could change.", ",")]
    share: Annotated[float, Column("share never selected", "Never selected, of all keys.", percent)]
    worst_head: Annotated[str | None, Column("worst head", "The head with the largest share, and that share.")]
    tokens: Annotated[str | None, Column("tokens", "Those most often never selected.")]


@dataclass(frozen=True)
class EqualAttention:
    """How close a head can come to scoring all keys equally, and how close it comes; q* is the closest query.

    A spread is the standard deviation of scores over the keys of a sequence for a query of unit length, over the median
    of the same for the real queries; with several sequences, the median. None where a figure is not available.
    """

    layer: Annotated[str, Column("layer", "The attention layer.")]
    head: Annotated[int, Column("head", "One of its heads.")]
    angle: Annotated[
        float | None,
        Column("angle to W_K", "Degrees between the dead direction of the keys' norm and what W_K can express.", ".1f"),
    ]
    reachable: Annotated[bool | None, Column("can produce it", "Whether the model can produce a query along q*.")]
    reach: Annotated[
        float | None, Column("longest q*", "How long it can be, over the median length of the real queries.", ".3g")
    ]
    spread: Annotated[float | None, Column("spread", "Of the scores by q*.", ".3g")]
    query_angle: Annotated[Spread | None, Column("angle to real queries", "Degrees, from q*.", ".1f")]
    everywhere: Annotated[
        bool | None,
        Column("at every position", "If not, q* is for keys where the query stands, at the last one.", brief=False),
    ]
    least_spread: Annotated[
        float | None, Column("least spread", "By the direction in which the real keys spread least.", ".3g")
    ]
    least_query_angle: Annotated[
        Spread | None, Column("its angle to real queries", "Degrees, from that direction.", ".1f", brief=False)
    ]
    reason: Annotated[str | None, Column("not available", "Why figures are missing.", brief=False)]
    channels: Annotated[
        int | None,
        Column("channels", "Of its queries and keys; a random query is nearly at a right angle.", brief=False),
    ] = None


@dataclass(frozen=True)
class LayerEqualAttention:
    """The same for a layer: medians over its heads."""

    layer: Annotated[str, Column("layer", "The attention layer.")]
    angle: Annotated[
        float | None,
        Column(
            "angle to W_K", "Degrees between the direction that scores all keys alike and what W_K can express.", ".0f"
        ),
    ]
    reachable: Annotated[
        str | None, Column("heads that can produce it", "How many of the heads can produce a query along q*.")
    ]
    reach: Annotated[float | None, Column("longest q*", "How long it can be, over a real query.", ".2g")]
    spread: Annotated[float | None, Column("spread", "Of its scores, over that of a real query.", ".2g")]
    query_angle: Annotated[float | None, Column("angle to real queries", "Degrees, from q*.", ".0f")]
    least_spread: Annotated[
        float | None, Column("least spread", "Of the scores by any query, over that of a real query.", ".2g")
    ]
    least_query_angle: Annotated[
        float | None, Column("its angle to real queries", "Degrees, from the query of least spread.", ".0f")
    ]


@dataclass(frozen=True, eq=False, repr=False)
class KeySet(CertifiedKeys):
    """The keys of one sequence at one place, or at several that share them, with a certificate for each."""

    places: tuple[int, ...]  # numbers of the places
    sequence: int
    positions: Annotated[Ints, NOT_IN_JSON]  # (n,), of the keys in the sequence

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keys.ndim != 2 or self.bias is not None:
            raise InputError(f"keys of a sequence must have shape (n, d) and no bias, got shape {self.keys.shape}")
        found = getattr(self.positions, "dtype", None), getattr(self.positions, "shape", None)
        if found != (int, self.keys.shape[:1]):
            raise InputError(f"array positions must have one int64 for each of {len(self.keys)} keys")


@dataclass(frozen=True, repr=False)
class KeySelection(
    Result,
    kind="key_selection",
    schema_version=3,
    checked_by="normscope.certificates.check_keys:check_places",
    plotted_by="normscope.report.key_shares:keys_picture",
    remarked_by="normscope.rules.key_selection:remarks",
):
    """Which keys of a text no query can select, and how close heads come to equal attention.

    Counts are certified. The figures on equal attention are measured in float64 and have no certificate.
    """

    model: str
    text: str | None  # description of the text; None if inputs were given
    at: At
    queries: Queries  # reachable: those that the model can produce at the last position
    rivals: Rivals  # causal: each key against those up to its own position; else against all of its sequence
    max_keys: int | None  # of each sequence, from its start
    sequences: int
    places: Annotated[tuple[Place, ...], Table("Keys of {0.model}, {0._where}", brief=False)]
    equal_attention: Annotated[
        tuple[EqualAttention, ...], Table("Queries nearest to equal attention, head by head", brief=False)
    ]
    not_covered: Annotated[tuple[NotCovered, ...], Table("Not covered")]
    sets: tuple[KeySet, ...] = field(default=(), compare=False)  # certified keys; empty unless they were kept
    holds: bool = False

    @property
    def layers(self) -> Annotated[tuple[LayerKeys, ...], Table("Keys of {0.model}, {0._where}")]:
        return tuple(_layer(layer, places) for layer, places in _by_layer(self.places).items())

    @property
    def equal_attention_of_layers(
        self,
    ) -> Annotated[
        tuple[LayerEqualAttention, ...], Table("Queries nearest to equal attention (q*), medians over heads")
    ]:
        return tuple(_equal(layer, heads) for layer, heads in _by_layer(self.equal_attention).items())

    @property
    def _where(self) -> str:
        return "as heads see them" if self.at == "heads" else f"at the {self.at} of the norm before attention"

    def __repr__(self) -> str:
        keys, never = (sum(getattr(place, name) for place in self.places) for name in ("keys", "never_selected"))
        missed = f", {len(self.not_covered)} layers not covered" if self.not_covered else ""
        return (
            f"KeySelection({self.model}, at {self.at}: {never} of {keys} keys never selected "
            f"in {len(self.places)} places{missed})"
        )


def _by_layer(rows: Iterable[Any]) -> dict[str, list[Any]]:
    layers: dict[str, list[Any]] = {}
    for row in rows:
        layers.setdefault(row.layer, []).append(row)
    return layers


def _layer(layer: str, places: list[Place]) -> LayerKeys:
    def total(name: str) -> int:
        return sum(getattr(place, name) for place in places)

    keys, never = total("keys"), total("never_selected")
    worst = max(places, key=lambda place: place.share)
    shown = None if worst.head is None or not worst.never_selected else f"{percent(worst.share)} ({worst.head})"
    named = tokens_of(places) or None
    return LayerKeys(
        layer, places[0].norm, keys, never, total("duplicates"), total("near_ties"), never / keys, shown, named
    )


def tokens_of(places: Iterable[Place]) -> str:
    """The tokens whose keys are never selected most often, or positions where there is no tokenizer."""
    counts = Counter(
        f"position {key.position}" if key.token is None else _readable(key.token)
        for place in places
        for key in place.never_selected_keys
    )
    named = [f"{token} ×{count}" if count > 1 else token for token, count in counts.most_common(TOKENS)]
    more = [f"{len(counts) - TOKENS} more"] if len(counts) > TOKENS else []
    return ", ".join(named + more)


def _readable(text: str) -> str:
    """A token in quotes, shortened, with visible blanks and control characters."""
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


def _equal(layer: str, heads: list[EqualAttention]) -> LayerEqualAttention:
    def middle(figure: Callable[[EqualAttention], float | None]) -> float | None:
        values = [value for head in heads if (value := figure(head)) is not None]
        return median(values) if values else None

    def angle(name: str) -> float | None:
        return middle(lambda head: None if getattr(head, name) is None else getattr(head, name).median)

    known = [head for head in heads if head.reachable is not None]
    return LayerEqualAttention(
        layer=layer,
        angle=middle(lambda head: head.angle),
        reachable=f"{sum(head.reachable or False for head in known)} of {len(known)}" if known else None,
        reach=middle(lambda head: head.reach),
        spread=middle(lambda head: head.spread),
        query_angle=angle("query_angle"),
        least_spread=middle(lambda head: head.least_spread),
        least_query_angle=angle("least_query_angle"),
    )
