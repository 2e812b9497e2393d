"""What every norm of a model is: its kind, the set that its outputs fill, and where real inputs land in it."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from normscope.checks import Floats
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.capture import ROUNDING, ROWS, Activations, capture
from normscope.models.connections import Connections, connections_of
from normscope.models.load import run_in_pieces
from normscope.models.subject import Model, Subject, Text
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.inspection import Axes, Channel, Gains, Inspection, Landing, NormGeometry, TokenAt
from normscope.results.inventory import FoundNorm, Inventory
from normscope.results.result import load_bytes
from normscope.studies.affine_fit import room_for_full_fits
from normscope.studies.landing import LandingGatherer
from normscope.studies.ranks import ALONE, DOES_NOT_FIT, NOT_CALLED, Ranks
from normscope.studies.run_state import RunState, put_back
from normscope.studies.token_places import TokenPlaces

NEAR_ZERO = 1e-3  # of the median |gain|
DEAD = float(np.finfo(np.float32).eps)  # of the largest |gain|: zero within the rounding of float32
FOREMOST = 5  # channels listed per direction


def inspect(
    model: Model,
    *,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    parts: str | PathLike[str] | None = None,
    progress: Progress = silent,
) -> Inspection:
    """The geometry of every norm of a model; with a text or inputs, also where its real inputs land.

    Parameters
    ----------
    model
        A folder in Hugging Face format, a .safetensors, .gguf, .pt, .pth or .bin file, or a torch module.
    text, inputs
        Text or inputs to run the model (a folder or a module) on. Without them only the weights of norms are read.
        Which module reads which is traced on the first batch of inputs; models of transformers need none for that.
    device, dtype
        Device and floating-point type to run a folder in.
    parts
        A file for what was gathered so far on a long text, saved every minute: the same call resumes a run that was
        interrupted, with the same result. Remove it when the result is saved. MODEL must be a path.
    progress
        Called with batches or norms and a description; see `normscope.progress`.

    Returns
    -------
    Inspection
        A row for each norm, in the order of the model.

    >>> from torch import nn
    >>> inspect(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))).norms[0].dimension
    2
    """
    subject = Subject.of(model, text=text, inputs=inputs, device=device, dtype=dtype)
    return inspected(subject, progress, parts=None if parts is None else Path(parts))


def inspected(
    subject: Subject, progress: Progress = silent, ranks: Ranks = ALONE, parts: Path | None = None
) -> Inspection:
    """The same of a subject; with several ranks, each runs its share of the batches, and the first has the result.

    Others have only where the inputs of their own share of norms land.
    """
    inventory = subject.inventory
    state = None if parts is None or not subject.runs else RunState(parts, subject.about)
    landed = _landings(subject, inventory, progress, ranks, state) if subject.runs else {}
    connections = connections_of(inventory)
    mine = Inspection(
        model=subject.name,
        placement=connections.placement,
        tied_embeddings=inventory.tied_embeddings,
        qk_norm=connections.qk_norm,
        parameters=inventory.parameters,
        norm_parameters=inventory.norm_parameters,
        norms=tuple(
            _geometry(found, connections, landed.get(found.name))
            for found in progress(inventory.norms, "geometry of norms")
        ),
        untraced=inventory.untraced,
        text=subject.text,
        notes=inventory.notes,
    )
    return mine if ranks.count == 1 else _merged(mine, ranks)


def _merged(mine: Inspection, ranks: Ranks) -> Inspection:
    """What all ranks have found, on the first; on others what they have found themselves."""
    contents = ranks.gathered(mine.to_bytes())
    if not contents:
        return mine
    all_of_them = [load_bytes(content, f"the result of rank {rank}") for rank, content in enumerate(contents)]
    owners = [each for each in all_of_them if isinstance(each, Inspection)]
    landings = {norm.found.name: norm.landing for each in owners for norm in each.norms if norm.landing is not None}
    return replace(mine, norms=tuple(replace(norm, landing=landings.get(norm.found.name)) for norm in mine.norms))


def _landings(
    subject: Subject, inventory: Inventory, progress: Progress, ranks: Ranks, state: RunState | None
) -> Mapping[str, Landing | None]:
    """Run the model and gather the inputs of its norms, piece by piece: of those that this rank looks after."""
    model, batches = subject.module, subject.batches()
    with capture(model, norms=inventory) as captured:
        norms = {
            found.name: live_part(found.norm)
            for found in inventory.norms
            if found.norm is not None and found.path in captured.norms
        }
        full_fit = room_for_full_fits([norm.size for norm in norms.values()])
        gatherers = {
            name: LandingGatherer(norm, inventory[name].eps_place, full_fit=full_fit)
            for number, (name, norm) in enumerate(norms.items())
            if ranks.looks_after(number)
        }
        tokens, done = TokenPlaces(), 0
        resumed = _resumed(state, gatherers, tokens)
        for batches_of_round in ranks.rounds(progress(batches, "running the model")):
            if done < resumed:
                done += len(batches_of_round)
                continue
            for _ in run_in_pieces(model, batches_of_round[ranks.rank : ranks.rank + 1]):
                pass
            for source, batch in enumerate(batches_of_round):
                for number, name in enumerate(norms):
                    here = _inputs_of(inventory[name], captured) if source == ranks.rank else None
                    rows = ranks.hand_over(here, source, number, inventory[name].size)
                    if isinstance(rows, int):
                        if rows == DOES_NOT_FIT:
                            gatherers.pop(name, None)  # it does not normalize its input
                    elif rows is not None and name in gatherers:
                        before = gatherers[name].inputs
                        _add(gatherers[name], rows, name)
                        tokens.note(name, batch, len(rows), gatherers[name].largest_number - before)
                tokens.end(batch)
            done += len(batches_of_round)
            captured.clear()
            if state is not None:
                state.save_if_due(done, _state(gatherers, tokens))
    at = tokens.named(subject.path)
    return {name: _with_token(gatherer.result(), at.get(name)) for name, gatherer in gatherers.items()}


def _resumed(state: RunState | None, gatherers: dict[str, LandingGatherer], tokens: TokenPlaces) -> int:
    """Put back what an interrupted run had gathered; returns how many batches that run had done."""
    kept = None if state is None else state.load()
    if kept is None:
        return 0
    done, things = kept
    for name in [name for name in gatherers if name not in things["gatherers"]]:
        del gatherers[name]  # it does not normalize its input
    put_back(_state(gatherers, tokens), things)
    return done


def _state(gatherers: dict[str, LandingGatherer], tokens: TokenPlaces) -> dict[str, Any]:
    return {"gatherers": gatherers, "tokens": tokens}


def _inputs_of(found: FoundNorm, captured: capture) -> Floats | int:
    """The inputs of a norm in the batch that ran here, or why there are none."""
    seen = captured.norms[str(found.path)]
    if found.path in captured.skipped or not _agrees(found, seen):
        return DOES_NOT_FIT
    if seen.input is None:
        return NOT_CALLED
    try:
        return as_rows(seen.input, found)
    except ValueError as error:
        raise InputError(f"the input of {found.name}: {error}") from None


def _add(gatherer: LandingGatherer, rows: Floats, name: str) -> None:
    try:
        gatherer.add(rows)
    except ValueError as error:  # not finite, for example on overflow in half precision
        raise InputError(f"the input of {name}: {error}") from None


def _with_token(landing: Landing | None, token: TokenAt | None) -> Landing | None:
    if landing is None or landing.largest is None or token is None:
        return landing
    return replace(landing, largest=replace(landing.largest, token=token))


def _agrees(found: FoundNorm, seen: Activations) -> bool:
    """Whether the output of a call that was not checked in the graph agrees with the norm, on some of its rows."""
    if found.unchecked is None or found.norm is None or seen.input is None or seen.output is None:
        return True
    x, output = (as_rows(values, found)[:ROWS] for values in (seen.input, seen.output))
    expected = found.norm(x)
    return bool(np.abs(output - expected).max() <= ROUNDING * np.abs(expected).max())


def as_rows(x: Tensor, found: FoundNorm) -> Floats:
    """Inputs or outputs of a norm as rows of channels."""
    channels_last = x.movedim(found.axis, -1) if found.axis != -1 else x
    if found.size not in np.cumprod(channels_last.shape[::-1]):  # one axis, or several that are normalized together
        raise InputError(f"expected {found.size} channels, got an input of shape {tuple(x.shape)}")
    rows: Floats = channels_last.reshape(-1, found.size).cpu().double().numpy()
    return rows


def _geometry(found: FoundNorm, connections: Connections, landing: Landing | None) -> NormGeometry:
    reads, read_by = connections.reads.get(found.name), connections.read_by.get(found.name)
    if found.norm is None:
        return NormGeometry(found, reads=reads, read_by=read_by)
    live = live_part(found.norm)
    return NormGeometry(
        found,
        dimension=live.ellipsoid.dimension,
        raw_dimension=found.norm.ellipsoid.dimension,
        gains=_gains(found.norm, live),
        axes=_axes(found.norm, live) if live.ellipsoid.bounded and live.ellipsoid.dimension else None,
        landing=landing,
        reads=reads,
        read_by=read_by,
    )


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


def _gains(norm: Norm, live: Norm) -> Gains:
    small = np.abs(norm.gain) < NEAR_ZERO * np.median(np.abs(norm.gain))
    direction = live.ellipsoid.dead_direction
    return Gains(
        dead=tuple(np.flatnonzero(live.gain == 0).tolist()),
        exactly_zero=int(np.count_nonzero(norm.gain == 0)),
        near_zero=int(np.count_nonzero(small & (live.gain != 0))),
        negative=int(np.count_nonzero(norm.gain < 0)),
        dead_direction=None if direction is None else _foremost(direction),
    )


def _axes(norm: Norm, live: Norm) -> Axes:
    """Of a bounded set of at least one dimension; the range of every channel too, which is where w = ±eₙ."""
    lengths, raw = live.ellipsoid.lengths, norm.ellipsoid.lengths
    reach = np.abs(live.gain) * _reach_of_unit_gain(live)
    low, high = live.bias - reach, live.bias + reach
    relative = (lengths / lengths[0]) ** 2
    return Axes(
        longest=float(lengths[0]),
        median=float(np.median(lengths)),
        shortest=float(lengths[-1]),
        anisotropy=_ratio(lengths[0], lengths[-1]),
        effective=float(relative.sum() ** 2 / np.sum(relative**2)),
        longest_channels=_foremost(live.ellipsoid.axis(0)),
        low=float(low.min()),
        high=float(high.max()),
        low_channel=int(low.argmin()),
        high_channel=int(high.argmax()),
        raw_shortest=float(raw[-1]),
        raw_anisotropy=_ratio(raw[0], raw[-1]),
        lengths=lengths,
        channel_ranges=np.stack([low, high], axis=1),
    )


def _ratio(longest: float, shortest: float) -> float | None:
    """The ratio; None on overflow."""
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
