"""Which tokens can be a model's first choice: the argmax of W·h + c, over all h and over what the last norm writes.

    plain        ∃ h:                      wᵢ·h + cᵢ > wⱼ·h + cⱼ for all j ≠ i
    reachable    ∃ h in the ellipsoid:     the same for h = b + √N·GΠu, |u| ≤ 1

A token that never wins is never chosen by greedy decoding; sampling may still emit it. Every verdict has a certificate,
which `verify_vocab` checks again from the model.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from normscope.certificates.check_tokens import first_fault
from normscope.certificates.token_table import Outputs, Table
from normscope.checks import quoted
from normscope.data import demo_model
from normscope.errors import InputError
from normscope.models.token_texts import token_texts
from normscope.models.unembedding import Unembedding, unembedding_of
from normscope.studies.vocab_results import Answer, Token, Vocab
from normscope.vocabulary.findings import (
    NEVER,
    OPEN,
    TIED,
    WINS,
    Answers,
    Findings,
    load_findings,
    require_state,
    save_findings,
)
from normscope.vocabulary.search import Clock, search

BUNDLED = "the bundled model"
FILLED = "the filled ellipsoid"
SURFACE = (
    "the filled ellipsoid; eps is 0, so outputs lie on its surface, and a token that wins inside it may not win there"
)

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def vocab(
    model: nn.Module | str | Path | None = None,
    *,
    example: Mapping[str, Any] | None = None,
    budget: float | None = None,
    state: str | PathLike[str] | None = None,
    progress: Progress = lambda things, _: things,
) -> Vocab:
    """The tokens of a model that can, and that can never, be the argmax of its output.

    Of a live module (called with `example` if it is no model of transformers), of a checkpoint, or of the model that
    ships with the package. After a budget of seconds what is not settled is left open. With a state, a file ending in
    .npz, certificates are kept there; the same call goes on from it.

    >>> import torch
    >>> net = nn.Sequential(nn.Embedding(4, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 4, bias=False))
    >>> net[2].weight.data = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    >>> vocab(net, example={"input": torch.tensor([[0, 1]])})
    Vocab(Sequential, 4 tokens; plain: 3 can win, 1 never; reachable: 2 can win, 1 never, 1 tied)
    """
    started = time.monotonic()
    if budget is not None and not budget >= 0:
        raise InputError(f"budget must be a number of seconds, 0 or more, got {budget!r}")
    target = None if state is None else Path(state)
    if target is not None:
        require_state(target)
    path = _path_of(model)
    clock = Clock(None if budget is None else started + budget)
    with clock.phase("model"):
        found = unembedding_of(model if isinstance(model, nn.Module) else path or demo_model(), example)
        table, not_asked = table_of(found)
    findings = Findings.none_yet(len(table), reachable=table.outputs is not None)
    if target is not None:
        source = {"path": None if path is None else str(path.resolve()), "bundled": model is None}
        if target.exists():
            findings = _continued(target, table)
        clock.keep = lambda: save_findings(findings, table.sha256, source, target)
    try:
        search(table, findings, clock, progress)
    finally:
        clock.keep()
    name = BUNDLED if model is None else type(model).__name__ if isinstance(model, nn.Module) else str(path)
    return _result(name, path or (demo_model() if model is None else None), found, findings, not_asked, clock)


def verify_vocab(
    path: str | PathLike[str],
    model: nn.Module | str | Path | None = None,
    *,
    example: Mapping[str, Any] | None = None,
    progress: Progress = lambda things, _: things,
) -> tuple[bool, str]:
    """Whether a state file proves what it says of its model, and why, or why not.

    The model is read again from where it was, or is given; nothing is searched for. What had to be assumed about it,
    as of tensors without an architecture, is part of what is said.
    """
    try:
        stored = load_findings(path)
    except ValueError as error:
        return False, str(error)
    if model is None:
        place, bundled = (stored.source.get(name) for name in ("path", "bundled"))
        if stored.source.keys() != {"path", "bundled"} or not isinstance(bundled, bool) or (bundled and place):
            return False, f"{path} must say which model it is about, got {quoted(stored.source)}"
        if not isinstance(place, str) and not bundled:
            raise InputError(f"{path} is about a live module: give the model to verify it")
        model = place if isinstance(place, str) else demo_model()
    found = unembedding_of(model, example)
    table, _ = table_of(found)
    if table.sha256 != stored.sha256:
        return False, "the certificates are for another table: its SHA-256 differs"
    fault = first_fault(table, stored.findings, progress)
    if fault is not None:
        return False, fault
    questions = [("plain", stored.findings.plain), ("reachable", stored.findings.reachable)]
    proven = [f"{name}: {_proven(answers)}" for name, answers in questions if answers is not None]
    return True, "; ".join([*proven, *([f"assumed: {', '.join(found.assumed)}"] if found.assumed else [])])


def table_of(found: Unembedding) -> tuple[Table, str | None]:
    """The table of an unembedding, and why reachable vectors are not asked for, if they are not."""
    bias = None if found.bias is None or (found.bias == found.bias[0]).all() else found.bias
    norm = found.norm
    if norm is None:
        return Table(found.rows, bias), found.problem
    if not norm.scales:
        return Table(found.rows, bias), f"{found.norm_name} does not scale: its outputs are not bounded"
    if norm.groups > 1:
        return Table(found.rows, bias), f"{found.norm_name} has {norm.groups} groups: its outputs fill no ellipsoid"
    return Table(found.rows, bias, Outputs(norm.gain, norm.bias, norm.projects)), None


def _path_of(model: nn.Module | str | Path | None) -> Path | None:
    return None if model is None or isinstance(model, nn.Module) else Path(model)


def _continued(path: Path, table: Table) -> Findings:
    """What a state holds, if it is about this table."""
    stored = load_findings(path)
    asks = stored.findings.reachable is not None
    if stored.sha256 != table.sha256 or asks != (table.outputs is not None):
        raise InputError(f"{path} is about another table (its SHA-256 differs): give another file, or none")
    if len(stored.findings.plain.verdict) != len(table):
        raise InputError(f"{path} is damaged: it must have a verdict for each of {len(table)} tokens")
    return stored.findings


def _result(
    name: str, path: Path | None, found: Unembedding, findings: Findings, not_asked: str | None, clock: Clock
) -> Vocab:
    norm, reachable = found.norm, findings.reachable
    unsettled = np.flatnonzero(findings.plain.verdict != WINS)
    if reachable is not None:
        unsettled = np.union1d(unsettled, np.flatnonzero(reachable.verdict != WINS))
    with clock.phase("tokenizer"):
        named = unsettled.tolist()
        texts = dict(zip(named, [None] * len(named) if path is None else token_texts(path, named), strict=True))
    reachable_set = None
    if reachable is not None and norm is not None:
        reachable_set = FILLED if norm.eps > 0 else SURFACE
    return Vocab(
        model=name,
        unembedding=found.name,
        norm=found.norm_name,
        norm_kind=None if norm is None else norm.kind,
        through=found.through,
        tied_embeddings=found.tied,
        output_bias=found.bias is not None,
        tokens=len(findings.plain.verdict),
        channels=found.rows.shape[1],
        assumed=found.assumed,
        plain=_answer(findings.plain, texts),
        reachable=None if reachable is None else _answer(reachable, texts),
        reachable_set=reachable_set,
        not_asked=not_asked,
        seconds={phase: round(seconds, 3) for phase, seconds in clock.seconds.items()},
    )


def _answer(answers: Answers, texts: Mapping[int, str | None]) -> Answer:
    tokens = {
        verdict: tuple(Token(token, texts[token]) for token in np.flatnonzero(answers.verdict == verdict).tolist())
        for verdict in (NEVER, TIED, OPEN)
    }
    return Answer(
        wins=int((answers.verdict == WINS).sum()),
        never=len(tokens[NEVER]),
        tied=len(tokens[TIED]),
        open=len(tokens[OPEN]),
        never_tokens=tokens[NEVER],
        tied_tokens=tokens[TIED],
        open_tokens=tokens[OPEN],
    )


def _proven(answers: Answers) -> str:
    count = {verdict: int((answers.verdict == verdict).sum()) for verdict in (WINS, NEVER, TIED, OPEN)}
    rest = f", {count[TIED]:,} tied (equal to another, or decided by rounding)" if count[TIED] else ""
    rest += f", {count[OPEN]:,} left open" if count[OPEN] else ""
    return f"{count[WINS]:,} tokens shown to win, {count[NEVER]:,} never to{rest}"
