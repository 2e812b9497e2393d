"""What has been found out about the tokens of a table, and the proofs of it, as they grow.

    wins      a hidden vector prefers the token to all others: the token's own direction in a frame, or a stored vector
    never     weights of other tokens show that none does
    tied      none does either, but the token equals another one, or its weights hold only up to rounding
    open      nothing has been shown yet

A file of findings is an .npz file of plain arrays: verdicts and their certificates, nothing else. It does not hold the
table, but its SHA-256, and words on where it came from.
"""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.key_certificates import Ints
from normscope.checks import Floats, first_line, quoted
from normscope.errors import InputError
from normscope.files import npz_arrays, require_writable, said_format, write_whole
from normscope.vocabulary.frame import Frame

FORMAT = "normscope vocab 2"
ENDINGS = (".npz",)
OPEN, WINS, NEVER, TIED = 0, 1, 2, 3
KINDS = {"verdict": "i", "power": "f", "query_tokens": "i", "weight_tokens": "i", "starts": "i", "indices": "i"}
KINDS |= {"weights": "f"}
OPTIONAL = dict.fromkeys(("queries", "center", "axes", "variances"), "f")


@dataclass(eq=False)
class Answers:
    """To one question, by the number of the token."""

    verdict: NDArray[np.int8]
    power: Floats  # of the coordinates in which a token wins along itself; 0 where that is not its certificate
    asked: NDArray[np.bool_]  # by the exact method in this run, so that it is not asked again if it is still open
    queries: dict[int, Floats] = field(default_factory=dict)  # a hidden vector, or the u of a reachable one
    weights: dict[int, tuple[Ints, Floats]] = field(default_factory=dict)
    frame: Frame | None = None
    passed: list[float] = field(default_factory=list)  # powers in which all tokens have been asked in this run

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
    """Answers for any hidden vector, and for reachable ones if they are asked for.

    A token that wins by a reachable vector wins, and one that never wins is not won by a reachable vector: such
    verdicts stand in both, their certificate only in the one that it was found for.
    """

    plain: Answers
    reachable: Answers | None

    @classmethod
    def none_yet(cls, tokens: int, *, reachable: bool) -> "Findings":
        return cls(_no_answers(tokens), _no_answers(tokens) if reachable else None)

    def share(self) -> None:
        """Carry over what the answers to one question say about the other."""
        if self.reachable is None:
            return
        plain, reachable = self.plain.verdict, self.reachable.verdict
        plain[(plain == OPEN) & (reachable == WINS)] = WINS
        lost = (reachable == OPEN) & ((plain == NEVER) | (plain == TIED))
        reachable[lost] = plain[lost]


def _no_answers(tokens: int) -> Answers:
    return Answers(np.zeros(tokens, np.int8), np.zeros(tokens), np.zeros(tokens, bool))


