"""`normscope.vocab`: tokens that can, and that can never, be the argmax of a model's output."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.token_certificates import NEVER, OPEN, TIED, WINS, WORDS, TokenCertificates
from normscope.errors import InputError
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result

Word = Literal["can win", "never", "tied", "open"]
LONGEST = 24  # characters of a token in a table


def readable(text: str) -> str:
    """A token in quotes, cut to fit, with visible blanks and control characters.

    >>> print(readable(" the"), readable("\\x1b[2J"), readable("\\u202e"))
    ' the' '\\x1b[2J' '\\u202e'
    """
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")


@dataclass(frozen=True)
class VerdictCounts:
    """How many tokens have which verdict, for one set of hidden vectors; each token has one."""

    vectors: Annotated[str, Column("hidden vectors", "Which hidden vectors the output layer may be given.")]
    wins: Annotated[int, Column("can win", "Some of these vectors scores the token above all others.", ",")]
    never: Annotated[int, Column("never", "None of these vectors does.", ",")]
    tied: Annotated[int, Column("tied", "None does: equal to another token, or decided by rounding.", ",")]
    open: Annotated[int, Column("open", "Neither shown nor refuted.", ",")]


@dataclass(frozen=True)
class TokenVerdict:
    """A token that is not known to win by both sets of hidden vectors."""

    token: Annotated[int, Column("token", "Its number.")]
    text: Annotated[str | None, Column("text", "What it stands for, if a tokenizer says so.", readable)]
    any_vector: Annotated[Word, Column("any hidden vector", "Whether any hidden vector at all lets it win.")]
    reachable: Annotated[
        Word | None, Column("outputs of the last norm", "Whether an output of the last norm lets it win.")
    ]


@dataclass(frozen=True, repr=False)
class TokenVerdicts(
    Result,
    kind="token_verdicts",
    checked_by="normscope.certificates.check_tokens:check",
    remarked_by="normscope.rules.token_verdicts:remarks",
    reread_by="normscope.studies.vocab:read_again",  # the model, which is not in the file
):
    """Which tokens can ever be the argmax: for any hidden vector, and for outputs of the last norm."""

    model: str
    path: str | None  # of the model, to read it again; "the demo model"; None for a module
    dtype: str | None  # it was loaded in; None: float32, or that of the module or file
    unembedding: str  # the module, or the tensor where only tensors are available
    norm: str | None  # whose output it reads; None if that is not a norm
    norm_kind: str | None
    through: tuple[str, ...]  # linear layers between them
    tied_embeddings: bool | None
    output_bias: bool
    tokens: int
    channels: int
    assumed: tuple[str, ...]  # what could not be observed
    reachable_set: str | None  # which set of hidden vectors counts as reachable
    not_asked: str | None  # why there are no verdicts for reachable vectors
    sha256: str  # of the table that verdicts are about
    counts: Annotated[tuple[VerdictCounts, ...], Table("Tokens of {0.model} that can be the argmax")]
    listed: Annotated[tuple[TokenVerdict, ...], Table("Tokens without a win, by verdict", most=40)]
    any_vector: Annotated[TokenCertificates, NOT_IN_JSON] = field(repr=False, compare=False)
    reachable: Annotated[TokenCertificates | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)
    seconds: Annotated[dict[str, float] | None, NOT_IN_JSON] = field(default=None, compare=False)  # CPU, in this run

    def __post_init__(self) -> None:
        if not isinstance(self.any_vector, TokenCertificates):
            raise InputError("verdicts on tokens must have certificates, got none")
        if self.reachable is not None and len(self.reachable.verdict) != len(self.any_vector.verdict):
            raise InputError("there must be as many verdicts for reachable vectors as for any")

    @property
    def holds(self) -> bool:
        """Whether each verdict has a certificate. The search checked each one; `verify` checks them again."""
        ours, theirs = self.any_vector, self.reachable
        wins, loses = ours.with_vector, ours.with_weights
        if theirs is not None:  # a token that wins by a reachable vector wins, and one that never wins has none
            wins = wins | theirs.with_vector
            if not _certified(theirs, theirs.with_vector, loses | theirs.with_weights):
                return False
        return _certified(ours, wins, loses)

    def __repr__(self) -> str:
        rows = "; ".join(f"{row.vectors}: {in_words(row)}" for row in self.counts)
        return f"TokenVerdicts({self.model}: {self.tokens} tokens; {rows})"


def in_words(row: VerdictCounts) -> str:
    """Counts that are not zero.

    >>> in_words(VerdictCounts("any", wins=7, never=0, tied=2, open=0))
    '7 can win, 2 tied'
    """
    counts = [(row.never, "never"), (row.tied, "tied"), (row.open, "open")]
    return ", ".join([f"{row.wins} can win", *(f"{count} {what}" for count, what in counts if count)])


def counted(vectors: str, found: TokenCertificates) -> VerdictCounts:
    """The counts of one set of hidden vectors."""
    return VerdictCounts(vectors, found.count(WINS), found.count(NEVER), found.count(TIED), found.count(OPEN))


def not_winning(any_vector: TokenCertificates, reachable: TokenCertificates | None) -> list[int]:
    """The tokens to list."""
    lost = any_vector.verdict != WINS
    return np.flatnonzero(lost if reachable is None else lost | (reachable.verdict != WINS)).tolist()


def list_tokens(
    any_vector: TokenCertificates, reachable: TokenCertificates | None, texts: Mapping[int, str | None]
) -> tuple[TokenVerdict, ...]:
    """The tokens that are not known to win, in the order of their numbers."""
    first, second = any_vector.verdict.tolist(), None if reachable is None else reachable.verdict.tolist()
    return tuple(
        TokenVerdict(token, texts[token], _word(first[token]), None if second is None else _word(second[token]))
        for token in not_winning(any_vector, reachable)
    )


def _certified(found: TokenCertificates, wins: NDArray[np.bool_], loses: NDArray[np.bool_]) -> bool:
    right = np.where(found.verdict == WINS, wins, loses) | (found.verdict == OPEN)
    return bool(right.all())


def _word(verdict: int) -> Word:
    word: Word = WORDS[verdict]  # type: ignore[assignment]
    return word
