"""Norms of a checkpoint of unknown architecture: vectors with the name of a norm.

Names show gains and biases, and nothing else: that a norm with a bias is a LayerNorm and one without is an RMSNorm, and
the value of eps, are reported as assumed. A GGUF file has both in its metadata; its converters store 1 + w where a
model means 1 + w, so its gains are final. A config.json of an unknown kind may still give an eps.
"""

import math
import re
from collections.abc import Container, Iterator, Sequence

from normscope.errors import InputError
from normscope.models.checkpoint import Checkpoint
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm

ASSUMED_EPS = 1e-5
NAME = re.compile(r"(norm|(^|[._])(ln|rms)([._\d]|$)|layernorm)", re.IGNORECASE)
GAIN = re.compile(r"^(?P<path>.+)\.(weight|gamma|scale)$", re.DOTALL)
BIAS = ("bias", "beta")
EPS = re.compile(r"norm_?(layer_?)?(eps|epsilon)$", re.IGNORECASE)


def norms_by_name(checkpoint: Checkpoint, among: Container[str] | None = None) -> Iterator[FoundNorm]:
    """Every vector of the checkpoint, or among some names, that is named like the gain of a norm, with its bias."""
    kind, eps = _declared(checkpoint)
    for name in _in_depth_order(checkpoint):
        path, shape = path_of_gain(name), checkpoint.shape(name)
        if path is None or (among is not None and name not in among):
            continue
        problem = None
        if f"{path}.running_mean" in checkpoint.names:
            problem = "has running statistics, as BatchNorm does: in eval mode an affine map"
        elif len(shape) != 1:
            problem = f"has a gain of shape {shape}, which is not a vector"
        if problem is not None:
            yield FoundNorm(path, "unknown", math.prod(shape), problem=problem)
            continue
        bias = next((f"{path}.{end}" for end in BIAS if f"{path}.{end}" in checkpoint.names), None)
        project = kind == "layernorm" if kind else bias is not None
        try:
            norm = Norm(
                gain=checkpoint.tensor(name),
                bias=None if bias is None else checkpoint.tensor(bias),
                eps=ASSUMED_EPS if eps is None else eps,
                project=project,
            )
        except ValueError as error:
            raise InputError(f"{path}: {error}") from None
        assumed = (*(() if kind else ("kind",)), *(() if eps is not None else ("eps",)), "gain_convention")
        if checkpoint.format == "gguf":
            assumed = tuple(what for what in assumed if what != "gain_convention")
        stored = norm.size * (1 + (bias is not None))
        yield FoundNorm.of(
            norm,
            path,
            gain_convention="w",
            eps_place="inside",
            has_bias=bias is not None,
            parameters=stored,
            assumed=assumed,
        )


def path_of_gain(name: str) -> str | None:
    """The path of the norm whose gain a tensor is, by its name; None if it is not named like one.

    >>> path_of_gain("h.0.ln_1.weight"), path_of_gain("h.0.mlp.weight")
    ('h.0.ln_1', None)
    """
    matched = GAIN.match(name)
    return matched["path"] if matched and NAME.search(matched["path"]) else None


def _in_depth_order(checkpoint: Checkpoint) -> Sequence[str]:
    """Names in the order of the model: a state dict keeps it; other files sort names, so that layer 10 follows 1."""
    if checkpoint.format == "torch":
        return checkpoint.names
    return sorted(
        checkpoint.names,
        key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)],
    )


def _declared(checkpoint: Checkpoint) -> tuple[str | None, float | None]:
    """Kind and eps as a GGUF file's metadata has them, for example under llama.attention.layer_norm_rms_epsilon.

    From a config.json the eps, for example layer_norm_epsilon or rms_norm_eps, if all its values agree.
    """
    for key, value in checkpoint.metadata.items():
        if key.endswith(".attention.layer_norm_rms_epsilon"):
            return "rmsnorm", float(value)
        if key.endswith(".attention.layer_norm_epsilon"):
            return "layernorm", float(value)
    said = {float(value) for key, value in (checkpoint.config or {}).items() if EPS.search(key) and _is_eps(value)}
    return None, said.pop() if len(said) == 1 else None


def _is_eps(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
