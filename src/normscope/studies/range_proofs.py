"""Certificates of ranges: the names under which all numbers of a bound are stored, and its multipliers.

    closed form    a layer that reads a norm: matrix, bias and norm are enough
    tight          a layer behind neurons: also the rows that the neurons read, and the multipliers

There is none if a number of the bound was computed, and is not stored under a name.
"""

from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import torch

from normscope.certificates.range_certificates import Matrix, RangeCertificate, Reader
from normscope.checks import as_floats
from normscope.results.layer_ranges import TensorRange
from normscope.studies.driving_inputs import Written
from normscope.tensors.linear_rows import Linear, ProductRows
from normscope.tensors.products import Layer, Outputs
from normscope.tensors.values import Gated


def closed_form_proof(row: TensorRange, best: Written, shift: float, bias: str | None) -> RangeCertificate:
    """The certificate of a layer that reads a norm: where its numbers are stored."""
    sign = 1 if best.sign > 0 else -1
    assert best.matrix is not None
    assert row.norm is not None
    assert row.bound is not None
    assert row.reached is not None
    return RangeCertificate(
        layer=row.layer,
        channel=best.channel,
        sign=1 if best.sign > 0 else -1,
        bound=sign * row.bound,
        reached=sign * row.reached,
        norm=row.norm,
        matrix=best.matrix,
        shift=shift,
        bias=bias,
        input=row.input,
    )


def tight_proof(
    label: str, outputs: Outputs, channel: int, sign: int, bound: float, proof: Any, in_two_steps: Set[str]
) -> RangeCertificate | None:
    """The certificate of a tight bound, where all its numbers are stored under names."""
    form, layer = outputs.form, outputs.layer
    gate = _reader(form.gate if isinstance(form, Gated) else form.linear)
    up = _reader(form.up) if isinstance(form, Gated) else None
    if gate is None or (up is None and isinstance(form, Gated)) or (layer.bias is not None and not layer.bias_name):
        return None
    if layer.name in in_two_steps:
        return None
    assert outputs.ball is not None
    return RangeCertificate(
        layer=label,
        channel=channel,
        sign=1 if sign > 0 else -1,
        bound=bound,
        reached=0.0,
        norm=outputs.ball.norm,
        matrix=Matrix(layer.name, layer.transposed, layer.expert),
        shift=float(layer.shift[channel]),
        bias=layer.bias_name,
        activation=outputs.activation,
        factor=outputs.factor,
        gate=gate,
        up=up,
        kind=proof.kind,
        lam=proof.lam,
        s=proof.s,
        division=proof.division,
        first=proof.first,
        second=proof.second,
    )


def _reader(form: Linear) -> Reader | None:
    """Where the rows of a linear value are stored, if it reads a norm through one stored matrix."""
    rows = form.rows
    if not isinstance(rows, ProductRows) or rows.source is None or not rows.reads_norm or not rows.source.name:
        return None
    layer = rows.source
    if layer.bias is not None and not layer.bias_name:
        return None
    plain = form.take(np.arange(len(form.index)))
    if not _has_stored_offset(plain, layer):
        return None
    return Reader(
        Matrix(layer.name, layer.transposed, layer.expert),
        layer.bias_name,
        rows=np.asarray(plain.index, dtype=np.int64),
        scale=np.asarray(plain.scale),
    )


def _has_stored_offset(form: Linear, layer: Layer) -> bool:
    """Whether a linear value has the offset of its layer, and nothing was added to it since."""
    rows = form.rows
    assert isinstance(rows, ProductRows)
    norm, wanted = rows.read_norm, layer.shift[form.index]
    near = 1e-13 * np.abs(wanted)
    if norm.bias.any():
        weights = as_floats(layer.matrix()[torch.from_numpy(form.index)], "weights")
        wanted, near = wanted + weights @ norm.bias, near + 1e-13 * np.abs(weights) @ np.abs(norm.bias)
    return bool((np.abs(form.scale * wanted - form.offset) <= np.abs(form.scale) * near).all())


def is_proved(row: TensorRange, certificates: Sequence[RangeCertificate]) -> bool:
    """Whether a certificate proves the bound of a layer, and not only that of a part of what it reads."""
    bound, sign = row.bound or 0.0, 1 if (row.bound or 0.0) > 0 else -1
    mine = [each for each in certificates if (each.layer, each.channel) == (row.layer, row.channel)]
    near = 1e-12 * abs(bound)
    return any(each.sign == sign and abs(each.bound - sign * bound) <= near for each in mine)
