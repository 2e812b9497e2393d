"""A network for each labelling of some points, as they are found; and the file that keeps them.

Labelling k gives point i bit i of k as its label. The 2^(M − 1) that give the last point 0 are kept: the others are
theirs with the labels exchanged, which exchanges the two rows of a network's readout.

The file is an .npz file of plain arrays: the points, and the numbers of a network for each labelling, zeros where there
is none. Every network is certified again when it is read. While some are missing, the file also holds how far the
search for them has come, so that it can go on to the same networks; of that nothing is proven, and nothing is said.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.equal_creases import LAYER, READOUT, maps_of, other_labels
from normscope.capacity.scaling_layer import layer_norm_network, linear_of
from normscope.certificates.check_networks import Exact, exact_labels
from normscope.checks import Floats, first_line, quoted
from normscope.errors import InputError
from normscope.files import npz_arrays, require_writable, write_whole

if TYPE_CHECKING:
    from torch import nn

FORMAT = "normscope shatter 2"
ENDINGS = (".npz",)
MOST = 20  # points


@dataclass(eq=False)
class Networks:
    """What has been found for each labelling, and how often it was looked for."""

    depth: int
    seed: int
    points: Floats  # (M,), ascending
    labels: NDArray[np.int8]  # (2^(M − 1), M)
    numbers: Floats  # (2^(M − 1), 6·depth + 3), as in `equal_creases`
    certified: NDArray[np.bool_]
    margins: Floats  # of the certificates: no right score leads by less
    bits: NDArray[np.int64]  # that their arithmetic took
    tried: NDArray[np.int64]  # times

    @classmethod
    def none_yet(cls, depth: int, seed: int, points: Floats) -> "Networks":
        count = 2 ** (len(points) - 1)
        return cls(
            depth,
            seed,
            points,
            labels=all_labels(len(points)),
            numbers=np.zeros((count, LAYER * depth + READOUT)),
            certified=np.zeros(count, bool),
            margins=np.zeros(count),
            bits=np.zeros(count, np.int64),
            tried=np.zeros(count, np.int64),
        )

    def add(self, labelling: int, numbers: Floats) -> bool:
        """Take in a network for a labelling if it can be certified; whether it was."""
        found = shown(numbers, self.points, self.labels[labelling])
        if found is None:
            return False
        self.numbers[labelling], self.margins[labelling], self.bits[labelling] = numbers, found.margin, found.precision
        self.certified[labelling] = True
        return True

    def near(self, labelling: int) -> list[Floats]:
        """Numbers of the networks there are for labellings that differ in one point."""
        last = len(self.points) - 1
        nearest = [labelling ^ 1 << point for point in range(last)]
        found = [self.numbers[other] for other in nearest if self.certified[other]]
        opposite = labelling ^ (1 << last) - 1  # differs in all points but the last
        return [*found, other_labels(self.numbers[opposite])] if self.certified[opposite] else found

    def save(self, path: Path) -> None:
        """Write all of it to a file that takes its place when it is whole."""
        arrays: dict[str, NDArray[Any]] = {
            "format": np.array(FORMAT),
            "depth": np.array(self.depth),
            "points": self.points,
            "numbers": np.where(self.certified[:, None], self.numbers, 0.0),
        }
        if not self.certified.all():
            arrays |= {"seed": np.array(self.seed), "tried": self.tried}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **arrays)
        write_whole(file.getvalue(), path)


def shown(numbers: Floats, points: Floats, labels: NDArray[np.int8]) -> Exact | None:
    """What exact arithmetic says of a network that gives the points these labels; None if it does not.

    The float module has to be right as well, in batch and one by one, and so has the one with its labels exchanged.
    """
    samples, network = points[:, None].copy(), network_of(numbers)  # torch shares no array that can't be written
    exact = exact_labels(network, samples)
    right = (exact.winners == labels).all() and float_right(network, samples, labels)
    return exact if right else None


def float_right(network: "nn.Sequential", samples: Floats, labels: NDArray[np.int8]) -> bool:
    """Whether the module gives the labels, and with its labels exchanged the others: in batch and one by one.

    Both have the same layers but the last, which are run once.
    """
    import torch

    body, readouts = network[:-1], (network[-1], exchanged(network)[-1])
    with torch.inference_mode():
        states = [body(torch.from_numpy(rows)) for rows in (samples, *np.split(samples, len(samples)))]
        for readout, wanted in zip(readouts, (labels, 1 - labels), strict=True):
            batch, *single = [readout(state).argmax(dim=1) for state in states]
            if not all((found.numpy() == wanted).all() for found in (batch, torch.cat(single))):
                return False
    return True


def network_of(numbers: Floats) -> "nn.Sequential":
    """Linear, LayerNorm(3), …, Linear in float64: label 1 where the second score is the higher one."""
    return layer_norm_network(maps_of(numbers))


def exchanged(network: "nn.Sequential") -> "nn.Sequential":
    """The network with the same layers and the two rows of its readout exchanged."""
    from torch import nn

    readout = network[-1]
    other = linear_of(*(readout.get_parameter(name).flip(0) for name in ("weight", "bias")))
    return nn.Sequential(*list(network)[:-1], other)


def all_labels(points: int) -> NDArray[np.int8]:
    """Every labelling that gives the last point 0.

    >>> all_labels(3).tolist()
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]]
    """
    return (np.arange(2 ** (points - 1))[:, None] >> np.arange(points) & 1).astype(np.int8)


def require_networks(path: Path) -> None:
    """Refuse a path at which networks could not be kept, before any work is done."""
    require_writable(path, force=True, endings=ENDINGS)


def load_networks(path: Path, depth: int, seed: int, points: Floats) -> Networks:
    """What a file holds for this depth and these points, and for this seed unless all networks are found."""
    networks = read_networks(path)
    finished = networks.certified.all()
    same = networks.depth == depth and np.array_equal(networks.points, points)
    if not same or (not finished and networks.seed != seed):
        found_by = "" if finished else f" and seed {networks.seed}"
        raise InputError(
            f"{path} must be about {len(points)} points, depth {depth} and seed {seed} to be gone on with, got "
            f"{networks.points.size} points, depth {networks.depth}{found_by}: choose another name"
        )
    networks.seed = seed
    return networks


def read_networks(path: Path) -> Networks:
    """What a file holds for the depth and the points that it names; called certified, which is to be checked."""
    arrays = _read(path)
    depth, points, numbers = (arrays[name] for name in ("depth", "points", "numbers"))
    whole = all(each.ndim == 0 and each.dtype.kind == "i" and each >= 0 for each in (depth, arrays["seed"]))
    ascending = points.ndim == 1 and points.dtype == np.float64 and 2 <= len(points) <= MOST
    ascending = ascending and bool(np.isfinite(points).all() and (np.diff(points) > 0).all())
    if not whole or not ascending or numbers.shape != (2 ** (len(points) - 1), LAYER * int(depth) + READOUT):
        raise InputError(f"{path} is damaged: there must be a depth, and a network for every labelling of the points")
    networks = Networks.none_yet(int(depth), int(arrays["seed"]), points)
    for name in ("numbers", "tried"):
        stored, own = arrays[name], getattr(networks, name)
        if stored.shape != own.shape or stored.dtype != own.dtype or not np.isfinite(stored).all():
            raise InputError(f"{path} is damaged: {name} must be finite {own.dtype}, got {stored.dtype}")
        setattr(networks, name, stored)
    networks.certified[:] = numbers.any(axis=1)
    if networks.certified.all() == arrays["unfinished"]:
        raise InputError(f"{path} is damaged: it must hold seed and tried while networks are missing, and only then")
    return networks


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        stored = npz_arrays(path.read_bytes(), str(path))
        said = str(stored["format"])
        if said != FORMAT:
            raise InputError(f"it must say {FORMAT!r}, got {quoted(said)}")
        arrays = {name: stored.pop(name) for name in ("format", "depth", "points", "numbers")}
        arrays["unfinished"] = np.array(bool(stored))
        count = len(arrays["numbers"]) if arrays["numbers"].ndim else 0
        arrays["seed"] = stored.pop("seed") if stored else np.array(0)
        arrays["tried"] = stored.pop("tried") if stored else np.zeros(count, np.int64)
        if stored:
            raise InputError(f"it must hold nothing that proves nothing, got an array {quoted(min(stored))}")
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} exists, and is no state of normscope shatter: {first_line(error)}") from None
    return arrays
