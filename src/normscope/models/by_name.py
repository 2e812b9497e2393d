"""Norms of a checkpoint whose architecture is not known: vectors with the name of a norm.

Names show gains and biases, and nothing else: that a norm with a bias is a LayerNorm and one without an RMSNorm, and
what its eps is, is assumed, and said. A GGUF file says both in its metadata; its converters store 1 + w where a model
means 1 + w, so its gains are gains.
"""

import re
from collections.abc import Iterator, Sequence

from normscope.models.checkpoint import Checkpoint
from normscope.models.found import FoundNorm
from normscope.norm import Norm

ASSUMED_EPS = 1e-5
NAME = re.compile(r"(norm|(^|[._])(ln|rms)([._\d]|$)|layernorm)", re.IGNORECASE)
GAIN = re.compile(r"^(?P<path>.+)\.(weight|gamma|scale)$")
BIAS = ("bias", "beta")


def norms_by_name(checkpoint: Checkpoint) -> Iterator[FoundNorm]:
    """Every vector of the checkpoint that is named like the gain of a norm, with its bias."""
    kind, eps = _declared(checkpoint)
    for name in _in_depth_order(checkpoint):
        matched = GAIN.match(name)
        if not matched or not NAME.search(matched["path"]) or len(checkpoint.shape(name)) != 1:
            continue
        path = matched["path"]
        bias = next((f"{path}.{end}" for end in BIAS if f"{path}.{end}" in checkpoint.names), None)
        project = kind == "layernorm" if kind else bias is not None
        norm = Norm(
            gain=checkpoint.tensor(name),
            bias=None if bias is None else checkpoint.tensor(bias),
            eps=ASSUMED_EPS if eps is None else eps,
            project=project,
        )
        assumed = (*(() if kind else ("kind",)), *(() if eps is not None else ("eps",)), "gain_convention")
        if checkpoint.format == "gguf":
            assumed = tuple(what for what in assumed if what != "gain_convention")
        stored = norm.size * (1 + (bias is not None))
        yield FoundNorm(
            path, norm.size, norm, gain_convention="w", eps_place="inside", parameters=stored, assumed=assumed
        )


def _in_depth_order(checkpoint: Checkpoint) -> Sequence[str]:
    """As the model holds them: a state dict keeps that order; other files sort names, so that layer 10 follows 1."""
    if checkpoint.format == "torch":
        return checkpoint.names
    return sorted(
        checkpoint.names,
        key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)],
    )


def _declared(checkpoint: Checkpoint) -> tuple[str | None, float | None]:
    """Kind and eps as a GGUF file's metadata has them, for example under llama.attention.layer_norm_rms_epsilon."""
    for key, value in checkpoint.metadata.items():
        if key.endswith(".attention.layer_norm_rms_epsilon"):
            return "rmsnorm", float(value)
        if key.endswith(".attention.layer_norm_epsilon"):
            return "layernorm", float(value)
    return None, None
