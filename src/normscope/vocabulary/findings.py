"""The findings of a running search about the tokens of a table: verdicts with their certificates."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.certificates.token_certificates import NEVER, OPEN, TIED, WINS, Frame, TokenCertificates
from normscope.checks import Floats


@dataclass(eq=False)
class Answers:
    """About one set of hidden vectors, by the number of the token."""

    verdict: NDArray[np.int8]
    power: Floats  # of the own direction that a token wins along; 0 where that is not its certificate
    asked: NDArray[np.bool_]  # by the exact method in this run, so that it is not asked again if it is still open
    queries: dict[int, Floats] = field(default_factory=dict)  # a hidden vector, or the u of a reachable one
    weights: dict[int, tuple[Ints, Floats]] = field(default_factory=dict)
    frame: Frame | None = None
    passed: list[float] = field(default_factory=list)  # powers in which all tokens have been asked in this run

    @classmethod
    def none_yet(cls, tokens: int) -> "Answers":
        return cls(np.zeros(tokens, np.int8), np.zeros(tokens), np.zeros(tokens, bool))

    @classmethod
    def resumed(cls, found: TokenCertificates) -> "Answers":
        """Answers from certificates, to add to."""
        count = len(found.verdict)
        return cls(
            verdict=found.verdict.astype(np.int8),
            power=found.power.astype(np.float64),
            asked=np.zeros(count, bool),
            queries=dict(zip(found.query_tokens.tolist(), found.queries, strict=True)),
            weights={token: (indices, weights) for token, indices, weights in found.weighted()},
            frame=found.frame,
        )

    def certificates(self) -> TokenCertificates:
        """Verdicts and certificates as plain arrays, which do not change when more is found."""
        some, queried = sorted(self.weights), sorted(self.queries)
        parts = [self.weights[token] for token in some]
        return TokenCertificates(
            verdict=self.verdict.copy(),
            power=self.power.copy(),
            query_tokens=np.array(queried, np.int64),
            queries=np.array([self.queries[token] for token in queried]) if queried else np.zeros((0, 0)),
            weight_tokens=np.array(some, np.int64),
            starts=np.cumsum([0, *(len(indices) for indices, _ in parts)], dtype=np.int64),
            indices=np.concatenate([np.zeros(0, np.int64), *(indices for indices, _ in parts)]),
            weights=np.concatenate([np.zeros(0), *(weights for _, weights in parts)]),
            frame=self.frame if self.power.any() else None,
        )

    def open(self) -> Ints:
        return np.flatnonzero(self.verdict == OPEN)

    def win_along_themselves(self, tokens: Ints, power: float) -> None:
        self.verdict[tokens], self.power[tokens] = WINS, power

    def win(self, token: int, query: Floats) -> None:
        self.verdict[token], self.queries[token] = WINS, query

    def lose(self, token: int, indices: Ints, weights: Floats, verdict: int) -> None:
        """With what the weights show: NEVER or TIED."""
        self.verdict[token], self.weights[token] = verdict, (indices, weights)


@dataclass(eq=False)
class Findings:
    """Answers for any hidden vector, and for reachable ones if the outputs of the norm are known.

    A token that wins by a reachable vector wins, and one that never wins is not won by a reachable vector: such
    verdicts stand in both, their certificate only in the one that it was found for.
    """

    any_vector: Answers
    reachable: Answers | None

    @classmethod
    def none_yet(cls, tokens: int, *, reachable: bool) -> "Findings":
        return cls(Answers.none_yet(tokens), Answers.none_yet(tokens) if reachable else None)

    def share(self) -> None:
        """Carry over verdicts from one set of vectors to the other where they imply each other."""
        if self.reachable is None:
            return
        ours, theirs = self.any_vector.verdict, self.reachable.verdict
        ours[(ours == OPEN) & (theirs == WINS)] = WINS
        lost = (theirs == OPEN) & ((ours == NEVER) | (ours == TIED))
        theirs[lost] = ours[lost]

    def certificates(self) -> tuple[TokenCertificates, TokenCertificates | None]:
        """The findings as plain arrays."""
        self.share()
        return self.any_vector.certificates(), None if self.reachable is None else self.reachable.certificates()
