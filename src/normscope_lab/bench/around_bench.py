"""Outputs around one input, exactly, against interval arithmetic and linear relaxation: widths, attacks, CPU time.

Random norms have gains 1 + 0.1·normal, normal bias, inputs and readers, eps = 1e-5. The demo model's norms have the
inputs of the built-in text and the linear layers that read them. Radii are relative to |Πx|.

An attack starts at a random input at the end of the radius and moves along the gradient of w·y, a ← x + r·∇/|∇|, or
randomly inside the ball where that does not help; one for each end of each interval.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np
import torch

from normscope.checks import Floats, as_floats
from normscope.data import demo_model, sample_text
from normscope.models.capture import capture
from normscope.models.subject import Subject
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope_lab.bench.step_bounds import interval_bounds, linear_bounds
from normscope_lab.bench.timing import interleaved, one_thread, this_machine
from normscope_lab.results.around_widths import AroundWidths, Widths, WidthTimes

RADII = (0.001, 0.01, 0.1, 0.5)
SEED = 0
STEPS = 40  # of an attack
ROUNDING = 1e-11  # relative to Σ|wₙ|·(√N·|gₙ| + |bₙ|): less does not count as passing a bound


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    sizes: tuple[int, ...]
    readers: int  # of each random norm, and rows taken from each layer of the demo model
    inputs: int  # of each norm
    timed_readers: int
    rounds: int


FULL = Settings(sizes=(64, 768, 4096), readers=64, inputs=4, timed_readers=1000, rounds=9)
QUICK = Settings(sizes=(8,), readers=3, inputs=1, timed_readers=10, rounds=1)


@dataclass(frozen=True)
class Case:
    """A norm with inputs and readers."""

    norm: Norm
    inputs: Floats
    readers: Floats


def run(settings: Settings = FULL, progress: Progress = silent) -> AroundWidths:
    """Measure all sizes and radii."""
    middle = settings.sizes[len(settings.sizes) // 2]
    sources: list[tuple[str, Callable[[], list[Case]]]] = [
        ("random LayerNorm", partial(_random_cases, size, True, settings)) for size in settings.sizes
    ]
    sources.append(("random RMSNorm", partial(_random_cases, middle, False, settings)))
    sources.append(("demo model", partial(_demo_cases, settings)))
    with one_thread():
        widths = [row for name, make in progress(sources, "bench around") for row in _widths(name, make())]
        times = [_times(size, settings) for size in settings.sizes]
    return AroundWidths(machine=this_machine(), widths=tuple(widths), times=tuple(times))


def _random_cases(size: int, project: bool, settings: Settings) -> list[Case]:
    rng = np.random.default_rng(SEED)
    norm = Norm(gain=1 + 0.1 * rng.normal(size=size), bias=rng.normal(size=size), project=project)
    inputs, readers = rng.normal(size=(settings.inputs, size)), rng.normal(size=(settings.readers, size))
    return [Case(norm, inputs, readers)]


def _demo_cases(settings: Settings) -> list[Case]:
    """Every norm of the demo model, with the layers that read it, at tokens spread over the built-in text."""
    rng = np.random.default_rng(SEED)
    subject = Subject(demo_model(), text=sample_text())
    graph = subject.traced.graph
    assert graph is not None
    with capture(subject.module, norms=subject.traced) as captured, torch.no_grad():
        subject.module(**next(iter(subject.batches())))
    cases = []
    for path, activations in captured.norms.items():
        norm = subject.traced[path].norm
        assert norm is not None
        assert activations.input is not None
        vectors = as_floats(activations.input, path).reshape(-1, norm.size)
        chosen = vectors[np.linspace(0, len(vectors) - 1, settings.inputs).astype(int)]
        rows = []
        for reader in graph.linear_readers(path):
            weight = attrgetter(reader.weight_name)(subject.module).detach()
            matrix = as_floats(weight.T if reader.transposed else weight, reader.weight_name)
            rows.append(rng.permutation(matrix)[: settings.readers])
        cases.append(Case(norm, chosen, np.concatenate(rows)))
    return cases


def _widths(source: str, cases: list[Case]) -> Iterator[Widths]:
    for radius in RADII:
        measured = [_measured(case, x, radius) for case in cases for x in case.inputs]
        share, attacked, interval, linear, capped, *passed = (
            np.concatenate(parts) for parts in zip(*measured, strict=True)
        )
        yield Widths(
            source=source,
            size=cases[0].norm.size,
            radius=radius,
            cases=len(share),
            share=float(share.mean()),
            attacked=float(attacked.mean()),
            interval=float(interval.mean()),
            linear=float(linear.mean()),
            capped=float(capped.mean()),
            passed=int(passed[0].sum()),
            interval_passed=int(passed[1].sum()),
            linear_passed=int(passed[2].sum()),
        )


def _measured(case: Case, x: Floats, relative: float) -> tuple[Floats, ...]:
    """For every reader the columns of Widths, in their order: widths over widths, then attacks that pass each bound."""
    norm, readers = case.norm, case.readers
    radius = relative * float(np.linalg.norm(norm.project(x)))
    ends = [exact_bounds(norm, x, radius, readers)]
    ends += [bounds(norm, x, radius, readers) for bounds in (interval_bounds, linear_bounds)]
    lowest, highest = -norm.ellipsoid.support(-readers), norm.ellipsoid.support(readers)
    reached = -_attack(norm, x, radius, -readers), _attack(norm, x, radius, readers)
    exact, interval, linear = (high - low for low, high in ends)
    capped = np.minimum(ends[2][1], highest) - np.maximum(ends[2][0], lowest)
    slack = ROUNDING * (np.abs(readers) @ (np.sqrt(norm.size) * np.abs(norm.gain) + np.abs(norm.bias)))
    passed = [1.0 * (reached[0] < low - slack) + 1.0 * (reached[1] > high + slack) for low, high in ends]
    attacked = reached[1] - reached[0]
    return exact / (highest - lowest), attacked / exact, interval / exact, linear / exact, capped / exact, *passed


def exact_bounds(norm: Norm, x: Floats, radius: float, readers: Floats) -> tuple[Floats, Floats]:
    """The lowest and the highest w·y, exactly."""
    near = norm.around(x, radius)
    return -near.support(-readers), near.support(readers)


def _attack(norm: Norm, x: Floats, radius: float, readers: Floats) -> Floats:
    """The highest w·y that ascent finds, for every reader."""
    rng = np.random.default_rng(SEED)
    points = x + radius * _unit(rng.normal(size=readers.shape))
    best: Floats = np.sum(norm(points) * readers, axis=1)
    for step in range(STEPS):
        along = x + radius * _unit(norm.vjp(points, readers))
        moved = points - x + radius * 0.7**step * _unit(rng.normal(size=readers.shape))
        inside = x + moved / np.maximum(1.0, np.linalg.norm(moved, axis=1, keepdims=True) / radius)
        for tried in (along, inside):
            value = np.sum(norm(tried) * readers, axis=1)
            better = value > best
            points[better], best[better] = tried[better], value[better]
    return best


def _unit(rows: Floats) -> Floats:
    unit: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(float).tiny)
    return unit


def _times(size: int, settings: Settings) -> WidthTimes:
    rng = np.random.default_rng(SEED)
    norm = Norm(gain=1 + 0.1 * rng.normal(size=size), bias=rng.normal(size=size))
    x, readers = rng.normal(size=size), rng.normal(size=(settings.timed_readers, size))
    ways = {"exact": exact_bounds, "interval": interval_bounds, "linear": linear_bounds}
    calls: dict[str, Callable[[], object]] = {
        name: partial(way, norm, x, 0.1 * float(np.linalg.norm(x)), readers) for name, way in ways.items()
    }
    interleaved(calls, 1, {})
    seconds = interleaved(calls, settings.rounds, {})
    return WidthTimes(size, len(readers), seconds["exact"], seconds["interval"], seconds["linear"])