def save_findings(findings: Findings, sha256: str, source: Mapping[str, Any], path: Path) -> None:
    """Write what was found, and for which table, to a file that takes its place when all of it is there."""
    findings.share()
    arrays = {"format": np.array(FORMAT), "sha256": np.array(sha256), "source": np.array(json.dumps(source))}
    for question, answers in (("plain", findings.plain), ("reachable", findings.reachable)):
        if answers is not None:
            arrays |= {f"{question}_{name}": array for name, array in _arrays(answers).items()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_whole(file.getvalue(), path)


def _arrays(answers: Answers) -> dict[str, NDArray[Any]]:
    tokens = sorted(answers.weights)
    some = [answers.weights[token] for token in tokens]
    arrays: dict[str, NDArray[Any]] = {
        "verdict": answers.verdict,
        "power": answers.power,
        "query_tokens": np.array(sorted(answers.queries), np.int64),
        "weight_tokens": np.array(tokens, np.int64),
        "starts": np.cumsum([0, *(len(indices) for indices, _ in some)], dtype=np.int64),
        "indices": np.concatenate([np.zeros(0, np.int64), *(indices for indices, _ in some)]),
        "weights": np.concatenate([np.zeros(0), *(weights for _, weights in some)]),
    }
    if answers.queries:
        arrays["queries"] = np.array([answers.queries[token] for token in sorted(answers.queries)])
    if answers.frame is not None and answers.power.any():
        arrays |= {name: getattr(answers.frame, name) for name in ("center", "axes", "variances")}
    return arrays


@dataclass(frozen=True, eq=False)
class Stored:
    """A file of findings."""

    findings: Findings
    sha256: str
    source: dict[str, Any]


def require_state(path: Path) -> None:
    """Refuse a path at which findings could not be kept, before any work is done; a file of findings may be there."""
    require_writable(path, force=True, endings=ENDINGS)
    if path.exists() and not is_findings_file(path):
        raise InputError(f"{path} exists, and is no state of normscope vocab: choose another name")


def is_findings_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file says of itself that it holds findings."""
    return said_format(path) == FORMAT


def load_findings(path: str | os.PathLike[str]) -> Stored:
    """What a file holds; ValueError if it cannot be read as findings."""
    try:
        arrays = npz_arrays(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path} can't be read: {first_line(error)}") from None
    try:
        if str(arrays["format"]) != FORMAT:
            raise InputError(f"it says {quoted(str(arrays['format']))}")
        source = json.loads(str(arrays["source"]))
        plain = _answers(arrays, "plain")
        asked = "reachable_verdict" in arrays
        findings = Findings(plain, _answers(arrays, "reachable") if asked else None)
        matching = not asked or len(arrays["reachable_verdict"]) == len(plain.verdict)
        if not matching or not isinstance(source, dict):
            raise InputError("its parts do not belong together")
        questions = ("plain", "reachable") if asked else ("plain",)
        known = {
            "format",
            "sha256",
            "source",
            *(f"{question}_{name}" for question in questions for name in KINDS | OPTIONAL),
        }
        others = sorted(arrays.keys() - known)
        if others:
            raise InputError(f"it must hold nothing that proves nothing, got an array {quoted(others[0])}")
        return Stored(findings, str(arrays["sha256"]), source)
    except (KeyError, ValueError, IndexError, RecursionError) as error:
        raise InputError(f"{path} must hold what normscope vocab saves ({FORMAT}): {first_line(error)}") from None


def _answers(arrays: Mapping[str, NDArray[Any]], question: str) -> Answers:
    """Answers from arrays, of which only kinds, shapes and ranges are believed once they are checked."""
    optional = {name: kind for name, kind in OPTIONAL.items() if f"{question}_{name}" in arrays}
    mine = {name: arrays[f"{question}_{name}"] for name in KINDS | optional}
    for name, kind in (KINDS | optional).items():
        if mine[name].dtype.kind != kind or not np.isfinite(mine[name]).all():
            raise InputError(f"{question}_{name} must be finite, of kind {kind!r}, got {mine[name].dtype}")
    if any(mine[name].ndim != 1 for name in KINDS):
        raise InputError(f"the arrays of {question} must be plain lists")
    count, starts = len(mine["verdict"]), mine["starts"]
    shaped = mine["power"].shape == (count,)
    shaped &= starts.shape == (len(mine["weight_tokens"]) + 1,) and mine["indices"].shape == mine["weights"].shape
    shaped &= starts[0] == 0 and starts[-1] == len(mine["weights"]) and bool((np.diff(starts) >= 1).all())
    shaped &= len(mine.get("queries", ())) == len(mine["query_tokens"])
    for name in ("query_tokens", "weight_tokens", "indices"):
        shaped &= bool(((mine[name] >= 0) & (mine[name] < count)).all())
        shaped &= name == "indices" or bool((np.diff(mine[name]) > 0).all())
    if not shaped or not np.isin(mine["verdict"], (OPEN, WINS, NEVER, TIED)).all():
        raise InputError(f"the arrays of {question} do not belong together")
    frame = None
    if "center" in mine:
        frame = Frame(mine["center"], mine["axes"], mine["variances"])
        right = frame.variances.ndim == 1 and frame.axes.shape == (*frame.center.shape, *frame.variances.shape)
        if not right or not frame.axes.size or not (frame.variances > 0).all() or not mine["power"].any():
            raise InputError(
                f"the frame of {question} must have axes with variances, for tokens that win along themselves"
            )
    elif optional.keys() - {"queries"}:
        raise InputError(f"the frame of {question} must have a center")
    parts = [slice(start, stop) for start, stop in pairwise(starts.tolist())]
    return Answers(
        verdict=mine["verdict"].astype(np.int8),
        power=mine["power"].astype(np.float64),
        asked=np.zeros(count, bool),
        queries=dict(zip(mine["query_tokens"].tolist(), mine.get("queries", ()), strict=True)),
        weights={
            token: (mine["indices"][part].astype(np.int64), mine["weights"][part])
            for token, part in zip(mine["weight_tokens"].tolist(), parts, strict=True)
        },
        frame=frame,
    )
