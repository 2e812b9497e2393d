"""`LNNet`: a network of LayerNorms of width 3 that has memorised samples, with the proof that it has."""

import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.certify import Certificate, float_labels
from normscope.capacity.merge import MergeNetwork
from normscope.capacity.scaling_layer import WIDTH, layer_norm, linear_of, require_eps
from normscope.checks import Floats, as_vectors, first_line, quoted
from normscope.files import require_writable, write_whole

if TYPE_CHECKING:
    from torch import nn

SCHEMA_VERSION = 1
FORMAT = "normscope LN-Net 1"
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
class LNNet:
    """A network of Linear and LayerNorm(3) layers that gives samples their classes; see `memorize`."""

    module: "nn.Sequential"  # takes raw samples, ends in one score for each class
    classes: NDArray[Any]  # labels, in the order of the scores
    eps: float
    certificate: Certificate
    origin: Origin
    exact: MergeNetwork | None = None  # the network itself, where its weights have more bits than the module holds
    journey: tuple[Floats, ...] = field(default=(), compare=False)  # places of the samples on a line, after each layer

    @property
    def depth(self) -> int:
        """The number of LayerNorms."""
        return (len(self.module) - 1) // 2

    @property
    def width(self) -> int:
        """Channels of every LayerNorm."""
        return WIDTH

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

    def predict(self, samples: Any) -> NDArray[Any]:
        """The class of each sample: by the float module, or exactly where the module only rounds the network."""
        given = as_vectors(samples, "samples", self.module[0].in_features)  # type: ignore[arg-type]
        rows = given.reshape(-1, given.shape[-1])
        if self.exact is None:
            winners, _ = float_labels(self.module, rows)
        else:
            winners = self.exact.exact_labels(rows).winners
        if (winners < 0).any():
            raise ValueError(f"no score is highest for {np.count_nonzero(winners < 0)} of {len(rows)} samples")
        found: NDArray[Any] = self.classes[winners].reshape(given.shape[:-1])
        return found

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the module as safetensors, with classes, eps and certificate in the metadata."""
        place = Path(path)
        require_writable(place, force=force, endings=ENDINGS)
        write_whole(self.to_bytes(), place)

    def to_bytes(self) -> bytes:
        """The file that `save` writes."""
        from safetensors.torch import save

        metadata = {
            "format": FORMAT,
            "classes": json.dumps(self.classes.tolist()),
            "eps": repr(self.eps),
            "certificate": json.dumps(self.certificate.to_dict()),
            "origin": json.dumps(self.origin.to_dict()),
        }
        if self.exact is not None:
            metadata["exact"] = json.dumps(self.exact.to_dict())
        tensors = {name: tensor.contiguous() for name, tensor in self.module.state_dict().items()}
        return save(tensors, metadata=metadata)

    def to_dict(self) -> dict[str, Any]:
        """What `normscope memorize --json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "depth": self.depth,
            "width": self.width,
            "paper_bound": self.bound,
            "least_depth": self.least,
            "classes": self.classes.tolist(),
            "dtype": str(next(self.module.parameters()).dtype).removeprefix("torch."),
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


def load_network(path: str | os.PathLike[str]) -> LNNet:
    """A network that `LNNet.save` wrote. Its certificate is as it was stored: `certify` makes it anew."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} must be a safetensors file, got one that can't be read: {first_line(error)}"
        ) from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} must hold a network that `normscope memorize` wrote, and its metadata do not say so")
    try:
        return _stored_network(metadata, tensors)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: {quoted(error.args[0])} is missing") from None
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {first_line(error)}") from None


def _stored_network(metadata: dict[str, str], tensors: dict[str, Any]) -> LNNet:
    """A network from what its file holds, once all parts are what they should be and belong together."""
    eps = float(metadata["eps"])
    require_eps(eps)
    module, names = module_of(tensors, eps), json.loads(metadata["classes"])
    scores, channels = int(module[-1].out_features), int(module[0].in_features)  # type: ignore[arg-type]
    if not isinstance(names, list) or len(names) != scores or len({type(name) for name in names}) != 1:
        raise ValueError(f"there must be a class for each of {scores} scores, got {quoted(names)}")
    classes = np.array(names)
    if classes.ndim != 1 or classes.dtype.kind not in "biufU" or len(np.unique(classes)) != scores:
        raise ValueError(f"classes must be different numbers or texts, got {quoted(names)}")
    certificate = json.loads(metadata["certificate"])
    certificate.pop("holds")
    origin = _typed(Origin, json.loads(metadata["origin"]))
    exact = MergeNetwork.from_dict(json.loads(metadata["exact"])) if "exact" in metadata else None
    read = channels if exact is None else exact.line.weight.size
    if not origin.dimension == channels == read or (exact is not None and len(exact.maps[-1].shift) != scores):
        raise ValueError(f"its parts must belong together, and are for {origin.dimension}, {channels}, {read} channels")
    return LNNet(module, classes, eps, _typed(Certificate, certificate), origin, exact)


def _typed(kind: Any, values: Any) -> Any:
    """A dataclass of plain values from JSON, each of its type."""
    made = kind(**values)
    for part in fields(kind):
        value, wanted = getattr(made, part.name), part.type
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise TypeError(f"{part.name} must be of type {getattr(wanted, '__name__', wanted)}, got {quoted(value)}")
    return made


def module_of(tensors: dict[str, Any], eps: float) -> "nn.Sequential":
    """nn.Sequential(Linear, LayerNorm(3), …, LayerNorm(3), Linear) with the given weights."""
    from torch import nn

    layers: list[nn.Module] = []
    for place in sorted(int(name.removesuffix(".weight")) for name in tensors if name.endswith(".weight")):
        layers += [layer_norm(eps)] if layers else []
        layers.append(linear_of(*_weights(tensors, place, reads=bool(layers))))
    if not layers or any(layer.out_features != WIDTH for layer in layers[:-1:2]):
        raise ValueError(f"there must be layers of width {WIDTH}, got {len(layers)}")
    return nn.Sequential(*layers)


def _weights(tensors: dict[str, Any], place: int, *, reads: bool) -> tuple[Any, Any]:
    """Weight and bias of one layer, if they can be."""
    weight, bias = tensors[f"{place}.weight"], tensors[f"{place}.bias"]
    if weight.ndim != 2 or not weight.numel() or bias.shape != weight.shape[:1] or (reads and weight.shape[1] != WIDTH):
        raise ValueError(f"layer {place} can't have weights of shapes {tuple(weight.shape)} and {tuple(bias.shape)}")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if not (weight.isfinite().all() and bias.isfinite().all()) or dtypes not in ({"float64"}, {"float32"}):
        raise ValueError(f"weights must be finite, all float64 or all float32, got {', '.join(sorted(dtypes))}")
    return weight, bias
