"""Result types of `vocab`: tokens that can and cannot be a model's first choice. Plain values; nothing is computed."""

from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Token:
    """A token by its number, and what it stands for; None without a tokenizer that knows it."""

    id: int
    text: str | None


@dataclass(frozen=True)
class Answer:
    """How many tokens can be the first choice; each verdict has a certificate, each token has one verdict."""

    wins: int  # some hidden vector prefers the token to all others
    never: int  # none does
    tied: int  # none does, but only just: a twin, or a weighted mean of others that rounding could move
    open: int  # not settled
    never_tokens: tuple[Token, ...] = field(default=(), repr=False)
    tied_tokens: tuple[Token, ...] = field(default=(), repr=False)
    open_tokens: tuple[Token, ...] = field(default=(), repr=False)


@dataclass(frozen=True, repr=False)
class Vocab:
    """Which tokens can ever be the argmax: for any hidden vector, and for those that the last norm can write."""

    model: str
    unembedding: str  # the module, or the tensor where only tensors are at hand
    norm: str | None  # whose output it reads; None if that is not a norm
    norm_kind: str | None
    through: tuple[str, ...]  # linear layers between them
    tied_embeddings: bool | None
    output_bias: bool
    tokens: int
    channels: int
    assumed: tuple[str, ...]  # what could not be observed
    plain: Answer  # any hidden vector
    reachable: Answer | None  # outputs of the norm; None if they are not asked for
    reachable_set: str | None  # which set that is
    not_asked: str | None  # why not
    seconds: dict[str, float]  # CPU time of each phase, in this run

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope vocab --json` prints; schema: normscope/schemas/vocab.json."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self, dict_factory=_with_lists)}

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.tables.vocab import vocab_html

        return vocab_html(self)

    def __repr__(self) -> str:
        answers = [("plain", self.plain), *([("reachable", self.reachable)] if self.reachable else [])]
        return (
            f"Vocab({self.model}, {self.tokens} tokens; {'; '.join(f'{name}: {in_words(a)}' for name, a in answers)})"
        )


def in_words(answer: Answer) -> str:
    """The counts of an answer, those that are not zero.

    >>> in_words(Answer(wins=7, never=0, tied=2, open=0))
    '7 can win, 2 tied'
    """
    counts = [(answer.never, "never"), (answer.tied, "tied"), (answer.open, "open")]
    return ", ".join([f"{answer.wins} can win", *(f"{count} {what}" for count, what in counts if count)])


def _with_lists(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict as JSON has it, where tuples are lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in fields}
