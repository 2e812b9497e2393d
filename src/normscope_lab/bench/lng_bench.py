"""The fused norms against torch's: LayerNorm, RMSNorm, and LN-G in few and many groups, forward and backward.

All ways run in turn on the same tensors, on one thread, by CPU time, in a new random order in each round. `copy_`
shows what reading and writing the tensor takes alone. malloc is told to keep the memory it was given: otherwise each
result would be fresh memory from the system, whose first use takes longer than these functions do. On a GPU the time is
wall time, from an idle GPU to an idle GPU, over many calls.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from normscope.errors import InputError
from normscope.models.float64_run import keep_memory
from normscope.nn import norm
from normscope.progress import Progress, silent
from normscope_lab.bench.timing import gpu_time, interleaved, one_thread, this_machine
from normscope_lab.results.lng_speed import LngSpeed, Timing

SEED = 0
FORWARD, BOTH = "forward", "forward and backward"
LAYER_NORM, COPY = "F.layer_norm", "copy_"
SLOW_WAYS = ("F.layer_norm of groups", "F.group_norm", "F.rms_norm")  # of torch: run in every fifth round

Way = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Plan:
    """What is measured: tensors by rows and channels, and how often."""

    shapes: tuple[tuple[int, int], ...]
    dtypes: tuple[torch.dtype, ...]
    rounds: int


FULL = Plan(((4096, 768), (8192, 1024), (1, 768)), (torch.float32, torch.bfloat16), rounds=60)
QUICK = Plan(((8, 96),), (torch.float32,), rounds=2)


def run(plan: Plan = FULL, progress: Progress = silent, device: str = "cpu") -> LngSpeed:
    """Measure all of a plan on the CPU or, with "cuda", on the current GPU."""
    machine = this_machine()
    if device == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device must be cpu here, got cuda: torch finds no GPU")
        machine = replace(machine, processor=torch.cuda.get_device_name())
    elif device != "cpu":
        raise InputError(f"device must be cpu or cuda, got {device!r}")
    keeps = device == "cpu" and keep_memory()
    tasks = [(shape, dtype, passes) for shape in plan.shapes for dtype in plan.dtypes for passes in (FORWARD, BOTH)]
    timings: list[Timing] = []
    with one_thread():
        for shape, dtype, passes in progress(tasks, "bench lng"):
            timings += _timed(shape, dtype, passes, plan.rounds, device)
    return LngSpeed(machine, keeps, tuple(timings))


def group_counts(channels: int) -> tuple[int, ...]:
    """1, 8, 64 and a quarter of the channels, as far as they divide them.

    >>> group_counts(768), group_counts(96)
    ((1, 8, 64, 192), (1, 8, 24))
    """
    return tuple(dict.fromkeys(g for g in (1, 8, 64, channels // 4) if channels % g == 0 and g <= channels // 4))


def _timed(shape: tuple[int, int], dtype: torch.dtype, passes: str, rounds: int, device: str) -> Iterator[Timing]:
    generator = torch.Generator().manual_seed(SEED)
    x, dy = (torch.randn(shape, generator=generator).to(device, dtype) for _ in range(2))
    gain = (1 + 0.1 * torch.randn(shape[1], generator=generator)).to(device, dtype)
    bias = (0.1 * torch.randn(shape[1], generator=generator)).to(device, dtype)
    tensors = [x, gain, bias] if passes == FORWARD else [t.requires_grad_() for t in (x, gain, bias)]
    ways = dict(_ways(shape[1]))
    calls: dict[tuple[str, int], Callable[[], object]] = {
        key: partial(way, *tensors) if passes == FORWARD else partial(_there_and_back, way, tensors, dy)
        for key, way in ways.items()
    }
    if passes == FORWARD:
        calls[COPY, 1] = partial(torch.empty_like(x).copy_, x)
    repeats = max(1 if device == "cpu" else 20, 2**15 // x.numel())  # of calls that are too short for the clock
    seconds = _rounds(calls, rounds, repeats, time.process_time if device == "cpu" else gpu_time)
    reference = seconds[LAYER_NORM, 1]
    for (way, groups), times in seconds.items():
        yield Timing(
            rows=shape[0],
            channels=shape[1],
            dtype=str(dtype).removeprefix("torch."),
            passes=passes,
            way=way,
            groups=groups,
            rounds=len(times),
            median_seconds=statistics.median(times),
            least_seconds=min(times),
            ratio=statistics.median(times) / statistics.median(reference),
            least_ratio=min(times) / min(reference),
        )


def _ways(channels: int) -> Iterator[tuple[tuple[str, int], Way]]:
    yield (LAYER_NORM, 1), lambda x, gain, bias: functional.layer_norm(x, (channels,), gain, bias)
    for groups in group_counts(channels):
        yield ("normscope LN-G" if groups > 1 else "normscope LayerNorm", groups), partial(norm, groups=groups)
        if groups > 1:
            yield ("F.layer_norm of groups", groups), partial(_layer_norm_of_groups, groups=groups)
            yield ("F.group_norm", groups), partial(_group_norm, groups=groups)
    yield ("F.rms_norm", 1), lambda x, gain, bias: functional.rms_norm(x, (channels,), gain)
    yield ("normscope RMSNorm", 1), lambda x, gain, bias: norm(x, gain, project=False)


def _layer_norm_of_groups(x: Tensor, gain: Tensor, bias: Tensor, groups: int) -> Tensor:
    grouped = x.reshape(len(x), groups, -1)
    return functional.layer_norm(grouped, grouped.shape[-1:]).reshape(x.shape) * gain + bias


def _group_norm(x: Tensor, gain: Tensor, bias: Tensor, groups: int) -> Tensor:
    return functional.group_norm(x, groups, gain, bias)


def _there_and_back(way: Way, tensors: list[Tensor], dy: Tensor) -> object:
    return torch.autograd.grad(way(*tensors), tensors, dy, allow_unused=True)


def _rounds(
    calls: dict[tuple[str, int], Callable[[], object]], rounds: int, repeats: int, clock: Callable[[], float]
) -> dict[tuple[str, int], list[float]]:
    """Seconds of each call, in each round that it took part in."""
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    order = random.Random(SEED)
    for call in calls.values():
        call()  # compiled, or loaded from the cache, before the clock starts
    for number in range(rounds):
        taking_part = [key for key in calls if key[0] not in SLOW_WAYS or number % 5 == 0]
        order.shuffle(taking_part)
        functions: dict[str, Callable[[], object]] = {
            str(key): partial(_repeated, calls[key], repeats) for key in taking_part
        }
        times = interleaved(functions, 1, {}, clock)
        for key in taking_part:
            seconds[key].append(times[str(key)] / repeats)
    return seconds


def _repeated(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()
