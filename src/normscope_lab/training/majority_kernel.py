"""Loss and gradient of a batch of Majority in one pass, compiled: a block of tokens goes there and back in the cache.

For a token of class c in a sequence with counts n, weights w = exp(scores) and m tokens in the whole batch,

    x = e_c + Σⱼ nⱼ w_cj vⱼ / Σⱼ nⱼ w_cj        s = (x − mean x)/√var x        h = relu(A s + a)
    y = x + B h + b                             loss = Σ n_c (log Σₖ exp(eₖ·y) − e_target·y) / m

Gain and bias of the norm are part of A and a, the map after the attention is part of v: torch multiplies and
differentiates these small tables. A block has tokens of one class, so that w_cj vⱼ is one matrix for all of them. It is
stored as (channels, tokens): all innermost loops run over tokens, and fill vector registers.
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from torch import Tensor
from torch.autograd.function import once_differentiable

from normscope.compiled import compiled
from normscope.nn.kernels import instructions

BLOCK = 384  # tokens: few enough for the cache, many enough that the last steps of sums over them take little time
STRIDE = BLOCK + 16  # rows that are a power of two apart would compete for the same places in the cache
VECTORS = 64  # a block is filled up to a multiple of this: what is left over would be computed one by one
LOG2E, LN2 = np.log2(np.e), np.log(2.0)


class MajorityLoss(torch.autograd.Function):
    """Cross-entropy, the mean over all tokens of tensors on the CPU.

    `tables` are w, v, e, A, a, B, b, in the same dtype; their gradients are computed with the loss.
    """

    @staticmethod
    def forward(ctx: Any, counts: Tensor, target: Tensor, *tables: Tensor) -> Tensor:
        arrays = (each.detach().contiguous().numpy() for each in (counts, target, *tables))
        differences, sums, many, gradients = _summed(*arrays)
        total = many.sum(dtype=np.float64)
        ctx.gradients = [torch.from_numpy(gradient / total).to(tables[0].dtype) for gradient in gradients]
        return tables[0].new_tensor((differences + (np.log(sums) * many).sum(dtype=np.float64)) / total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(outer * gradient for gradient in ctx.gradients)


@instructions
def _two_to(typing, whole):  # type: ignore[no-untyped-def]
    """2 to the power of a float that is a whole number, by its bits."""

    def write(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        bits, mantissa, bias = (32, 23, 127) if whole == types.float32 else (64, 52, 1023)
        integer = ir.IntType(bits)
        exponent = builder.add(builder.fptosi(arguments[0], integer), integer(bias))
        return builder.bitcast(builder.shl(exponent, integer(mantissa)), arguments[0].type)

    return whole(whole), write


@compiled
def _exponentials(row, top, sums, size):  # type: ignore[no-untyped-def]
    """row = exp(row − top), which is at most 1, and sums += row; numba's own exp would be a call for each number."""
    number = row.dtype.type
    least = number(-87)  # below, exp leaves the range of float32
    for t in range(size):
        x = row[t] - top[t]
        whole = np.rint((x if x > least else least) * number(LOG2E))  # never nan, which is no whole number
        r = (least if x < least else x) - whole * number(LN2)  # nan if x is; otherwise at most ln 2 / 2
        series = (number(1 / 479001600) * r + number(1 / 39916800)) * r + number(1 / 3628800)
        series = ((series * r + number(1 / 362880)) * r + number(1 / 40320)) * r + number(1 / 5040)
        series = ((series * r + number(1 / 720)) * r + number(1 / 120)) * r + number(1 / 24)
        series = ((series * r + number(1 / 6)) * r + number(1 / 2)) * r + number(1)
        row[t] = (series * r + number(1)) * _two_to(whole)
        sums[t] += row[t]


