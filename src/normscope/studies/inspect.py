"""What every norm of a model really is: its kind, the set that its outputs fill, and where real inputs land in it."""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from normscope.checks import Floats
from normscope.data import demo_model
from normscope.errors import InputError
from normscope.models.batches import Inputs, batches_for
from normscope.models.capture import ROUNDING, ROWS, Activations, capture
from normscope.models.connections import Connections, connections_of
from normscope.models.find import find
from normscope.models.load import load_model, run_in_pieces, text_batches
from normscope.norm import Norm
from normscope.results.inventory import FoundNorm, Inventory
from normscope.studies.affine_fit import room_for_full_fits
from normscope.studies.inspection import Channel, Inspection, NormGeometry, Profile
from normscope.studies.landing import LandingGatherer

NEAR_ZERO = 1e-3  # of the median |gain|
DEAD = float(np.finfo(np.float32).eps)  # of the largest |gain|: zero within the rounding of float32
FOREMOST = 5  # channels named of a direction
OUTLINE = 256  # gains and lengths kept for pictures

Progress = Callable[[Iterable[Any], str], Iterable[Any]]  # wraps what is gone through, with a word on what it is


def inspect(
    model: nn.Module | str | Path | None = None,
    *,
    text: str | None = None,
    lines: bool = False,
    inputs: Inputs | None = None,
    batches: Iterable[Mapping[str, Tensor]] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = lambda things, _: things,
) -> Inspection:
    """The geometry of every norm of a model: a live module, a checkpoint, or the model that ships with the package.

    With a text (for a folder with a tokenizer), with inputs (one batch of keyword arguments, or several) or with
    batches (several, for a live module) the model is run, and each norm says where its inputs land. With `lines` each
    line of the text is a sequence of its own. The graph, too, is of a call with the first of the inputs.

    >>> inspect(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))).norms[0].dimension
    2
    """
    place = demo_model() if model is None else model
    landed: dict[str, LandingGatherer] = {}
    if inputs is not None:
        if text is not None or batches is not None:
            raise InputError("inputs can't be given together with a text or batches: the model runs on one of them")
        live = place if isinstance(place, nn.Module) else load_model(Path(place), device=device, dtype=dtype)
        given = batches_for(live, inputs)
        first = next(given)
        inventory = find(place, inputs=first)
        landed = _land(live, chain([first], given), inventory, progress)
    else:
        inventory, batches = _found(place, batches)
    if text is not None:
        if isinstance(place, nn.Module):
            raise InputError("text needs a folder with a tokenizer; for a live module give batches of inputs instead")
        path = Path(place)
        batches = text_batches(path, text.splitlines() if lines else text)
        landed = _land(load_model(path, device=device, dtype=dtype), batches, inventory, progress)
    elif batches is not None:
        if not isinstance(place, nn.Module):
            raise InputError("batches need a live module; for a folder give a text instead")
        landed = _land(place, batches, inventory, progress)
    connections = connections_of(inventory)
    norms = [
        _geometry(found, connections, landed.get(found.name))
        for found in progress(list(inventory.values()), "geometry")
    ]
    return Inspection(
        model="the bundled model" if model is None else inventory.model,
        placement=connections.placement,
        tied_embeddings=inventory.tied_embeddings,
        qk_norm=connections.qk_norm,
        parameters=inventory.parameters,
        norm_parameters=inventory.norm_parameters,
        norms=tuple(norms),
        untraced=inventory.untraced,
        text=None if text is None else f"{len(text)} characters",
        notes=inventory.notes,
    )


def _found(
    place: nn.Module | str | Path, batches: Iterable[Mapping[str, Tensor]] | None
) -> tuple[Inventory, Iterable[Mapping[str, Tensor]] | None]:
    """The norms of a model; one for which no inputs can be generated is traced on its first batch."""
    inventory = find(place)
    if inventory.graph is None and isinstance(place, nn.Module) and batches is not None:
        here = iter(batches)
        first = list(islice(here, 1))
        return (find(place, inputs=first[0]) if first else inventory), chain(first, here)
    return inventory, batches


