"""From the nearest norm to queries and keys: affine maps, found without knowing the architecture.

    query = W y + c        y: one output of the norm that feeds it;  W, c: projections, rotary embedding, scales

The model runs on two neighbouring tokens, and the output of every norm is replaced by a copy at which gradients end. So
the gradient of a query reaches the nearest norms upstream and nothing else: it identifies the norm and which of its
output vectors is read, and equals W, because the map is affine. That it is affine, and of that vector alone, is then
tested: a second run on other tokens replaces all outputs of all norms by random values, and W y + c must give its
queries. Finally it must give those of the real run, at their positions. A failure is reported with its reason.

>>> class Block(nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
...     def forward(self, x):
...         return self.attention(*[self.norm(x)] * 3)
>>> run = TracedRun(Block().eval(), ["norm"], {"x": torch.randn(1, 2, 8)})
>>> found = run.map("attention", "key", head=0)
>>> found.norm, found.vector, found.matrix.shape
('norm', (0, 1), (4, 8))
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import Floats, as_floats, first_line
from normscope.errors import InputError
from normscope.models.attention_products import Product
from normscope.models.copies import silent_copy
from normscope.models.heads import AttentionWatch

Side = Literal["query", "key"]

SMALL = 2**25  # parameters up to which a model is copied to float64
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}  # relative to W y and c


class NoMapError(InputError):
    """Why there is no such map, in words that can follow "not available:"."""


@dataclass(frozen=True, eq=False)
class AffineMap:
    """y → W y + c, from an output vector of a norm to a query or a key as attention sees it."""

    norm: str
    vector: tuple[int, ...]  # which vector, by its place in the norm's output; the first entry is the sequence,
    axis: int  # and this one the position
    matrix: Floats  # W: (D, N)
    shift: Floats  # c: (D,)

    def misses(self, y: Floats, seen: Floats) -> Floats:
        """The error of W y + c against the recorded vectors, over the largest entries of W y and of c: (...,)."""
        image = y @ self.matrix.T
        size = np.abs(image).max(axis=-1) + np.abs(self.shift).max()
        missed: Floats = np.abs(image + self.shift - seen).max(axis=-1) / np.maximum(size, np.finfo(float).tiny)
        return missed

    def inputs(self, output: Tensor, row: int, position: int | slice) -> Floats:
        """The vectors of a norm's output that the map reads for a sequence at one position, or at several."""
        place: list[int | slice] = list(self.vector)
        place[0], place[self.axis] = row, position
        if output.ndim != len(place) + 1:
            raise NoMapError(f"the output of {self.norm} has another form in the real run: {tuple(output.shape)}")
        try:
            return as_floats(output[tuple(place)], f"the output of {self.norm}")
        except IndexError:
            raise NoMapError(f"the output of {self.norm} has no vector for each token") from None


NOT_IN_MEMORY = "its layers are not all in memory: run it on one device"  # but brought by accelerate when they run


