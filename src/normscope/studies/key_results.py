"""Result types of `keys`: which keys of a text no query can select, layer by layer. Nothing is computed here."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from normscope.results.rows import NotCovered, Spread
from normscope.separation.selectable import Selectable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = 1
AT = ("input", "output", "heads")


@dataclass(frozen=True)
class LostKey:
    """A key that no query selects."""

    sequence: int  # the piece of the text
    position: int  # in it, special tokens counted
    token: str | None  # as the tokenizer writes it; None without one


@dataclass(frozen=True)
class Place:
    """The keys of one layer, or of one head of it, over all sequences."""

    layer: str
    head: int | None  # None at the input and output of a norm
    key_head: int | None  # the key head that it reads: the same number for heads that share their keys
    norm: str | None  # the norm whose inputs or outputs the keys are; None at heads
    at: str  # "input", "output" or "heads"
    keys: int
    unselectable: int  # weighted means of others, so that they lose whatever the query; near ties up to rounding only
    twins: int  # of these, keys that equal another one of their sequence
    degenerate: int  # answers without room to spare
    open: int  # of these, keys of which nothing could be shown
    share: float  # unselectable / keys
    lost: tuple[LostKey, ...] = field(repr=False)
    answers: tuple[Selectable, ...] = field(default=(), repr=False, compare=False)  # if kept; not part of the JSON


@dataclass(frozen=True)
class EqualAttention:
    """How near a head can come to scoring all keys alike, and how near it comes.

    A spread is the standard deviation of scores over the keys of a sequence, by a query of unit length, over the median
    of the same for the real queries; of several sequences, the median.
    """

    layer: str
    head: int
    angle: float | None  # degrees between the dead direction of the keys' norm and what W_K can express
    reachable: bool | None  # whether the model can make a query along q*, the direction that this gives
    reach: float | None  # how long it can be, over the median length of the real queries
    spread: float | None  # of the scores by q*
    query_angle: Spread | None  # degrees between the real queries and q*
    everywhere: bool | None  # False: q* depends on the position; for keys where the query stands, at the last one
    least_spread: float | None  # of the scores by the direction in which the real keys spread least
    least_query_angle: Spread | None  # degrees between the real queries and that direction
    reason: str | None  # why figures are not available


@dataclass(frozen=True, repr=False)
class Keys:
    """Which keys of a text no query can select, and how near heads come to equal attention."""

    model: str
    text: str | None  # None if batches were given
    at: str
    causal: bool  # each key against those up to its own position; else against all of its sequence
    reachable: bool  # by queries that the model can make at the last position; else by any query
    max_keys: int | None  # the first so many of each sequence
    sequences: int
    verified: bool  # whether every certificate held when it was checked
    places: tuple[Place, ...]
    not_covered: tuple[NotCovered, ...]  # layers that could not be asked, and why
    equal_attention: tuple[EqualAttention, ...]  # at heads

    @property
    def answers(self) -> dict[str, Selectable]:
        """The answers that were kept, by layer, head and number of the sequence; those that heads share, once."""
        named: dict[int, tuple[str, Selectable]] = {}
        for place in self.places:
            where = place.layer if place.head is None else f"{place.layer}/head-{place.head}"
            for number, answer in enumerate(place.answers):
                named.setdefault(id(answer), (f"{where}/sequence-{number}", answer))
        return dict(named.values())

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope keys --json` prints; schema: normscope/schemas/keys.json."""
        entries = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("not_covered", "equal_attention"):
            entries[name] = [asdict(entry) for entry in entries[name]]
        entries["places"] = [_entry(place) for place in self.places]
        return {"schema_version": SCHEMA_VERSION, **entries}

    def plot(self) -> "Figure":
        """A heat map of the shares: layers by heads, or one bar per layer."""
        from normscope.report.key_shares import keys_picture

        return keys_picture(self)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.tables.keys import keys_html

        return keys_html(self)

    def __repr__(self) -> str:
        keys, lost = (sum(getattr(place, name) for place in self.places) for name in ("keys", "unselectable"))
        missed = f", {len(self.not_covered)} layers not covered" if self.not_covered else ""
        return f"Keys({self.model}, at {self.at}: {lost} of {keys} unselectable in {len(self.places)} places{missed})"


def _entry(place: Place) -> dict[str, Any]:
    entry = {name: getattr(place, name) for name in place.__dataclass_fields__ if name != "answers"}
    return {**entry, "lost": [asdict(key) for key in place.lost]}