def _land(
    model: nn.Module, batches: Iterable[Mapping[str, Tensor]], inventory: Inventory, progress: Progress
) -> dict[str, LandingGatherer]:
    """Run the model and gather the inputs of its norms, piece by piece."""
    norms = {name: live_part(found.norm) for name, found in inventory.items() if found.norm is not None}
    with capture(model, norms=inventory) as captured:
        norms = {name: norm for name, norm in norms.items() if inventory[name].path in captured.norms}
        full_fit = room_for_full_fits([norm.size for norm in norms.values()])
        gatherers = {
            name: LandingGatherer(norm, inventory[name].eps_place, full_fit=full_fit) for name, norm in norms.items()
        }
        for _ in run_in_pieces(model, progress(batches, "running the text")):
            for name in list(gatherers):
                found = inventory[name]
                seen = captured.norms[str(found.path)]
                if found.path in captured.skipped or not _agrees(found, seen):
                    del gatherers[name]  # what it reads is not what it normalizes
                elif seen.input is not None:
                    try:
                        gatherers[name].add(as_rows(seen.input, found))
                    except ValueError as error:  # not finite, as where half precision overflows
                        raise InputError(f"the input of {name}: {error}") from None
            captured.clear()
    return gatherers


def _agrees(found: FoundNorm, seen: Activations) -> bool:
    """Whether a call whose place was not checked gave what the norm gives, on some of its rows."""
    if found.unchecked is None or found.norm is None or seen.input is None or seen.output is None:
        return True
    given, made = (as_rows(values, found)[:ROWS] for values in (seen.input, seen.output))
    expected = found.norm(given)
    return bool(np.abs(made - expected).max() <= ROUNDING * np.abs(expected).max())


def as_rows(given: Tensor, found: FoundNorm) -> Floats:
    """Inputs of a norm as rows of channels."""
    channels_last = given.movedim(found.axis, -1) if found.axis != -1 else given
    if found.size not in np.cumprod(channels_last.shape[::-1]):  # one axis, or several that are normalized together
        raise InputError(f"{found.size} channels are expected, got an input of shape {tuple(given.shape)}")
    rows: Floats = channels_last.reshape(-1, found.size).cpu().double().numpy()
    return rows


def _geometry(found: FoundNorm, connections: Connections, landed: LandingGatherer | None) -> NormGeometry:
    norm = found.norm
    facts: dict[str, Any] = dict.fromkeys(NormGeometry.__dataclass_fields__)
    facts.update(
        name=found.name,
        kind=found.kind,
        size=found.size or None,
        gain_convention=found.gain_convention,
        eps_place=found.eps_place,
        axis=found.axis,
        has_bias=found.has_bias,
        assumed=found.assumed,
        problem=found.problem,
        gate=None if found.gate is None else str(found.gate),
        function=found.function,
        unchecked=found.unchecked,
        stored_as=found.stored_as,
        reads=connections.reads.get(found.name),
        read_by=connections.read_by.get(found.name),
    )
    if norm is not None:
        live = live_part(norm)
        facts.update(_facts(norm, live))
        facts.update(_facts_of_axes(live))
        facts.update(_raw_facts(norm))
        facts["landing"] = landed.result() if landed else None
        facts["profile"] = _profile(live, landed)
    return NormGeometry(**facts)


def live_part(norm: Norm) -> Norm:
    """The norm with its dead gains, those within rounding of zero beside the largest, set to zero.

    >>> live_part(Norm(gain=[1.0, -2.0, 1e-31])).gain
    array([ 1., -2.,  0.])
    """
    magnitude = np.abs(norm.gain)
    dead = magnitude <= DEAD * magnitude.max()
    if not (dead & (magnitude > 0)).any():
        return norm
    return Norm(
        gain=np.where(dead, 0.0, norm.gain),
        bias=norm.bias,
        eps=norm.eps,
        project=norm.projects,
        scale=norm.scales,
        groups=norm.groups,
    )


