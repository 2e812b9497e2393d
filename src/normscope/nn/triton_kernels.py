"""The norm and its gradients as Triton kernels, for CUDA and ROCm. Everything but loads and stores is in float32.

A program works on tiles of some rows × some groups × all channels of a group, filled up to powers of two; what is
beyond the tensor is masked. A tile is read once and stays in registers. Sums over rows, for the gradients of gain and
bias, are kept by each program for its rows and added at the end, always in the same order. float64 is computed in
float64. Tensors on the CPU are accepted where Triton interprets its kernels (TRITON_INTERPRET=1).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from normscope.nn import pure

MOST_CHANNELS = 65536  # of a group: more do not fit into the registers of a program
TILE = 1024  # numbers, unless a group has more channels
PROGRAMS = 512  # that share the rows of a backward pass, at most


def forward(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    """As `pure.forward`, in the data type of x."""
    x = x.contiguous()
    y, rows = torch.empty_like(x), x.numel() // x.shape[-1]
    tile, settings = _tiles(x, project, scale, groups, eps)
    grid = (triton.cdiv(rows, tile[0]), triton.cdiv(groups, tile[1]))
    if rows:
        with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
            _forward_kernel[grid](x, _dense(gain), _dense(bias), y, rows, **settings)
    return y


def backward(
    dy: Tensor, x: Tensor, gain: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `pure.backward`."""
    x, dy = x.contiguous(), dy.contiguous()
    dx, size = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // size
    tile, settings = _tiles(x, project, scale, groups, eps)
    programs = max(1, min(PROGRAMS, triton.cdiv(rows, tile[0])))
    sums = torch.empty((2, programs, size), dtype=pure.computing_dtype(x), device=x.device)
    grid = (programs, triton.cdiv(groups, tile[1]))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        _backward_kernel[grid](dy, x, _dense(gain), dx, sums[0], sums[1], rows, **settings)
    dgain, dbias = sums.sum(1)
    return dx, dgain, dbias


def _dense(vector: Tensor | None) -> Tensor | None:
    return None if vector is None else vector.contiguous()