@compiled
def _map(matrix, bias, inputs, outputs, size):  # type: ignore[no-untyped-def]
    """outputs = matrix @ inputs + bias."""
    for i in range(matrix.shape[0]):
        y = outputs[i]
        y[:size] = bias[i]
        for j in range(0, matrix.shape[1], 4):
            m0, m1, m2, m3 = matrix[i, j], matrix[i, j + 1], matrix[i, j + 2], matrix[i, j + 3]
            x0, x1, x2, x3 = inputs[j], inputs[j + 1], inputs[j + 2], inputs[j + 3]
            for t in range(size):
                y[t] += m0 * x0[t] + m1 * x1[t] + m2 * x2[t] + m3 * x3[t]


@compiled
def _add_moments(left, right, sums, size):  # type: ignore[no-untyped-def]
    """sums += left @ right.T: in float64, but what one block adds in the precision of the block."""
    for i in range(0, sums.shape[0], 2):
        x, y = left[i], left[i + 1]
        for j in range(0, sums.shape[1], 4):
            r0, r1, r2, r3 = right[j], right[j + 1], right[j + 2], right[j + 3]
            x0 = x1 = x2 = x3 = y0 = y1 = y2 = y3 = left.dtype.type(0)
            for t in range(size):
                x0 += x[t] * r0[t]
                x1 += x[t] * r1[t]
                x2 += x[t] * r2[t]
                x3 += x[t] * r3[t]
                y0 += y[t] * r0[t]
                y1 += y[t] * r1[t]
                y2 += y[t] * r2[t]
                y3 += y[t] * r3[t]
            for k, one, other in ((j, x0, y0), (j + 1, x1, y1), (j + 2, x2, y2), (j + 3, x3, y3)):
                sums[i, k] += one
                sums[i + 1, k] += other


@compiled
def _add_totals(rows, sums, size):  # type: ignore[no-untyped-def]
    """sums += the sum of each row."""
    for i in range(len(sums)):
        row, total = rows[i], rows.dtype.type(0)
        for t in range(size):
            total += row[t]
        sums[i] += total


@compiled
def _begin(mixed, one_by, start, x, size):  # type: ignore[no-untyped-def]
    """Weighted sums, of which the last row is that of the weights, become means; x = start + mean."""
    weight, number = mixed[len(start)], mixed.dtype.type
    for t in range(size):
        one_by[t] = number(1) / weight[t]
    for i in range(len(start)):
        mean, whole, first = mixed[i], x[i], start[i]
        for t in range(size):
            mean[t] *= one_by[t]
            whole[t] = first + mean[t]


@compiled
def _begin_back(dx, one_by, mixed, width, size):  # type: ignore[no-untyped-def]
    """Means become the gradients of the sums that they were, and the last row that of the sum of weights."""
    weight = mixed[width]
    weight[:size] = 0
    for i in range(width):
        mean, slope = mixed[i], dx[i]
        for t in range(size):
            step = slope[t] * one_by[t]
            weight[t] -= step * mean[t]
            mean[t] = step


@compiled
def _normalize(x, s, root, mean, width, size):  # type: ignore[no-untyped-def]
    """s = (x − mean x)/√var x, 0/0 where all channels are equal, as torch's; `root` becomes 1/√var x."""
    number = x.dtype.type
    share = number(1) / number(width)
    mean[:size], root[:size] = number(0), number(0)
    for i in range(width):
        row = x[i]
        for t in range(size):
            mean[t] += row[t] * share
    for i in range(width):
        row, centred = x[i], s[i]
        for t in range(size):
            difference = row[t] - mean[t]
            centred[t] = difference
            root[t] += difference * difference * share
    for t in range(size):  # of squares that overflow the result would be finite and wrong
        root[t] = number(1) / np.sqrt(root[t]) if root[t] < number(np.inf) else number(np.nan)
    for i in range(width):
        centred = s[i]
        for t in range(size):
            centred[t] *= root[t]


@compiled
def _add_normalize_back(ds, s, root, dx, mean, along, width, size):  # type: ignore[no-untyped-def]
    """dx += (ds − mean ds − s·mean(ds·s))/√var x."""
    share = s.dtype.type(1) / s.dtype.type(width)
    mean[:size], along[:size] = 0, 0
    for i in range(width):
        w, n = ds[i], s[i]
        for t in range(size):
            mean[t] += w[t] * share
            along[t] += w[t] * n[t] * share
    for i in range(width):
        w, n, slope = ds[i], s[i], dx[i]
        for t in range(size):
            slope[t] += (w[t] - mean[t] - n[t] * along[t]) * root[t]