def _raw_facts(norm: Norm) -> dict[str, Any]:
    """Of the gains as they are, dead ones among them."""
    ellipsoid = norm.ellipsoid
    facts: dict[str, Any] = {"raw_dimension": ellipsoid.dimension}
    if ellipsoid.bounded and ellipsoid.dimension:
        longest, shortest = float(ellipsoid.lengths[0]), float(ellipsoid.lengths[-1])
        facts.update(raw_axis_min=shortest, raw_anisotropy=_ratio(longest, shortest))
    return facts


def _facts(norm: Norm, live: Norm) -> dict[str, Any]:
    gain, dead = norm.gain, live.ellipsoid.dead_direction
    small = np.abs(gain) < NEAR_ZERO * np.median(np.abs(gain))
    return {
        "groups": norm.groups,
        "eps": norm.eps,
        "dimension": live.ellipsoid.dimension,
        "dead_gains": tuple(np.flatnonzero(live.gain == 0).tolist()),
        "zero_gains": int(np.count_nonzero(gain == 0)),
        "near_zero_gains": int(np.count_nonzero(small & (live.gain != 0))),
        "negative_gains": int(np.count_nonzero(gain < 0)),
        "dead_channels": None if dead is None else _foremost(dead),
    }


def _facts_of_axes(norm: Norm) -> dict[str, Any]:
    """What only a bounded set of at least one dimension has; the range of every channel too, which is where w = ±eₙ."""
    ellipsoid = norm.ellipsoid
    if not ellipsoid.bounded or not ellipsoid.dimension:
        return {}
    lengths, reach = ellipsoid.lengths, np.abs(norm.gain) * _reach_of_unit_gain(norm)
    low, high = norm.bias - reach, norm.bias + reach
    relative = (lengths / lengths[0]) ** 2
    return {
        "axis_max": float(lengths[0]),
        "axis_median": float(np.median(lengths)),
        "axis_min": float(lengths[-1]),
        "anisotropy": _ratio(lengths[0], lengths[-1]),
        "participation_ratio": float(relative.sum() ** 2 / np.sum(relative**2)),
        "longest_axis_channels": _foremost(ellipsoid.axis(0)),
        "range_low": float(low.min()),
        "range_high": float(high.max()),
        "range_low_channel": int(low.argmin()),
        "range_high_channel": int(high.argmax()),
        "channel_ranges": np.stack([low, high], axis=1),
    }


def _ratio(longest: float, shortest: float) -> float | None:
    """None where it is beyond all floats."""
    with np.errstate(over="ignore"):
        ratio = float(np.float64(longest) / np.float64(shortest))
    return ratio if np.isfinite(ratio) else None


def _reach_of_unit_gain(norm: Norm) -> float:
    """|yₙ − bₙ| ≤ |gₙ|·√(c − 1) where the norm projects, |gₙ|·√c where it does not."""
    channels = norm.size // norm.groups
    return float(np.sqrt(channels - norm.projects))


def _foremost(vector: Floats) -> tuple[Channel, ...]:
    order = np.argsort(-np.abs(vector), kind="stable")[:FOREMOST]
    return tuple(Channel(int(n), float(vector[n])) for n in order if vector[n] != 0)


def _profile(norm: Norm, landed: LandingGatherer | None) -> Profile:
    lengths = norm.ellipsoid.lengths if norm.ellipsoid.bounded else np.zeros(0)
    return Profile(
        gains=_outline(np.sort(norm.gain)),
        lengths=_outline(lengths),
        longest=lengths[:3],
        points=landed.points() if landed and norm.ellipsoid.bounded else None,
    )


def _outline(ordered: Floats) -> Floats:
    """At most OUTLINE values, evenly spaced in rank, ends included."""
    if len(ordered) <= OUTLINE:
        return ordered
    ranks = np.linspace(0, len(ordered) - 1, OUTLINE).round().astype(np.intp)
    return np.take(ordered, ranks)
