"""normscope::norm and normscope::norm_backward: the fused norm as operators of torch, on the CPU and on GPUs.

torch.compile sees these operators, and autograd differentiates them to any order: derivatives of the backward pass are
those of torch's own operations. On the CPU, rows are divided among as many threads as torch is set to use; on CUDA and
ROCm the kernels are Triton's, which comes with torch there. Where the compiled passes are not available, the operators
use torch's own operations, and warn once.
"""

import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from normscope.checks import first_line
from normscope.errors import InputError
from normscope.nn import pure
from normscope.nn.arguments import require_fitting
from normscope.nn.threads import on_threads, shares

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # in the order of the kinds in `vectors`

DEVICES = ("cpu", "cuda") if find_spec("triton") else ("cpu",)  # ROCm's are called cuda, too

PLAIN = (Tensor, nn.Parameter, type(None))  # not tensor subclasses, which may override operations

library: Any = torch.library.Library("normscope", "DEF")  # type: ignore[no-untyped-call]
library.define("norm(Tensor x, Tensor? gain, Tensor? bias, bool project, bool scale, int groups, float eps) -> Tensor")
library.define(
    "norm_backward(Tensor dy, Tensor x, Tensor? gain, bool project, bool scale, int groups, float eps)"
    " -> (Tensor, Tensor, Tensor)"
)