@compiled
def _rectify(rows, by, hidden, size):  # type: ignore[no-untyped-def]
    """0 where `by`, which may be the same, is not above 0; nan stays nan."""
    zero = rows.dtype.type(0)
    for i in range(hidden):
        row, sign = rows[i], by[i]
        for t in range(size):
            row[t] = zero if sign[t] <= zero else row[t]


@compiled
def _add(rows, outputs, width, size):  # type: ignore[no-untyped-def]
    for i in range(width):
        row, output = rows[i], outputs[i]
        for t in range(size):
            output[t] += row[t]


@compiled
def _softmax(scores, target, many, sums, top, classes, size):  # type: ignore[no-untyped-def]
    """Scores become their gradient, many·(softmax − 1 at the target); `sums` are those of exp(score − highest score).

    What is returned is Σ many·(highest score − that of the target): the loss without the logarithms of `sums`.
    """
    top[:size] = scores[0, :size]
    for k in range(1, classes):
        row = scores[k]
        for t in range(size):
            top[t] = row[t] if row[t] > top[t] else top[t]
    differences = 0.0
    for t in range(size):
        differences += many[t] * (top[t] - scores[target[t], t])
    sums[:size] = 0
    for k in range(classes):
        _exponentials(scores[k], top, sums, size)
    for t in range(size):
        top[t] = many[t] / sums[t]
    for k in range(classes):
        row = scores[k]
        for t in range(size):
            row[t] *= top[t]
    for t in range(size):
        scores[target[t], t] -= many[t]
    return differences


@compiled
def _multiple(count):  # type: ignore[no-untyped-def]
    return (count + 3) // 4 * 4