class HeadMaps:
    """The maps of a model's heads, each tested on the real run before it is returned.

    A map of one position is tried at the next one first: only rotary embeddings need another. Maps are
    computed in float64 if the model is small enough to copy, and in float32 if it can't be copied, or if the model
    always computes in float32.
    """

    def __init__(self, model: nn.Module, norms: Iterable[str], batch: Mapping[str, Tensor]) -> None:
        self._model, self._norms, self._batch = model, list(norms), batch
        self._tolerance = TOLERANCE.get(_dtype(model), TOLERANCE[torch.bfloat16])
        self._runs: dict[
            nn.Module, tuple[int, TracedRun | str]
        ] = {}  # the last position; its run, or why there is none
        self._maps: dict[tuple[str, Side, int], AffineMap | str] = {}  # or why there is none

    def map(
        self, layer: str, side: Side, head: int, outputs: Mapping[str, Tensor], row: int, position: int, seen: Floats
    ) -> AffineMap:
        """The map of a head at a position of a real run with these outputs of norms, where attention saw this one."""
        key = (layer, side, head)
        known = self._maps.get(key)
        if isinstance(known, AffineMap) and self._fits(known, outputs, row, position, seen):
            return known
        reason = known if isinstance(known, str) else "" if self._copies else NOT_IN_MEMORY
        for model in [] if reason else self._copies:
            try:
                found = self._run(model, position).map(layer, side, head)
                if self._fits(found, outputs, row, position, seen):
                    self._maps[key] = found
                    return found
                reason = f"in the real run, an affine map of {found.norm} does not give the {side}"
            except NoMapError as refusal:
                reason = str(refusal)
        self._maps[key] = reason
        raise NoMapError(reason)

    def serves_all(self, found: AffineMap, outputs: Mapping[str, Tensor], row: int, seen: Floats) -> bool:
        """Whether a map gives the recorded vectors at every position (T, D): False with rotary embeddings."""
        y = found.inputs(outputs[found.norm], row, slice(0, len(seen)))
        return y.shape[0] == len(seen) and bool((found.misses(y, seen) <= self._tolerance).all())

    def _fits(self, found: AffineMap, outputs: Mapping[str, Tensor], row: int, position: int, seen: Floats) -> bool:
        y = found.inputs(outputs[found.norm], row, position)
        return bool(found.misses(y, seen) <= self._tolerance)

    @cached_property
    def _copies(self) -> list[nn.Module]:
        """Models to trace, the best first: a model in half precision needs a copy to show its maps."""
        dtype = _dtype(self._model)
        parameters = list(self._model.parameters())
        small = sum(values.numel() for values in parameters) <= SMALL
        if any(values.is_meta for values in parameters):
            return []
        if dtype == torch.float64 or not small:
            return [self._model]
        single = self._model if dtype == torch.float32 else silent_copy(self._model).float()
        return [silent_copy(self._model).cpu().double(), single]

    def _run(self, model: nn.Module, position: int) -> "TracedRun":
        if model not in self._runs or self._runs[model][0] != position:
            try:
                tokens = two_tokens(self._model, self._batch, position)
                self._runs[model] = position, TracedRun(model, self._norms, tokens)
            except NoMapError as reason:
                self._runs[model] = position, str(reason)
        run = self._runs[model][1]
        if isinstance(run, str):
            raise NoMapError(run)
        return run


