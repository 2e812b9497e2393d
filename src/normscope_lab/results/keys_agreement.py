"""`normscope bench keys-agreement`: verdicts on keys against linear programs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result


def _place(place: tuple[int, ...]) -> str:
    return ", ".join(map(str, place))


@dataclass(frozen=True)
class KindAgreement:
    """All keys of one kind: each is compared, or a near tie, or left open by the program."""

    kind: Annotated[str, Column("kind", "How the keys were drawn.")]
    bias: Annotated[bool, Column("bias", "Whether scores have a bias for each key.")]
    sets: Annotated[int, Column("sets", "Sets of keys.")]
    keys: Annotated[int, Column("keys", "Keys of all sets.")]
    selectable: Annotated[int, Column("selectable", "Keys that some query prefers.")]
    near_ties: Annotated[int, Column("near ties", "Keys within rounding of a tie, which are not compared.")]
    unanswered: Annotated[int, Column("open", "Keys for which the program found no optimum.")]
    disagreements: Annotated[int, Column("differ", "Keys on which the program differs from normscope.")]


@dataclass(frozen=True)
class Disagreement:
    """A key of a numbered set on which normscope and a program differ."""

    number: Annotated[int, Column("set", "Number of the set: it determines the keys.")]
    place: Annotated[tuple[int, ...], Column("key", "Index of the key, after that of its set in a batch.", _place)]
    selectable: Annotated[bool, Column("selectable", "The verdict of normscope.")]
    preference: Annotated[float, Column("preference", "How much the program's query prefers the key.", ".3g")]


@dataclass(frozen=True, repr=False)
class KeysAgreement(Result, kind="keys_agreement", remarked_by="normscope_lab.results.keys_agreement:remarks"):
    """Verdicts of normscope and of linear programs, key by key."""

    asked: int  # the least number of keys to compare
    keys: int
    compared: int
    certificates_hold: bool
    kinds: Annotated[tuple[KindAgreement, ...], Table("Verdicts against linear programs")]
    disagreements: Annotated[tuple[Disagreement, ...], Table("Keys on which they differ")]

    @property
    def holds(self) -> bool:
        """Whether enough keys were compared, none was judged differently, and every certificate passed its check."""
        return self.compared >= self.asked and not self.disagreements and self.certificates_hold

    def __repr__(self) -> str:
        return f"KeysAgreement({self.compared} keys compared, {len(self.disagreements)} judged differently)"


def remarks(result: KeysAgreement) -> Iterator[str]:
    held = "every certificate held" if result.certificates_hold else "A CERTIFICATE FAILED ITS CHECK"
    yield f"{result.compared:,} keys compared, {len(result.disagreements)} judged differently; {held}."
    if result.compared < result.asked:
        yield f"Too few: {result.asked:,} were to be compared."
