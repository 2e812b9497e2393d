"""Which tokens can be a model's first choice: the argmax of W·h + c, over all h and over outputs of the last norm.

    any vector   ∃ h:                      wᵢ·h + cᵢ > wⱼ·h + cⱼ for all j ≠ i
    reachable    ∃ h in the ellipsoid:     the same for h = b + √N·GΠu, |u| ≤ 1

A token that never wins is never chosen by greedy decoding; sampling may still emit it. Every verdict has a certificate,
which `normscope.verify` checks again from the model.
"""

import time
from os import PathLike
from pathlib import Path

from torch import nn

from normscope.certificates.check_tokens import TableRead
from normscope.certificates.token_certificates import TokenCertificates
from normscope.certificates.token_table import Table
from normscope.data import demo_model
from normscope.engine import Engine
from normscope.errors import InputError
from normscope.files import require_writable, write_atomically
from normscope.models.batches import Inputs
from normscope.models.subject import Model, Subject, Text
from normscope.models.token_texts import token_texts
from normscope.models.unembedding import Unembedding, unembedding_of
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.result import ENDINGS, load
from normscope.results.token_verdicts import TokenVerdicts, counted, list_tokens, not_winning
from normscope.vocabulary.clock import Clock
from normscope.vocabulary.findings import Answers, Findings
from normscope.vocabulary.search import search

FILLED = "the filled ellipsoid"
SURFACE = (
    "the filled ellipsoid; eps is 0, so outputs lie on its surface, and a token that wins inside it may not win there"
)