class TracedRun:
    """One run of a model in which gradients end at the outputs of norms, and one on other tokens to test its maps.

    With `per_token`, norms that do not give one vector per token, such as those on queries and keys, are looked
    through, and the second run has the outputs of the first.
    """

    def __init__(
        self, model: nn.Module, norms: Iterable[str], batch: Mapping[str, Tensor], *, per_token: bool = False
    ) -> None:
        self._dtype = _dtype(model)
        self._ends: dict[str, list[Tensor]] = {}
        self._others: dict[str, list[Tensor]] = {}
        random = torch.Generator().manual_seed(0)

        def ends(name: str, output: Tensor) -> Tensor:
            if per_token and not _is_per_token(output):
                return output
            end = output.detach().clone().requires_grad_()
            self._ends.setdefault(name, []).append(end)
            return end.clone()  # the model may change it in place

        def others(name: str, output: Tensor) -> Tensor:
            if per_token and not _is_per_token(output):
                return output
            calls = self._others.setdefault(name, [])
            values = self._ends[name][len(calls)].detach()
            if not per_token:
                noise = torch.randn(output.shape, generator=random, dtype=torch.float64).to(output)
                values = noise * (values.abs().mean() + 1e-3)
            calls.append(values)
            return values.clone()

        names = list(norms)
        with torch.enable_grad():
            self._states = _heads_seen(model, names, batch, ends)
        with torch.no_grad():
            self._other_states = _heads_seen(model, names, _other_tokens(batch), others)

    @property
    def layers(self) -> list[str]:
        """Attention layers in the order of the model."""
        return list(self._states)

    def norm_before(self, layer: str) -> str:
        """The one norm that all keys of a layer come from, and nothing else: the last key from its last vector."""
        states = self._side(layer, "key")[0, :, -1].reshape(-1)
        name, gradient = self._only_norm(states, _weights(states), "the keys")
        vector = _only_vector(gradient, name, "the keys")
        if vector != (0, self._ends[name][0].shape[1] - 1):
            raise NoMapError(f"the last key does not come from the last output of {name}")
        moved = (self._other_states[layer]["key"][0, :, -1].reshape(-1) - states).abs().max()
        if not moved <= TOLERANCE[states.dtype] * states.abs().max():
            raise NoMapError(f"the keys do not come from {name} alone: other tokens change them past it")
        return name

    def map(self, layer: str, side: Side, head: int) -> AffineMap:
        """The map to the query or key of a head at the last token."""
        states = self._side(layer, side)[0, head]  # (T, D)
        if self._dtype not in (torch.float32, torch.float64):
            raise NoMapError(f"maps need a model in float32 or float64, got {self._dtype}".replace("torch.", ""))
        if len(states) < 2:
            raise NoMapError("a sequence of one token does not show which vectors belong to it")
        what = f"the {side}"
        name, gradient = self._only_norm(states[-1], torch.eye(states.shape[1]).to(states), what)
        vector = _only_vector(gradient, name, what)
        name_before, gradient_before = self._only_norm(states[-2], _weights(states[-2]), what)
        pairs = zip(vector, _only_vector(gradient_before, name_before, what), strict=False)
        moved = [axis for axis, (here, before) in enumerate(pairs) if here != before]
        if name_before != name or len(moved) != 1 or moved[0] == 0:
            raise NoMapError(f"the output of {name} does not have sequences first and one axis for positions")
        matrix = as_floats(gradient.movedim(0, -1)[vector].mT, "W")
        y = as_floats(self._ends[name][0][vector], "y")
        found = AffineMap(name, vector, moved[0], matrix, as_floats(states[-1], side) - matrix @ y)
        other = as_floats(self._others[name][0][vector], "y")
        seen = as_floats(self._other_states[layer][side][0, head, -1], side)
        if not found.misses(other, seen) <= TOLERANCE[states.dtype]:  # attention may be in float32 in any model
            raise NoMapError(f"an affine map of one output of {name} does not give {what}")
        return found

    def _side(self, layer: str, side: Side) -> Tensor:
        if side not in self._states[layer]:
            raise NoMapError(f"{layer} runs more than once, and its runs are not told apart")
        return self._states[layer][side]

    def _only_norm(self, states: Tensor, weights: Tensor, what: str) -> tuple[str, Tensor]:
        """The one norm that states (k,) depend on, and the gradient of weights (r, k) times states: (r, ..., N)."""
        names = [(name, end) for name, ends in self._ends.items() for end in ends]
        gradients: Any = [None] * len(names)
        if names and states.requires_grad:
            gradients = torch.autograd.grad(
                states,
                [end for _, end in names],
                grad_outputs=weights,
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            )
        reached = [
            (name, gradient)
            for (name, _), gradient in zip(names, gradients, strict=True)
            if gradient is not None and bool(gradient.any())
        ]
        if not reached:
            raise NoMapError(f"no norm stands before {what}")
        if len(reached) > 1:
            several = ", ".join(dict.fromkeys(name for name, _ in reached))
            raise NoMapError(f"more than one norm feeds {what}: {several}")
        if len(self._ends[reached[0][0]]) > 1:
            raise NoMapError(f"{reached[0][0]} runs more than once, and its runs are not told apart")
        return reached[0]


def norms_before_keys(
    model: nn.Module, norms: Iterable[str], batch: Mapping[str, Tensor]
) -> dict[str, str | NoMapError]:
    """The norm that each attention layer reads its keys from, or why there is none.

    It is the nearest one upstream that gives one vector per token: norms on the keys of each head are looked through.
    """
    run = TracedRun(model, norms, two_tokens(model, batch, position=1), per_token=True)
    found: dict[str, str | NoMapError] = {}
    for layer in run.layers:
        try:
            found[layer] = run.norm_before(layer)
        except NoMapError as reason:
            found[layer] = reason
    return found


