"""`LNNet`: a network of LayerNorms of width 3 that has memorised samples, with the proof that it has.

A file of it holds the network and nothing else: what it does to samples, by how much and with how many bits is found
out from the samples when it is verified.
"""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.merge_network import MergeNetwork
from normscope.capacity.scaling_layer import WIDTH, layer_norm, linear_of, require_eps
from normscope.certificates.check_networks import Certificate, Exact, exact_labels, float_labels
from normscope.checks import Floats, as_vectors, first_line, quoted
from normscope.errors import InputError
from normscope.files import require_writable, write_whole

if TYPE_CHECKING:
    import torch
    from torch import nn

SCHEMA_VERSION = 1
FORMAT = "normscope LN-Net 2"
ENDINGS = (".safetensors",)


@dataclass(frozen=True)
class Origin:
    """How a network came about."""

    method: str  # "fold" or "merge"
    samples: int
    dimension: int  # of the samples
    runs: int  # of equal labels along the line that the samples were laid on
    seed: int
    attempts: int  # searches that were begun
    seconds: float  # CPU time, certificate included

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Network:
    """A network of Linear and LayerNorm(3) layers that gives samples one of its classes: all that a file holds."""

    module: "nn.Sequential"  # takes raw samples, ends in one score for each class
    classes: NDArray[Any]  # labels, in the order of the scores
    eps: float
    exact: MergeNetwork | None  # the network itself, where its weights have more bits than the module holds

    @property
    def depth(self) -> int:
        """The number of LayerNorms."""
        return (len(self.module) - 1) // 2

    @property
    def width(self) -> int:
        """Channels of every LayerNorm."""
        return WIDTH

    @property
    def channels(self) -> int:
        """Of the samples."""
        return int(self.module[0].in_features)  # type: ignore[arg-type]

    @property
    def dtype(self) -> str:
        """Of the module."""
        return str(next(self.module.parameters()).dtype).removeprefix("torch.")

    def predict(self, samples: Any) -> NDArray[Any]:
        """The class of each sample: by the float module, or exactly where the module only rounds the network."""
        given = as_vectors(samples, "samples", self.channels)
        rows = given.reshape(-1, given.shape[-1])
        winners = float_labels(self.module, rows)[0] if self.exact is None else self.exact_labels(rows).winners
        if (winners < 0).any():
            raise InputError(f"no score is highest for {np.count_nonzero(winners < 0)} of {len(rows)} samples")
        found: NDArray[Any] = self.classes[winners].reshape(given.shape[:-1])
        return found

    def exact_labels(self, samples: Floats) -> Exact:
        """The places of classes that the network gives samples (m, d) in real arithmetic."""
        return exact_labels(self.module, samples) if self.exact is None else self.exact.exact_labels(samples)

    @property
    def is_rounded_right(self) -> bool:
        """Whether the module holds the exact weights rounded, to the last bit; true where there are none."""
        if self.exact is None:
            return True
        own = self.exact.rounded(next(self.module.parameters()).dtype).state_dict()
        stored = self.module.state_dict()
        return own.keys() == stored.keys() and all(own[name].equal(stored[name]) for name in own)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the module as safetensors, with classes, eps and exact weights in the metadata."""
        place = Path(path)
        require_writable(place, force=force, endings=ENDINGS)
        write_whole(self.to_bytes(), place)

    def to_bytes(self) -> bytes:
        """The file that `save` writes."""
        from safetensors.torch import save

        metadata = {
            "format": FORMAT,
            "classes": json.dumps(self.classes.tolist()),
            "classes_dtype": self.classes.dtype.str,
            "eps": repr(self.eps),
        }
        if self.exact is not None:
            metadata["exact"] = json.dumps(self.exact.to_dict())
        tensors = {name: tensor.contiguous() for name, tensor in self.module.state_dict().items()}
        return save(tensors, metadata=metadata)

    def __repr__(self) -> str:
        return f"Network(depth {self.depth}, width {self.width}, {len(self.classes)} classes)"


@dataclass(frozen=True, repr=False)
class LNNet(Network):
    """A network that has memorised samples, how it came about, and the proof that it has; see `memorize`."""

    certificate: Certificate
    origin: Origin
    journey: tuple[Floats, ...] = field(default=(), compare=False)  # places of the samples on a line, after each layer

    @property
    def bound(self) -> int:
        """Layers that projection merge needs at most: samples − classes, m − 2 for two classes."""
        return self.origin.samples - len(self.classes)

    @property
    def least(self) -> int | None:
        """For two classes: no network that reads the samples from this line has fewer layers.

        A line of r runs takes r ≤ 2^L + 1, as every layer can at most lay the line onto itself once: L ≥ log₂(r − 1).
        """
        return math.ceil(math.log2(self.origin.runs - 1)) if len(self.classes) == 2 else None

    def to_dict(self) -> dict[str, Any]:
        """What `normscope memorize --json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "depth": self.depth,
            "width": self.width,
            "paper_bound": self.bound,
            "least_depth": self.least,
            "classes": self.classes.tolist(),
            "dtype": self.dtype,
            "eps": self.eps,
            "origin": self.origin.to_dict(),
            "certificate": self.certificate.to_dict(),
        }

    def __repr__(self) -> str:
        proof = self.certificate
        return (
            f"LNNet(depth {self.depth}, width {self.width}, {len(self.classes)} classes, by {self.origin.method}: "
            f"{proof.exact} of {proof.samples} samples certified, {proof.float_right} right in floats)"
        )


def load_network(path: str | os.PathLike[str]) -> Network:
    """A network that `save` wrote: the network alone, because what it does to samples is shown with the samples."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} must be a safetensors file, got one that can't be read: {first_line(error)}"
        ) from None
    if metadata.get("format") != FORMAT:
        raise InputError(
            f"{path} must hold a network that `normscope memorize` wrote, and its metadata do not say {FORMAT!r}"
        )
    try:
        return _network(metadata, tensors)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {first_line(error)}") from None


def _network(metadata: dict[str, str], tensors: "dict[str, torch.Tensor]") -> Network:
    """From what a file holds, once all of it is known to be what it should be."""
    others = metadata.keys() - {"format", "classes", "classes_dtype", "eps", "exact"}
    if others:
        raise InputError(f"its metadata must hold nothing that proves nothing, got {quoted(min(others))}")
    eps = float(metadata["eps"])
    require_eps(eps)
    exact = MergeNetwork.from_dict(json.loads(metadata["exact"]), eps) if "exact" in metadata else None
    classes = _classes(json.loads(metadata["classes"]), np.dtype(metadata["classes_dtype"]))
    module = module_of(tensors, eps)
    if module[-1].out_features != len(classes):
        raise InputError(f"there must be a score for each of {len(classes)} classes, got {module[-1].out_features}")
    return Network(module, classes, eps, exact)


def _classes(stored: list[Any], dtype: "np.dtype[Any]") -> NDArray[Any]:
    """Labels as they were given, of the same dtype and to the last digit."""
    if dtype.kind not in "biuUf":
        raise InputError(f"classes must be numbers or text, got dtype {dtype}")
    classes = np.array(stored, dtype)
    if classes.tolist() != stored or not np.array_equal(np.unique(classes), classes) or len(classes) < 2:
        raise InputError(f"classes must be two or more values of dtype {dtype}, ascending")
    return classes


def module_of(tensors: "dict[str, torch.Tensor]", eps: float) -> "nn.Sequential":
    """nn.Sequential(Linear, LayerNorm(3), …, LayerNorm(3), Linear) with the given weights; one Linear may be all."""
    import torch
    from torch import nn

    count = len(tensors) // 2
    names = [(f"{place}.weight", f"{place}.bias") for place in range(0, 2 * count, 2)]
    kinds = {tensor.dtype for tensor in tensors.values()}
    if tensors.keys() != {name for pair in names for name in pair} or not count:
        raise InputError("its tensors must be the weights and biases of layers 0, 2, 4, …")
    if kinds not in ({torch.float64}, {torch.float32}) or not all(part.isfinite().all() for part in tensors.values()):
        raise InputError("its tensors must be finite, and all float64 or all float32")
    layers: list[nn.Module] = []
    for place, (weight, bias) in enumerate((tensors[a], tensors[b]) for a, b in names):
        reads, writes = place > 0, place < count - 1
        fits = weight.ndim == 2 and bias.shape == weight.shape[:1] and weight.numel()
        if not fits or (reads and weight.shape[1] != WIDTH) or (writes and weight.shape[0] != WIDTH):
            raise InputError(f"its layers must be of width {WIDTH}, got weights of shape {tuple(weight.shape)}")
        layers += [layer_norm(eps)] if reads else []
        layers.append(linear_of(weight, bias))
    return nn.Sequential(*layers)