def vocab(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    seconds: float | None = None,
    resume: str | PathLike[str] | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> TokenVerdicts:
    """The tokens of a model that can, and that can never, be the argmax of its output.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .safetensors, .gguf or torch file, or a torch module.
    text, inputs
        Text or inputs to run the model on, to see which matrix scores tokens and which norm it reads: the first batch.
        Models of transformers need neither.
    seconds
        Stop after this many seconds; tokens without a verdict by then are open. None: no limit.
    resume
        A .safetensors file, as `save` writes it. If it exists, the search resumes from it; it is updated while the
        search runs, and at its end.
    device, dtype
        Device and floating-point type to load a folder in. float32 holds float16 and bfloat16 exactly.
    engine
        Where blocks of tokens are asked: see `normscope.engine`. None: in as many processes as this one has cores,
        where that is worth it. Results do not depend on it, unless a limit of time ends the search.
    progress
        Called with the items of each phase and a description; see `normscope.progress`.

    Returns
    -------
    TokenVerdicts
        Counts, the tokens that do not win, and a certificate for each verdict.

    >>> import torch
    >>> net = nn.Sequential(nn.Embedding(4, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 4, bias=False))
    >>> net[2].weight.data = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0], [1.0, 1.0]])
    >>> vocab(net, inputs=torch.tensor([[0, 1]]))
    TokenVerdicts(Sequential: 4 tokens; any: 3 can win, 1 never; outputs of 1: 2 can win, 1 never, 1 tied)
    """
    started = time.monotonic()
    if seconds is not None and not seconds >= 0:
        raise InputError(f"seconds must be a number, 0 or more, got {seconds!r}")
    target = None if resume is None else Path(resume)
    if target is not None:
        require_writable(target, force=True, endings=ENDINGS)
    clock = Clock(None if seconds is None else started + seconds)
    with clock.phase("model"):
        subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
        described = _Described(subject, subject.dtype)
        _ = described.table.sha256  # a pass over the table, which counts as time
    findings = Findings.none_yet(len(described.table), reachable=described.table.outputs is not None)
    if target is not None:
        if target.exists():
            findings = _resumed(target, described.table)
        clock.keep = lambda: write_atomically(described.result(*findings.certificates()).to_bytes(), target)
    try:
        search(described.table, findings, clock, progress, engine)
    finally:
        clock.keep()
    with clock.phase("tokenizer"):
        return described.result(*findings.certificates(), clock)


def read_again(result: TokenVerdicts, against: nn.Module | str | Path | Subject | None = None) -> TableRead:
    """The model that verdicts are about, read again, for `normscope.certificates.check_tokens.check`.

    Parameters
    ----------
    result
        A result of `normscope.vocab`, new or loaded from a file.
    against
        The model, or a Subject with the inputs to run it on. None: it is read from its recorded path.

    Returns
    -------
    TableRead
        Its table, and the facts that the result states about it.
    """
    where = demo_model() if result.path == DEMO else result.path
    if against is None and where is None:
        raise InputError("these verdicts are about a module in memory: pass the model to check them against")
    target = where if against is None else against
    assert target is not None
    subject = target if isinstance(target, Subject) else Subject(target, dtype=result.dtype)
    again = _Described(subject, result.dtype)
    says = again.result(result.any_vector, result.reachable).to_dict()
    given: set[str] = set()
    if against is not None and (subject.path is not None or result.path is not None):  # it may have moved since
        given = {"model", "path", "dtype"}
    if (subject.path is None) != (result.path is None):  # a module has no tokenizer
        given.add("listed")
    return TableRead(again.table, {name: value for name, value in says.items() if name not in given})


DEMO = "the demo model"  # no absolute path


class _Described:
    """The parts of a model that verdicts on its tokens need, read once, with its description for the result."""

    def __init__(self, subject: Subject, dtype: str | None) -> None:
        self._subject, self._dtype = subject, dtype
        self._found = unembedding_of(subject)
        self.table = Table.after(self._found.norm, self._found.rows, self._found.bias)
        self._texts: dict[int, str | None] = {}

    def result(
        self, any_vector: TokenCertificates, reachable: TokenCertificates | None, clock: Clock | None = None
    ) -> TokenVerdicts:
        found, norm = self._found, self._found.norm
        counts = [counted("any", any_vector)]
        if reachable is not None:
            counts.append(counted(f"outputs of {found.norm_name}", reachable))
        reachable_set = None
        if norm is not None and self.table.outputs is not None:
            reachable_set = FILLED if norm.eps > 0 else SURFACE
        return TokenVerdicts(
            model=self._subject.name,
            path=self._path(),
            dtype=None if self._subject.path is None else self._dtype,
            unembedding=found.name,
            norm=found.norm_name,
            norm_kind=None if norm is None else norm.kind,
            through=found.through,
            tied_embeddings=found.tied,
            output_bias=found.bias is not None,
            tokens=len(self.table),
            channels=self.table.channels,
            assumed=found.assumed,
            reachable_set=reachable_set,
            not_asked=None if reachable is not None else _why_not(found, norm),
            sha256=self.table.sha256,
            counts=tuple(counts),
            listed=list_tokens(any_vector, reachable, self._named(not_winning(any_vector, reachable))),
            any_vector=any_vector,
            reachable=reachable,
            seconds=None if clock is None else {phase: round(time, 3) for phase, time in clock.seconds.items()},
        )

    def _path(self) -> str | None:
        path = self._subject.path
        return None if path is None else DEMO if path == demo_model() else str(path.resolve())

    def _named(self, tokens: list[int]) -> dict[int, str | None]:
        """The texts of tokens, each looked up in the tokenizer once."""
        path, new = self._subject.path, [token for token in tokens if token not in self._texts]
        texts = [None] * len(new) if path is None else token_texts(path, new)
        self._texts.update(zip(new, texts, strict=True))
        return self._texts


def _why_not(found: Unembedding, norm: Norm | None) -> str | None:
    if norm is None:
        return found.problem
    if not norm.scales:
        return f"{found.norm_name} does not scale, so its outputs are not bounded"
    return f"{found.norm_name} has {norm.groups} groups, so its outputs do not fill an ellipsoid"


def _resumed(path: Path, table: Table) -> Findings:
    """The findings in a file, if it is about this table."""
    stored = load(path)
    if not isinstance(stored, TokenVerdicts):
        raise InputError(f"{path} has other results than verdicts on tokens ({stored.kind}): choose another file")
    asks = stored.reachable is not None
    same = len(stored.any_vector.verdict) == len(table) and asks == (table.outputs is not None)
    if stored.sha256 != table.sha256 or not same:
        raise InputError(f"{path} is about another table (its SHA-256 differs): choose another file")
    return Findings(
        Answers.resumed(stored.any_vector), None if stored.reachable is None else Answers.resumed(stored.reachable)
    )