def two_tokens(model: nn.Module, batch: Mapping[str, Tensor], position: int) -> dict[str, Tensor]:
    """The token of a batch's first sequence at a position and the one before it, told where they stand.

    Which tokens they are does not matter, since the outputs of norms are replaced. Inputs that are not tokens, such as
    images, stay whole; masks are left out.

    >>> two_tokens(nn.Identity(), {"input_ids": torch.tensor([[5, 6, 7]])}, position=2)
    {'input_ids': tensor([[6, 7]])}
    """
    cut: dict[str, Tensor] = {}
    for name, value in batch.items():
        if "mask" in name:
            continue
        row = value[:1]
        if value.ndim == 2 and not value.is_floating_point():
            last = min(position, value.shape[1] - 1)
            row = row[:, max(0, last - 1) : last + 1]
        cut[name] = row
    takes = inspect.signature(model.forward).parameters
    if "position_ids" in takes and "input_ids" in cut and "position_ids" not in cut:
        cut["position_ids"] = torch.arange(max(0, position - 1), position + 1)[None, -cut["input_ids"].shape[1] :]
    return cut


def _is_per_token(output: Tensor) -> bool:
    return output.ndim == 3 and output.shape[0] == 1


def _other_tokens(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Other inputs of the same shape; positions stay unchanged."""
    random = torch.Generator().manual_seed(1)
    others: dict[str, Tensor] = {}
    for name, value in batch.items():
        if value.is_floating_point():
            others[name] = torch.randn(value.shape, generator=random).to(value)
        else:
            others[name] = torch.where(value > 0, value - 1, value + 1) if name.endswith("input_ids") else value
    return others


def _weights(states: Tensor) -> Tensor:
    """Random weights: with equal ones the outputs of a LayerNorm would add up to zero."""
    return torch.randn(1, *states.shape, generator=torch.Generator().manual_seed(0)).to(states)


def _only_vector(gradient: Tensor, name: str, what: str) -> tuple[int, ...]:
    """The one vector of a norm's output that a gradient (r, ..., N) reaches."""
    places = gradient.ne(0).any(-1).any(0).nonzero().tolist()
    if len(places) != 1:
        raise NoMapError(f"{len(places)} outputs of {name} feed {what} at once")
    return tuple(places[0])


def _heads_seen(
    model: nn.Module, norms: list[str], batch: Mapping[str, Tensor], replaced: Callable[[str, Tensor], Tensor]
) -> dict[str, dict[Side, Tensor]]:
    """Queries and keys (1, H, T, D) of every layer, with the outputs of norms replaced; none of one that runs twice."""
    weight = next(model.parameters())
    watch = _GradientWatch(model)
    settings: dict[str, Any] = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    try:
        with ExitStack() as active:
            for module in model.modules():
                active.callback(setattr, module, "training", module.training)
            model.eval()
            for name in norms:
                hook = model.get_submodule(name).register_forward_hook(_replacing(name, replaced))
                active.callback(hook.remove)
            active.callback(watch.stop)
            watch.start()
            model(
                **{name: value.to(weight.device) for name, value in _in_dtype(batch, weight.dtype).items()}, **settings
            )
        seen = watch.seen
    except Exception as error:  # the model's own code, which may raise anything
        raise NoMapError(f"{type(model).__name__} can't be run on two tokens: {first_line(error)}") from error
    sides: dict[str, dict[Side, Tensor]] = {}
    for layer, heads in seen.items():
        calls = watch.sides[layer]
        query, key = calls[0]
        once = len(calls) == 1
        sides[layer] = {"query": query.reshape(heads.query.shape), "key": key.reshape(heads.key.shape)} if once else {}
    return sides


def _replacing(name: str, replaced: Callable[[str, Tensor], Tensor]) -> Any:
    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        return replaced(name, output) if isinstance(output, Tensor) else output

    return replace


def _in_dtype(batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def _dtype(model: nn.Module) -> torch.dtype:
    return next(model.parameters()).dtype


class _GradientWatch(AttentionWatch):
    """Also keeps the tensors themselves, through which gradients flow."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.sides: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def _record(self, product: Product, rows: torch.Size) -> None:
        super()._record(product, rows)
        self.sides.setdefault(product.layer, []).append((product.query, product.key))