def _tiles(x: Tensor, project: bool, scale: bool, groups: int, eps: float) -> tuple[tuple[int, int], dict[str, Any]]:
    """Rows and groups of a tile, and the settings that a kernel is compiled for."""
    channels = x.shape[-1] // groups
    wide = triton.next_power_of_2(channels)
    together = min(triton.next_power_of_2(groups), max(1, TILE // wide))
    rows = max(1, TILE // (wide * together))
    large, unit = pure.UNITS[pure.computing_dtype(x)]
    settings = {
        "GROUPS": groups,
        "CHANNELS": channels,
        "PROJECT": project,
        "SCALE": scale,
        "EPS": float(eps),
        "LARGE": large,
        "UNIT": unit,
        "COMPUTING": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "TILE_ROWS": rows,
        "TILE_GROUPS": together,
        "TILE_CHANNELS": wide,
        "num_warps": max(4, min(16, rows * together * wide // 256)),
    }
    return (rows, together), settings


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(
    x_at: tl.tensor,
    gain_at: tl.tensor,
    bias_at: tl.tensor,
    y_at: tl.tensor,
    rows: tl.tensor,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PROJECT: tl.constexpr,
    SCALE: tl.constexpr,
    EPS: tl.constexpr,
    LARGE: tl.constexpr,
    UNIT: tl.constexpr,
    COMPUTING: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
) -> None:
    place, there = _vector_places(GROUPS, CHANNELS, TILE_GROUPS, TILE_CHANNELS)
    row = (tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)[:, None, None]
    at, inside = row * (GROUPS * CHANNELS) + place, (row < rows) & there
    x = tl.load(x_at + at, mask=inside, other=0.0).to(COMPUTING)
    y, _ = _steps(x, inside, CHANNELS, PROJECT, SCALE, EPS, LARGE, UNIT)
    if gain_at is not None:
        y = y * tl.load(gain_at + place, mask=there, other=0.0).to(COMPUTING)
    if bias_at is not None:
        y = y + tl.load(bias_at + place, mask=there, other=0.0).to(COMPUTING)
    tl.store(y_at + at, y, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(
    dy_at: tl.tensor,
    x_at: tl.tensor,
    gain_at: tl.tensor,
    dx_at: tl.tensor,
    dgain_at: tl.tensor,
    dbias_at: tl.tensor,
    rows: tl.tensor,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PROJECT: tl.constexpr,
    SCALE: tl.constexpr,
    EPS: tl.constexpr,
    LARGE: tl.constexpr,
    UNIT: tl.constexpr,
    COMPUTING: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_GROUPS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
) -> None:
    place, there = _vector_places(GROUPS, CHANNELS, TILE_GROUPS, TILE_CHANNELS)
    gain = tl.full((1, TILE_GROUPS, TILE_CHANNELS), 1.0, COMPUTING)
    if gain_at is not None:
        gain = tl.load(gain_at + place, mask=there, other=0.0).to(COMPUTING)
    dgain = tl.zeros((TILE_ROWS, TILE_GROUPS, TILE_CHANNELS), COMPUTING)
    dbias = tl.zeros((TILE_ROWS, TILE_GROUPS, TILE_CHANNELS), COMPUTING)
    for tile in range(tl.program_id(0), tl.cdiv(rows, TILE_ROWS), tl.num_programs(0)):
        row = (tile * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)[:, None, None]
        at, inside = row * (GROUPS * CHANNELS) + place, (row < rows) & there
        x = tl.load(x_at + at, mask=inside, other=0.0).to(COMPUTING)
        dy = tl.load(dy_at + at, mask=inside, other=0.0).to(COMPUTING)
        s, inverse = _steps(x, inside, CHANNELS, PROJECT, SCALE, EPS, LARGE, UNIT)
        dgain += dy * s
        dbias += dy
        w = dy * gain
        dx = w
        if PROJECT:
            dx = dx - tl.sum(w, axis=2, keep_dims=True) / CHANNELS
        if SCALE:
            dx = (dx - s * (tl.sum(w * s, axis=2, keep_dims=True) / CHANNELS)) * inverse
        tl.store(dx_at + at, dx, mask=inside)
    mine = tl.program_id(0).to(tl.int64) * (GROUPS * CHANNELS) + place
    tl.store(dgain_at + mine, tl.sum(dgain, axis=0, keep_dims=True), mask=there)
    tl.store(dbias_at + mine, tl.sum(dbias, axis=0, keep_dims=True), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _vector_places(
    GROUPS: tl.constexpr, CHANNELS: tl.constexpr, TILE_GROUPS: tl.constexpr, TILE_CHANNELS: tl.constexpr
) -> tl.tuple:
    """Numbers of the channels of a tile, (1, groups, channels), and which of them exist."""
    group = tl.program_id(1) * TILE_GROUPS + tl.arange(0, TILE_GROUPS)[None, :, None]
    channel = tl.arange(0, TILE_CHANNELS)[None, None, :]
    return group * CHANNELS + channel, (group < GROUPS) & (channel < CHANNELS)


@triton.jit  # type: ignore[untyped-decorator]
def _steps(
    x: tl.tensor,
    inside: tl.tensor,
    CHANNELS: tl.constexpr,
    PROJECT: tl.constexpr,
    SCALE: tl.constexpr,
    EPS: tl.constexpr,
    LARGE: tl.constexpr,
    UNIT: tl.constexpr,
) -> tl.tuple:
    """s and 1/r of a tile, as in `pure`, which says why large numbers get a unit; s is 0 outside."""
    z = x
    one = tl.full((1, 1, 1), 1.0, x.dtype)
    inverse = one
    if PROJECT:
        z = tl.where(inside, z - tl.sum(z, axis=2, keep_dims=True) / CHANNELS, 0.0)
    if SCALE:
        beyond = tl.max(tl.abs(z), axis=2, keep_dims=True) > tl.full((1, 1, 1), LARGE, x.dtype)
        unit = tl.where(beyond, tl.full((1, 1, 1), UNIT, x.dtype), one)
        z = z * unit
        eps = tl.full((1, 1, 1), EPS, x.dtype)
        root = tl.sqrt(tl.sum(z * z, axis=2, keep_dims=True) / CHANNELS + eps * (unit * unit))
        z = tl.where(inside, z / root, 0.0)
        inverse = unit / root
    return z, inverse