@compiled
def _wide(matrix):  # type: ignore[no-untyped-def]
    """With columns of zeros, up to a multiple of 4."""
    wide = np.zeros((matrix.shape[0], _multiple(matrix.shape[1])), matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    return wide


@compiled
def _sums(rows, columns):  # type: ignore[no-untyped-def]
    return np.zeros((_multiple(rows), _multiple(columns)))


@compiled
def _rows(count, like):  # type: ignore[no-untyped-def]
    """Zeros for a block, with rows up to a multiple of 4.

    Each row begins at a line of the cache: vectors across two lines take twice the time.
    """
    rows, line = _multiple(count), 64 // like.itemsize
    room = np.zeros(rows * STRIDE + line, like.dtype)
    begin = -(room.ctypes.data // like.itemsize) % line
    return room[begin : begin + rows * STRIDE].reshape(rows, STRIDE)


@compiled
def _places(counts):  # type: ignore[no-untyped-def]
    """For each class the sequences that have it, and how many these are."""
    samples, classes = counts.shape
    places, many = np.empty((classes, samples + 1), np.int32), np.zeros(classes, np.int64)
    for sequence in range(samples):
        for c in range(classes):
            places[c, many[c]] = sequence  # the next one's place, too, if it does not have the class
            many[c] += counts[sequence, c] > 0
    return places, many


@compiled
def _gather(counts, target, places, n, leading, many, c, size):  # type: ignore[no-untyped-def]
    """The counts of a block, and what leads; behind the last token it again, and there are none of it."""
    last = len(places) - 1
    for t in range(size):
        sequence = places[min(t, last)]
        leading[t] = target[sequence]
        for j in range(counts.shape[1]):
            n[j, t] = counts[sequence, j]
    many[: last + 1], many[last + 1 : size] = n[c, : last + 1], 0


@compiled
def _weighted(weights, values):  # type: ignore[no-untyped-def]
    """The matrix from counts to weighted sums of each channel and, in the last row, of the weights."""
    matrix = np.zeros((values.shape[1] + 1, len(weights)), values.dtype)
    for j in range(len(weights)):
        matrix[:-1, j], matrix[-1, j] = weights[j] * values[j], weights[j]
    return _wide(matrix)


@compiled
def _add_weighted_back(slopes, weights, values, d_weights, d_values):  # type: ignore[no-untyped-def]
    width = values.shape[1]
    for j in range(len(weights)):
        d_weights[j] += slopes[width, j]
        for i in range(width):
            d_weights[j] += slopes[i, j] * values[j, i]
            d_values[j, i] += slopes[i, j] * weights[j]


@compiled
def _summed(  # type: ignore[no-untyped-def]
    counts, target, weights, values, embedding, first, first_bias, second, second_bias
):
    """Sums over all tokens: the loss without logarithms; their arguments and factors; gradients of the tables."""
    (classes, width), hidden, like = embedding.shape, len(first_bias), values
    places, tokens = _places(counts)
    sums, many = np.empty(tokens.sum(), like.dtype), np.empty(tokens.sum(), like.dtype)
    zeros = np.zeros(max(classes, width + 1, hidden), like.dtype)
    first_back, second_back, scores_back = _wide(first.T.copy()), _wide(second.T.copy()), _wide(embedding.T.copy())
    first, second, scoring = _wide(first), _wide(second), _wide(embedding)
    d_first, d_second, d_scoring = _sums(hidden, width), _sums(width, hidden), _sums(classes, width)
    d_first_bias, d_second_bias, d_embedding = np.zeros(hidden), np.zeros(width), np.zeros((classes, width))
    d_weights, d_values = np.zeros((classes, classes)), np.zeros((classes, width))

    n, scores, mixed, others = _rows(classes, like), _rows(classes, like), _rows(width + 1, like), _rows(6, like)
    x, s, y, dx, ds = _rows(width, like), _rows(width, like), _rows(width, like), _rows(width, like), _rows(width, like)
    h, dh, leading = _rows(hidden, like), _rows(hidden, like), np.empty(STRIDE, np.int64)
    one_by, root, many_now, sums_now, one, other = others[0], others[1], others[2], others[3], others[4], others[5]
    differences, done = 0.0, 0
    for c in range(classes):
        attention, d_attention = _weighted(weights[c], values), _sums(width + 1, classes)
        for begin in range(0, tokens[c], BLOCK):
            end = min(begin + BLOCK, tokens[c])
            size = (end - begin + VECTORS - 1) // VECTORS * VECTORS
            _gather(counts, target, places[c, begin:end], n, leading, many_now, c, size)

            _map(attention, zeros, n, mixed, size)
            _begin(mixed, one_by, embedding[c], x, size)
            _normalize(x, s, root, one, width, size)
            _map(first, first_bias, s, h, size)
            _rectify(h, h, hidden, size)
            _map(second, second_bias, h, y, size)
            _add(x, y, width, size)
            _map(scoring, zeros, y, scores, size)
            differences += _softmax(scores, leading, many_now, sums_now, one, classes, size)
            sums[done : done + end - begin] = sums_now[: end - begin]
            many[done : done + end - begin] = many_now[: end - begin]
            done += end - begin

            _add_moments(scores, y, d_scoring, size)
            _map(scores_back, zeros, scores, dx, size)
            _add_totals(dx, d_second_bias, size)
            _add_moments(dx, h, d_second, size)
            _map(second_back, zeros, dx, dh, size)
            _rectify(dh, h, hidden, size)
            _add_totals(dh, d_first_bias, size)
            _add_moments(dh, s, d_first, size)
            _map(first_back, zeros, dh, ds, size)
            _add_normalize_back(ds, s, root, dx, one, other, width, size)
            _add_totals(dx, d_embedding[c], size)
            _begin_back(dx, one_by, mixed, width, size)
            _add_moments(mixed, n, d_attention, size)
        _add_weighted_back(d_attention, weights[c], values, d_weights[c], d_values)
    d_embedding += d_scoring[:classes, :width]
    of_maps = d_first[:hidden, :width], d_first_bias, d_second[:width, :hidden], d_second_bias
    return differences, sums, many, (d_weights, d_values, d_embedding, *of_maps)