def norm(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    """normscope::norm of tensors on one of DEVICES, differentiable; see `functional.norm` for its arguments."""
    if torch.compiler.is_compiling():
        result: Tensor = _call_norm(x, gain, bias, project, scale, groups, eps)
        return result
    return _differentiable_norm(x, gain, bias, project, scale, groups, eps)


@torch.library.impl(library, "norm", "CPU")
def _norm(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    require_fitting(x, gain, bias, groups)
    size = x.shape[-1]
    passes = _passes(x.dtype, size // groups, project, scale)
    if passes is None:
        return pure.forward(x, gain, bias, project, scale, groups, eps)
    x = x.contiguous()
    y, weights, shifts = torch.empty_like(x), passes.vector(gain, size, 1.0), passes.vector(bias, size, 0.0)

    overflowed = []

    def work(_: int, start: int, stop: int) -> None:
        spare = passes.spare(size)
        addresses = x.data_ptr(), weights.data_ptr(), shifts.data_ptr(), y.data_ptr()
        room = 0 if spare is None else spare.data_ptr()
        overflowed.append(passes.forward(*addresses, start, stop, groups, size // groups, eps, room))

    on_threads(work, shares(x.numel() // size, size, torch.get_num_threads()))
    if any(overflowed):  # slower, and right wherever the result is in range
        return pure.forward(x, gain, bias, project, scale, groups, eps)
    return y


@torch.library.impl(library, "norm_backward", "CPU")
def _norm_backward(
    dy: Tensor, x: Tensor, gain: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _require_gradient_of(x, dy, gain, groups)
    size = x.shape[-1]
    passes = _passes(x.dtype, size // groups, project, scale)
    if passes is None:
        return pure.backward(dy, x, gain, project, scale, groups, eps)
    x, dy = x.contiguous(), dy.to(x.dtype).contiguous()
    dx, weights = torch.empty_like(x), passes.vector(gain, size, 1.0)
    parts = shares(x.numel() // size, size, torch.get_num_threads())
    dgain, dbias = weights.new_zeros(2, len(parts), len(weights))  # each thread has its own, added when all are done
    overflowed = []

    def work(part: int, start: int, stop: int) -> None:
        spare, sums = passes.spare(size), (dgain[part].data_ptr(), dbias[part].data_ptr())
        addresses = x.data_ptr(), dy.data_ptr(), weights.data_ptr(), dx.data_ptr(), *sums
        room = 0 if spare is None else spare.data_ptr()
        overflowed.append(passes.backward(*addresses, start, stop, groups, size // groups, eps, room))

    on_threads(work, parts)
    if any(overflowed):
        return pure.backward(dy, x, gain, project, scale, groups, eps)
    return dx, dgain[:, :size].sum(0), dbias[:, :size].sum(0)


@torch.library.impl(library, "norm", "CUDA")
def _norm_on_gpu(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    require_fitting(x, gain, bias, groups)
    y: Tensor = _gpu_passes(x.shape[-1] // groups).forward(x, gain, bias, project, scale, groups, eps)
    return y.to(x.dtype)


@torch.library.impl(library, "norm_backward", "CUDA")
def _norm_backward_on_gpu(
    dy: Tensor, x: Tensor, gain: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _require_gradient_of(x, dy, gain, groups)
    passes = _gpu_passes(x.shape[-1] // groups)
    gradients: tuple[Tensor, Tensor, Tensor] = passes.backward(dy, x, gain, project, scale, groups, eps)
    return gradients


@torch.library.register_fake("normscope::norm", lib=library)  # type: ignore[untyped-decorator]
def _(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    require_fitting(x, gain, bias, groups)
    return x.new_empty(x.shape)


@torch.library.register_fake("normscope::norm_backward", lib=library)  # type: ignore[untyped-decorator]
def _(dy: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    vector = x.new_empty(x.shape[-1:], dtype=pure.computing_dtype(x))
    return x.new_empty(x.shape), vector, torch.empty_like(vector)


def _differentiable_norm(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    call = _Norm.apply if _differentiated(x, gain, bias) else _norm_below_autograd
    result: Tensor = call(x, gain, bias, project, scale, groups, eps)
    return result


def _differentiable_backward(
    dy: Tensor, x: Tensor, gain: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    if _differentiated(dy, x, gain):
        return pure.backward(dy, x, gain, project, scale, groups, eps)
    if _nobody_looks_on(dy, x, gain):
        return (_norm_backward if x.is_cpu else _norm_backward_on_gpu)(dy, x, gain, project, scale, groups, eps)
    with torch._C._AutoDispatchBelowAutograd():
        result: tuple[Tensor, Tensor, Tensor] = _call_backward(dy, x, gain, project, scale, groups, eps)
        return result


def _norm_below_autograd(x: Tensor, gain: Tensor | None, bias: Tensor | None, *flags: Any) -> Tensor:
    if _nobody_looks_on(x, gain, bias):
        return (_norm if x.is_cpu else _norm_on_gpu)(x, gain, bias, *flags)
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = _call_norm(x, gain, bias, *flags)
        return result


def _nobody_looks_on(*tensors: Tensor | None) -> bool:
    """Whether torch would only call our function: then it is called directly, in half the time."""
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.profiler._is_profiler_enabled
    ):
        return False
    return all(tensor is None or (type(tensor) in PLAIN and _is_its_memory(tensor)) for tensor in tensors)


def _is_its_memory(tensor: Tensor) -> bool:
    """Whether the values are those in memory: False, for example, for a lazily negated tensor."""
    return (tensor.is_cpu or tensor.is_cuda) and not tensor.is_neg() and not tensor._is_zerotensor()


library.impl("norm", _differentiable_norm, "Autograd")
library.impl("norm_backward", _differentiable_backward, "Autograd")
_call_norm, _call_backward = torch.ops.normscope.norm.default, torch.ops.normscope.norm_backward.default


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, bias: Tensor | None, *flags: Any) -> Tensor:
        ctx.save_for_backward(x, gain)
        ctx.flags, ctx.bias_dtype = flags, None if bias is None else bias.dtype
        return _norm_below_autograd(x, gain, bias, *flags)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gain = ctx.saved_tensors
        dx, dgain, dbias = _differentiable_backward(dy, x, gain, *ctx.flags)
        wanted = ctx.needs_input_grad
        return (
            dx if wanted[0] else None,
            dgain.to(gain.dtype) if wanted[1] else None,
            dbias.to(ctx.bias_dtype) if wanted[2] else None,
            *(None for _ in ctx.flags),
        )


def _require_gradient_of(x: Tensor, dy: Tensor, gain: Tensor | None, groups: int) -> None:
    require_fitting(x, gain, None, groups)
    if dy.shape != x.shape:
        raise InputError(f"dy must have the shape of x, {tuple(x.shape)}, got {tuple(dy.shape)}")


def _differentiated(*tensors: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


@dataclass(frozen=True)
class _Passes:
    """The compiled passes for groups of a given number of channels, and the form of their arguments."""

    forward: Any
    backward: Any
    dtype: torch.dtype  # of x
    computing: torch.dtype  # of gain and bias
    together: int  # channels that are processed at a time

    def vector(self, given: Tensor | None, size: int, missing: float) -> Tensor:
        """A gain or bias, with room for a multiple of the channels that are processed at a time."""
        room = -(-size // self.together) * self.together
        if given is None:
            return _constant(room, missing, self.computing)
        vector = (given if given.dtype == self.computing else given.to(self.computing)).contiguous()
        return vector if size == room else pad(vector, (0, room - size))

    def spare(self, size: int) -> Tensor | None:
        """Room for the last channels, if fewer than are processed at a time: zeros can't overflow."""
        return torch.zeros(3 * self.together, dtype=self.dtype) if size % self.together else None


@lru_cache(maxsize=64)
def _constant(size: int, value: float, dtype: torch.dtype) -> Tensor:
    """The gain or bias of norms that have none; read and never written, so one serves all calls."""
    return torch.full((size,), value, dtype=dtype, device="cpu")


@cache
def _passes(dtype: torch.dtype, channels: int, project: bool, scale: bool) -> _Passes | None:
    """The compiled passes; None where they are not available."""
    try:
        from normscope.nn.kernels import passes, together

        forward, backward = passes(DTYPES.index(dtype), channels, project, scale)
    except Exception as error:  # the result can be computed without them
        _tell_once(f"{type(error).__name__}: {first_line(error)}")
        return None
    computing = torch.float64 if dtype == torch.float64 else torch.float32
    return _Passes(forward, backward, dtype, computing, channels * together(channels))


@cache
def _gpu_passes(channels: int) -> Any:
    """The module with the passes for groups of this many channels: Triton's, or torch's own operations."""
    try:
        from normscope.nn import triton_kernels
    except Exception as error:  # the result can be computed without them
        _tell_once(f"{type(error).__name__}: {first_line(error)}")
        return pure
    return triton_kernels if channels <= triton_kernels.MOST_CHANNELS else pure


_told: list[str] = []


def _tell_once(reason: str) -> None:
    if not _told:
        warnings.warn(
            f"normscope.nn is slower than it could be: its compiled passes are not available here ({reason}), so "
            "torch's own operations are used, with the same results",
            RuntimeWarning,
            stacklevel=2,
        )
    _told.append(reason)
