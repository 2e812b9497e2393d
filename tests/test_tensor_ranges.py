"""Every tensor of a traced call stays within its bounds: tiny architectures, and modules written to be mistaken."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from architectures import random_model
from normscope.errors import InputError
from normscope.models.example_inputs import example_inputs
from normscope.models.float64_run import evaluate
from normscope.models.subject import Subject
from normscope.studies.ranges import RangeSearch, ranges
from normscope.tensors.values import Value
from normscope.tensors.walk import Walk

LARGEST = float(torch.finfo(torch.float32).max)
STACKS = ("gate_up_proj", "down_proj", "input_linear.weight", "output_linear.weight")  # of experts
LOWEST = torch.finfo(torch.float16).min


class Bounds:
    """The bounds of every node of one traced call, by name."""

    def __init__(self, model, inputs, given=None):
        self.search = RangeSearch(Subject(model, inputs=inputs), "float32", LARGEST)
        walk = Walk(self.search.graph, self.search.stored, self.search.calls, given, sizes=self.search.sizes)
        self.values = {node.name: value for node, value in walk.steps() if isinstance(value, Value)}
        self.output = self.values.get(self.search.graph.nodes[-1].all_input_nodes[0].name)

    def broken(self, inputs):
        """Nodes that leave their bounds on other inputs of the same shapes, in float64, with the numbers."""
        program, found, others = self.search.graph.program, [], iter(inputs)
        program.example_inputs = pytree.tree_map(
            lambda leaf: next(others) if isinstance(leaf, torch.Tensor) else leaf, program.example_inputs
        )

        def watch(node, made):
            value = self.values.get(node.name)
            if value is None or not made.is_floating_point() or "empty" in node.name:  # it has no values yet
                return
            low, high = (torch.from_numpy(np.asarray(each))[value.unit] for each in (value.low, value.high))
            made = made.double()
            slack = 1e-9 * (1 + low.abs().clamp(max=1e300) + high.abs().clamp(max=1e300))
            above, below = ~(made <= high + slack), ~(made >= low - slack)
            wrong = made.isfinite() & (above | (below & (not value.masked)))
            if wrong.any():
                found.append((node.name, float(made[wrong][0]), float(low[wrong][0]), float(high[wrong][0])))

        evaluate(program, self.search.stored, watch)
        return found


# ---- architectures -----------------------------------------------------------------------------------------------

NAMES = ["gpt2", "bert", "llama", "gemma2", "gemma3_text", "qwen3", "olmo2", "mixtral", "gpt_oss", "deepseek_v3", "t5",
         "vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("phi", "modernbert", "opt"))]  # fmt: skip
BOTH = ["gpt2", "llama"]  # with weights of two sizes; the others with large ones


def drawn(model, length=8, seed=0):
    """Random inputs of a model of transformers: tokens, masks with nothing hidden, pixels from -1 to 1."""
    rng, made = torch.Generator().manual_seed(seed), {}
    for name, value in example_inputs(model).items():
        if value.is_floating_point():
            made[name] = 2 * torch.rand(value.shape, generator=rng) - 1
        elif "mask" in name:
            made[name] = torch.ones(2, length, dtype=value.dtype)
        else:
            made[name] = torch.randint(3, 50, (2, length), generator=rng)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_an_architecture_stays_within_its_bounds(name):
    model = random_model(name)
    for scale in (1.0, 30.0) if name in BOTH else (30.0,):
        for parameter in model.parameters():
            parameter.data *= scale
        bounds = Bounds(model, drawn(model), {"pixel_values": (-1.0, 1.0)})
        assert np.isfinite(bounds.output.low).all()
        for seed in range(3):
            assert bounds.broken(list(drawn(model, seed=seed).values())) == []


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "mixtral",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("llama", "gemma3_text", "t5", "modernbert", "opt", "whisper")
        ),
    ],
)
def test_bounds_do_not_depend_on_the_length_of_the_traced_call(name):
    model = random_model(name)
    short, long = (Bounds(model, drawn(model, length)).values for length in (8, 15))
    assert short.keys() == long.keys()
    for node in short:
        assert np.allclose(short[node].hull(), long[node].hull(), rtol=1e-9, atol=1e-12), node


# ---- ascent ------------------------------------------------------------------------------------------------------


def pushed(module, bounds, shape, steps=60, seed=0):
    """The largest share of the bounds of its output that ascent on the input of a module reaches, over all channels."""
    torch.manual_seed(seed)
    module = module.double()
    low, high = (
        torch.from_numpy(np.asarray(each))[bounds.output.unit] for each in (bounds.output.low, bounds.output.high)
    )
    middle, half = (low + high) / 2, ((high - low) / 2).clamp(min=1e-3)
    reached = 0.0
    for sign in (1.0, -1.0):
        x = torch.randn(shape, dtype=torch.float64).requires_grad_()
        descent = torch.optim.Adam([x], lr=0.1)
        for _ in range(steps):
            share = sign * (module(x) - middle) / half
            reached = max(reached, float(share.detach().max()))
            descent.zero_grad()
            (-share.amax(dim=-1).sum()).backward()
            descent.step()
    return reached


MIXTURES = {  # the share of their bounds that ascent reaches at least; clamped or scaled inputs leave intervals alone
    "mixtral": 0.4, "qwen3_moe": 0.5, "deepseek_v3": 0.5, "granitemoe": 0.5, "olmoe": 0.5, "gpt_oss": 0.05,
    "llama4_text": 0.005,
}  # fmt: skip


@pytest.mark.parametrize("name", MIXTURES)
def test_ascent_stays_within_the_bounds_of_a_mixture_of_experts_and_nears_them(name):
    model = random_model(name)
    found = ranges(model)
    layer = model.model.layers[1]
    path, mixture = next((path, module) for path, module in layer.named_children() if "mlp" in path or "feed" in path
                         or "moe" in path)  # fmt: skip
    branch = [row for row in found.tensors if row.layer.startswith("model.layers.1") and row.what == "branch"][-1]
    stacks = [row for row in found.layers if row.layer.startswith(f"model.layers.1.{path}.")
              and row.layer.endswith(STACKS) and "shared" not in row.layer]  # fmt: skip
    assert len(stacks) == 2
    assert all(row.bounded for row in (branch, *stacks))
    model.double()
    if name != "llama4_text":  # which has one implementation, that knows float64
        model.set_experts_implementation("eager")
    low, high = torch.tensor(branch.lows), torch.tensor(branch.highs)
    middle, half = (low + high) / 2, (high - low) / 2
    torch.manual_seed(0)
    x = torch.randn(1, 2 * len(low), len(low), dtype=torch.float64).requires_grad_()  # a token for every end
    signs = torch.cat([torch.eye(len(low)), -torch.eye(len(low))]).double()
    climber, reached = torch.optim.Adam([x], lr=0.1), 0.0
    for _ in range(100):
        made = mixture(layer.post_attention_layernorm(x))
        made = (made[0] if isinstance(made, tuple) else made).reshape(-1, len(low))
        shares = (made - middle) / half
        reached = max(reached, float(shares.detach().abs().max()))
        climber.zero_grad()
        (-(shares * signs).sum()).backward()
        climber.step()
    assert MIXTURES[name] < reached <= 1 + 1e-9


def test_rows_of_experts_include_their_biases():
    model = random_model("gpt_oss").double()
    layer, name = model.model.layers[0], "model.layers.0.mlp.experts.gate_up_proj"
    (row,) = (row for row in ranges(model, tight=0).layers if row.layer == name)
    torch.manual_seed(0)
    normed = layer.post_attention_layernorm(torch.randn(20000, 16, dtype=torch.float64) ** 3)
    made = torch.einsum("td,edf->tef", normed, layer.mlp.experts.gate_up_proj) + layer.mlp.experts.gate_up_proj_bias
    low, high = torch.tensor(row.lows), torch.tensor(row.highs)
    reached = (2 * made - low - high) / (high - low)
    assert 0.8 < reached.abs().max() <= 1


class Case(nn.Module):
    """A norm, three layers and a table of numbers, put together by a function of them and the input."""

    def __init__(self, made, table=None, size=6):
        super().__init__()
        self.made, self.norm = made, nn.LayerNorm(size)
        self.a, self.b, self.c = (nn.Linear(size, size) for _ in range(3))
        rng = torch.Generator().manual_seed(1)
        for parameter in self.parameters():
            parameter.data = 0.7 * torch.randn(parameter.shape, generator=rng)
        self.table = nn.Parameter(torch.arange(1.0, 7.0) if table is None else torch.as_tensor(table))
        self.register_buffer("frequencies", torch.tensor([1.0, 0.3, 0.1, 0.7, 0.5, 0.9]))

    def forward(self, x):
        return self.made(self, x, self.norm(x))


def inputs_of(shape, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng) * [1.0, 0.01, 30.0][seed % 3]


def angles(m, x, count=3):
    return torch.arange(x.shape[1])[:, None] * m.frequencies[:count]


def rotated(y, angle):
    x, z, cos, sin = y[..., :3], y[..., 3:], angle.cos(), angle.sin()
    return torch.cat([x * cos - z * sin, z * cos + x * sin], -1)


def attended(m, y, mask=None):
    q, k, v = (layer(y)[:, None] for layer in (m.a, m.b, m.c))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]


REACHED = {
    "a layer": (lambda m, x, y: m.a(y), 0.999),
    "relu neurons": (lambda m, x, y: m.b(F.relu(m.a(y))), 0.7),
    "gated neurons": (lambda m, x, y: m.c(F.silu(m.a(y)) * m.b(y)), 0.5),
    "attention": (lambda m, x, y: attended(m, y), 0.8),
    "rotated queries": (lambda m, x, y: rotated(m.a(y), angles(m, x)), 0.9),
    "scores": (lambda m, x, y: m.a(y) @ m.b(y).transpose(1, 2), 0.7),
    "rotated scores": (lambda m, x, y: rotated(m.a(y), angles(m, x)) @ rotated(m.b(y), angles(m, x)).mT, 0.4),
    "a branch beside a norm": (lambda m, x, y: y + attended(m, y), 0.5),
}


@pytest.mark.parametrize("name", REACHED)
def test_ascent_comes_near_to_a_bound_and_never_passes_it(name):
    made, least = REACHED[name]
    module = Case(made)
    reached = pushed(module, Bounds(module, torch.randn(1, 8, 6)), (1, 8, 6))
    assert least <= reached <= 1 + 1e-9


def test_extreme_rows_of_an_embedding_stay_within_the_bounds_of_embedding_and_stream():
    model = random_model("llama")
    rng = torch.Generator().manual_seed(0)
    table = model.model.embed_tokens.weight.data
    table[:] = torch.randn(table.shape, generator=rng) * 10.0 ** torch.randint(-6, 7, table.shape, generator=rng)
    bounds = Bounds(model, drawn(model))
    for seed in range(4):
        assert bounds.broken(list(drawn(model, seed=seed).values())) == []


# ---- modules that could be mistaken ------------------------------------------------------------------------------


def viewed_then_changed(m, x, y):
    view = y.view(8, 6)
    y.mul_(100)
    return view + 0


def neighbour_changed(m, x, y):
    first, second = y[:, :4], y[:, 2:]
    first.mul_(100)
    return second + 0


def parts_of_changed(m, x, y):
    first, second = y.chunk(2, -1)
    y.mul_(100)
    return first + second


def scaled_after_change(m, x, y):
    copy = x.clone()
    root = torch.rsqrt((copy**2).mean(-1, keepdim=True) + 1e-6)
    copy[:, :2] = 1e4 * m.table
    return copy * root


def divided_after_change(m, x, y):
    positive = torch.exp(5 * y)
    total = positive.sum(-1, keepdim=True)
    positive.view(-1).mul_(100)
    return positive / total


def index_changed(m, x, y):
    index = torch.tensor([0, 1, 2, 3, 4, 5])
    view = index.view(2, 3)
    index.copy_(torch.tensor([5, 5, 5, 5, 5, 5]))
    return (y * 10**m.table)[..., view]


def order_of(x):
    return torch.sort(x[0].argmax(-1))[1]


def back(order):
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(8)
    return inverse


def exchanged_in_order(m, x, y):
    order, exchange = order_of(x), torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])
    return F.relu(m.a(y[0][order][exchange][back(order)])) * m.b(y[0][exchange])


def repeated_topk(m, x, y):
    weights = torch.softmax(9 * y, -1)
    return torch.topk(torch.cat([weights, weights], -1), 4, -1)[0].unsqueeze(-2) @ torch.ones(1, 8, 4, 1)


def false_pairs(m, x, y):
    """Looks like a rotation of a(y), but the other channels come from another layer."""
    q, other, angle = m.a(y), 20 * m.b(y), angles(m, x)
    first = q[..., :3] * angle.cos() - other[..., 3:] * angle.sin()
    second = q[..., 3:] * angle.cos() + other[..., :3] * angle.sin()
    return torch.cat([first, second], -1) @ m.c(y).mT


def unturned_signs(m, x, y):
    q = torch.cat([rotated(y, angles(m, x)), y], -1)
    signs = torch.cat([m.table, m.table * m.table.new_tensor([-1, 1, -1, 1, 1, -1])])
    return (q * signs)[..., 6:] @ y.mT


def once_changed(act):
    """A sum of two neurons that cancels for the activation, and for large values not for what replaces it."""
    return lambda m, x, y: act(40 * m.a(y)) - 0.5 * act(80 * m.a(y))


def masked(y, x, low=float("-inf")):
    return (y + 9).masked_fill(x > 0, low)


CASES = {
    # constants
    "cosine of a constant": lambda m, x, y: y * torch.cos(m.table),
    "gelu of a constant": lambda m, x, y: y * F.gelu(m.table),
    "scalar tensor": lambda m, x, y: y * torch.scalar_tensor(7.0),
    "new_full": lambda m, x, y: y * y.new_full((6,), 7.0),
    "difference with a factor": lambda m, x, y: torch.sub(y, m.a(y), alpha=5),
    "reversed difference with a factor": lambda m, x, y: torch.rsub(y, 3.0, alpha=5),
    "reversed bias of a convolution": lambda m, x, y: F.conv1d(y.mT, m.a.weight[:, :, None], 1000 * m.table.flip(0)),
    "convolution of padded values": lambda m, x, y: F.conv1d(
        y.mT + 50, m.a.weight[:, :, None].expand(6, 6, 3), padding=2
    ),
    "padded with a number": lambda m, x, y: F.pad(y, (1, 1), value=50.0),
    "a weight that is the lowest number": lambda m, x, y: y + torch.cat([m.table, m.table])[3:9] * LOWEST,
    # the larger, sorted, largest
    "larger of two": lambda m, x, y: torch.max(y, 10 * m.a(y)),
    "smaller of two": lambda m, x, y: torch.min(y, 10 * m.a(y)),
    "sorted along tokens": lambda m, x, y: torch.sort(y * torch.linspace(1, 9, 8)[:, None], dim=1)[0],
    "sorted along channels": lambda m, x, y: torch.sort(y * m.table, dim=-1)[0],
    "largest along tokens": lambda m, x, y: torch.topk(y.transpose(0, 1) * m.table, 3, dim=0)[0],
    # masks
    "masked, then relu": lambda m, x, y: F.relu(masked(y, x)),
    "masked, then tanh": lambda m, x, y: torch.tanh(masked(y, x)),
    "masked, then clamped": lambda m, x, y: torch.clamp(masked(y, x), min=-5.0),
    "masked, then the larger": lambda m, x, y: torch.maximum(masked(y, x), torch.full((), -100.0)),
    "masked, then negative": lambda m, x, y: -masked(y, x, LOWEST),
    "masked, then a layer": lambda m, x, y: m.a(masked(y, x, LOWEST)),
    "masked, then a mean": lambda m, x, y: torch.softmax(y @ y.mT, -1) @ masked(y, x, LOWEST),
    "masked, then a sum": lambda m, x, y: masked(y, x, LOWEST).sum(-1),
    "masked, then scaled": lambda m, x, y: masked(y, x, LOWEST) * torch.sigmoid(x),
    "masked, then turned": lambda m, x, y: F.relu(masked(y, x, LOWEST) * -0.5),
    "rows that see nothing": lambda m, x, y: attended(m, y + 100, torch.full((8, 8), float("-inf")).triu()),
    "attention with dropout": lambda m, x, y: F.scaled_dot_product_attention(y, y, y, dropout_p=0.5),
    # weights of a mean
    "softmax over tokens, largest channels": lambda m, x, y: (
        torch.topk(torch.softmax(50 * y, 1), 3, -1)[0][..., None, :] @ torch.ones(1, 8, 3, 1)
    ),
    "weights twice": repeated_topk,
    "softmax over tokens, mean over channels": lambda m, x, y: torch.softmax(50 * y, 1) @ torch.ones(1, 6, 6),
    "weights squared": lambda m, x, y: (torch.softmax(50 * y, -1) ** 2 * y).sum(-1),
    "some of the weights": lambda m, x, y: torch.softmax(y @ y.mT, -1)[..., :4] @ (y + 9)[:, :4],
    "over sums of other rows": lambda m, x, y: (
        torch.exp(5 * y)[:, :6] / torch.exp(5 * y)[:, :6].sum(-1, keepdim=True).mT
    ),
    "over rolled sums": lambda m, x, y: torch.exp(5 * y) / torch.exp(5 * y).sum(-1, keepdim=True).roll(1, 1),
    "over sums of another": lambda m, x, y: torch.exp(5 * y) / torch.exp(m.a(y)).sum(-1, keepdim=True),
    # roots of means of squares
    "root over tokens": lambda m, x, y: x[:, :6] * torch.rsqrt((x[:, :6] ** 2).mT.mean(-1, keepdim=True)),
    "root of a mean of one": lambda m, x, y: x * torch.rsqrt((x**2).mean(-1, keepdim=True).mean(-1, keepdim=True)),
    "root of a root": lambda m, x, y: x * torch.rsqrt(torch.rsqrt((x**2).mean(-1, keepdim=True))),
    "root of other tokens": lambda m, x, y: x * torch.rsqrt((x**2).mean(-1, keepdim=True)).roll(1, 1),
    "root of another": lambda m, x, y: x * torch.rsqrt((m.a(x) ** 2).mean(-1, keepdim=True)),
    # in place
    "view of what is changed": viewed_then_changed,
    "neighbour of what is changed": neighbour_changed,
    "parts of what is changed": parts_of_changed,
    "scaled by what it was": scaled_after_change,
    "divided by what it was": divided_after_change,
    "index that is changed": index_changed,
    "activations in place": lambda m, x, y: m.c(F.relu_(m.a(y)) * m.b(y)) + m.c(F.silu(m.b(y), inplace=True)),
    # places
    "gate of the token before": lambda m, x, y: F.relu(m.a(y)[:, 1:]) * m.b(y)[:, :-1],
    "gate of a rolled token": lambda m, x, y: F.relu(m.a(y)) * m.b(y).roll(1, 1),
    "gate of a reversed token": lambda m, x, y: F.silu(m.a(y)) * m.b(y).flip(1),
    "product with its transpose": lambda m, x, y: y[:, :6] * y[:, :6].mT,
    "scores of one layer": lambda m, x, y: m.a(y) @ m.a(y).mT,
    "a branch and the stream": lambda m, x, y: y + torch.tanh(x) * m.table,
    "mean over tokens": lambda m, x, y: m.a(y.mean(1)),
    "sums of tokens so far": lambda m, x, y: m.a(y.cumsum(1)),
    # unknown orders
    "part of an order": lambda m, x, y: F.relu(m.a(y[0][order_of(x)[:4]])) * m.b(y[0, :4]),
    "half of an order": lambda m, x, y: F.relu(m.a(y[0][order_of(x).chunk(2)[0]])) * m.b(y[0, :4]),
    "stacked, then put back": lambda m, x, y: torch.stack([100 * y[0][order_of(x)], y[0][order_of(x)]])[
        back(order_of(x)) % 2
    ],
    "sorted beside unsorted": lambda m, x, y: F.relu(m.a(y[0][order_of(x)])) * m.b(y[0]),
    "sorted joined to unsorted": lambda m, x, y: torch.cat([y[0][order_of(x)], y[0]], -1) @ torch.eye(6).repeat(2, 1),
    "reversed, then put back": lambda m, x, y: F.relu(m.a(y[0][order_of(x)].flip(0)[back(order_of(x))])) * m.b(y[0]),
    "exchanged, then put back": exchanged_in_order,
    "orders mixed": lambda m, x, y: F.relu(y[0][order_of(x)]) * m.b(y[0][(order_of(x) + torch.arange(8)) // 2]),
    "orders added up": lambda m, x, y: F.relu(y[0][order_of(x)]) * m.b(y[0][order_of(x).cumsum(0) % 8]),
    "put back": lambda m, x, y: F.relu(m.a(y[0][order_of(x)][back(order_of(x))])) * m.b(y[0]),
    # rotations
    "rotated twice": lambda m, x, y: rotated(rotated(y, angles(m, x)), angles(m, x)),
    "false pairs": false_pairs,
    "pairs of the wrong sign": lambda m, x, y: rotated(y, angles(m, x)).flip(-1) @ rotated(y.flip(-1), angles(m, x)).mT,
    "signs of what is not turned": unturned_signs,
    # activations
    "softplus that is hardly bent": lambda m, x, y: F.softplus(0.01 * y, beta=0.1),
    "not quite quick gelu": lambda m, x, y: m.b(m.a(y) * torch.sigmoid(1.7 * m.a(y))),
    "not gelu": lambda m, x, y: m.b(0.5 * m.a(y) * (1 + torch.tanh(m.a(y)))),
    "relu up to 30": once_changed(lambda t: F.relu(t.clamp(max=30.0))),
    "silu up to 30": once_changed(lambda t: F.silu(t.clamp(max=30.0))),
}


def phases(m, x, size=1.0):
    """Phases of positions, as complex numbers, one for each pair of channels."""
    angle = angles(m, x)
    return torch.polar(torch.full_like(angle, size), angle)


def turned_as_complex(y, phase):
    pairs = torch.view_as_complex(y.reshape(*y.shape[:-1], 3, 2))
    return torch.view_as_real(pairs * phase[None]).flatten(2)


def split_key(m, x, y):
    """A key of two parts as in latent attention: from a second norm, and rotated from the first."""
    latent = F.layer_norm(m.a(y), (6,), weight=m.table)
    return torch.cat([m.b(latent), rotated(m.c(y), angles(m, x))], -1)


def written_key(m, x, y):
    """The same key, written to an empty tensor part by part."""
    key, whole = split_key(m, x, y), y.new_empty(*x.shape[:2], 12)
    whole[..., 6:] = key[..., 6:]
    whole[..., :6] = key[..., :6]
    return whole


def written_twice(m, x, y):
    whole = y.new_empty(y.shape)
    whole[..., :3] = y[..., :3]
    whole[..., 3:] = y[..., 3:]
    whole[..., 2:4] = 100 * m.a(y)[..., :2]
    return whole + 0


def hardly_written(m, x, y):
    whole = y.new_zeros(1).new_empty(y.shape)
    whole[..., :3] = y[..., :3]
    whole.mul_(0)
    whole[..., 3:] = y[..., 3:]
    return torch.nan_to_num(whole, 0.0, 0.0, 0.0) + 0


def changed_after_writing(m, x, y):
    whole = y.new_empty(y.shape)
    whole[..., :3] = y[..., :3]
    whole[..., 3:] = y[..., 3:]
    whole[..., :2].mul_(100)
    return whole + 0


def written_up_to_eight(m, x, y):
    whole = y.new_empty(y.shape)
    whole[:, :8] = y[:, :8]
    whole[:, 8:] = 1e6 * y[:, 8:]
    return whole + 0


UNDERSTOOD = {  # bounded, though the operation is none of the usual ones
    "group norm": lambda m, x, y: F.group_norm(x.view(-1, 6), 2, m.table, -m.table),
    "group norm without a gain": lambda m, x, y: F.group_norm(x.view(-1, 6), 3),
    "largest over channels": lambda m, x, y: (y * m.table).amax(-1),
    "smallest over tokens and channels": lambda m, x, y: (y * m.table).amin((1, 2), keepdim=True),
    "largest along an axis": lambda m, x, y: (y * m.table).max(-1).values,
    "largest of all": lambda m, x, y: (y * m.table).max(),
    "log of a sum": lambda m, x, y: (100 * y * m.table).logsumexp(-1),
    "log of a sum of two axes": lambda m, x, y: m.a(y).view(*x.shape[:2], 3, 2).logsumexp((-1, -2), keepdim=True),
    "larger of two": lambda m, x, y: torch.maximum(m.a(y), 10 * m.b(y)),
    "smaller of a value and a bound": lambda m, x, y: torch.minimum(x.abs(), m.table),
    "limited by tensors": lambda m, x, y: torch.clamp(x, m.a(y), m.a(y) + m.table),
    "limited by crossing tensors": lambda m, x, y: torch.clamp(x, m.a(y), m.b(y)),
    "limited below by a tensor": lambda m, x, y: torch.clamp(y, min=m.table - 3),
    "limited above by a tensor": lambda m, x, y: torch.clamp_max(torch.clamp_min(x, m.b(y)), m.table),
    "variance": lambda m, x, y: (y * m.table).var(-1),
    "variance over tokens": lambda m, x, y: (y * m.table).var(1),
    "variance without a correction": lambda m, x, y: (y * m.table).var(-1, correction=0, keepdim=True),
    "deviation": lambda m, x, y: m.a(y).std((1, 2)),
    "deviation and mean": lambda m, x, y: torch.cat(torch.std_mean(m.a(y), -1, keepdim=True), -1),
    "phases": lambda m, x, y: turned_as_complex(m.a(y), phases(m, x)),
    "phases with a factor": lambda m, x, y: turned_as_complex(m.a(y), 3 * phases(m, x, 5.0)),
    "scores of phases": lambda m, x, y: (
        turned_as_complex(m.a(y), phases(m, x)) @ turned_as_complex(m.b(y), phases(m, x)).mT
    ),
    "phases of a real part": lambda m, x, y: (torch.view_as_complex(m.a(y).reshape(1, 8, 3, 2)) * phases(m, x)).real,
    "scores of a key that is written in parts": lambda m, x, y: (
        torch.cat([m.c(y), rotated(m.a(y), angles(m, x))], -1) @ written_key(m, x, y).mT
    ),
    "scattered": lambda m, x, y: torch.zeros_like(y).scatter(-1, x.argmax(-1, keepdim=True), m.a(y)[..., :1]),
    "scattered beside a mask": lambda m, x, y: torch.sigmoid(
        torch.full_like(y, float("-inf")).scatter_(-1, *reversed(torch.topk(m.a(y), 2, -1)))
    ),
    "scores of a key of two parts": lambda m, x, y: (
        torch.cat([m.c(y), rotated(m.a(y), angles(m, x))], -1) @ split_key(m, x, y).mT
    ),
}
CASES |= UNDERSTOOD | {
    "parts written twice": written_twice,
    "parts written, then changed": changed_after_writing,
    "parts changed between": hardly_written,
    "phases of another position": lambda m, x, y: turned_as_complex(m.a(y), phases(m, x) * phases(m, x).flip(0)),
    "phases that are no phases": lambda m, x, y: turned_as_complex(
        m.a(y), torch.view_as_complex(torch.stack([m.table[:3] * x[0, :, :3], y[0, :, :3]], -1))
    ),
    "one over a deviation": lambda m, x, y: y / m.a(y).std(-1, keepdim=True),
    "group norm over positions": lambda m, x, y: F.group_norm(x.mT, 2, m.table),
}


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_an_unusual_operation_is_bounded_and_ascent_stays_within(name):
    module = Case(UNDERSTOOD[name])
    bounds = Bounds(module, torch.randn(1, 8, 6))
    assert np.isfinite(bounds.output.hull()).all(), bounds.output.why
    assert pushed(module, bounds, (1, 8, 6), steps=30) <= 1 + 1e-9


@pytest.mark.parametrize("name", ["variance", "deviation of one", "log of a sum", "group norm"])
def test_what_grows_with_the_number_of_tokens_has_no_bound(name):
    made = {
        "variance": lambda m, x, y: x.var(1),
        "deviation of one": lambda m, x, y: y[:, :1].std(1),
        "log of a sum": lambda m, x, y: y.logsumexp(1),
        "group norm": lambda m, x, y: F.group_norm(x.mT, 2, m.table),
    }[name]
    found = Bounds(Case(made), torch.randn(1, 8, 6)).output
    assert not np.isfinite(found.high).any()
    assert found.why


def test_phases_bound_a_channel_by_the_length_of_its_pair():
    """Complex rotary embeddings get the bounds of the same rotation in real numbers."""
    order, back_again = torch.tensor([0, 2, 4, 1, 3, 5]), torch.tensor([0, 3, 1, 4, 2, 5])

    def real(m, x, y):
        turned = rotated(m.a(y)[..., order], angles(m, x))
        return turned[..., back_again]

    one, other = (Bounds(Case(made), torch.randn(1, 8, 6)).output for made in (real, UNDERSTOOD["phases"]))
    channels = [value.high[value.unit[0, 0].numpy()] for value in (one, other)]
    assert np.allclose(*channels, rtol=1e-12)


def test_scores_of_a_key_of_two_parts_are_bounded_part_by_part():
    found, written = (
        Bounds(Case(UNDERSTOOD[f"scores of a key {how}"]), torch.randn(1, 8, 6)).output
        for how in ("of two parts", "that is written in parts")
    )
    assert np.allclose(found.hull(), written.hull(), rtol=1e-12)
    one = Bounds(Case(lambda m, x, y: m.c(y) @ split_key(m, x, y)[..., :6].mT), torch.randn(1, 8, 6)).output
    two = Bounds(Case(lambda m, x, y: rotated(m.a(y), angles(m, x)) @ rotated(m.c(y), angles(m, x)).mT),
                 torch.randn(1, 8, 6)).output  # fmt: skip
    assert found.high.max() <= (one.high.max() + two.high.max()) * (1 + 1e-9)


@pytest.mark.parametrize("name", CASES)
def test_a_module_that_could_be_mistaken_stays_within_its_bounds(name):
    module = Case(CASES[name])
    bounds = Bounds(module, torch.randn(1, 8, 6))
    for seed in range(6):
        assert bounds.broken([inputs_of((1, 8, 6), seed)]) == []


ANGLES = {
    "other frequencies": lambda a, m, x: (a[:, :3] * 1.0, a[:, 3:] * 1.0),
    "twice the angle": lambda a, m, x: (a[:, :3], torch.add(torch.zeros(1), a[:, :3], alpha=2.0)),
    "reversed positions": lambda a, m, x: (a[:, :3], a[:, :3].flip(0)),
    "half the positions": lambda a, m, x: (a[:, :3], (torch.arange(8) // 2)[:, None] * m.frequencies[:3]),
    "positions that end at 7": lambda a, m, x: (a[:, :3], torch.arange(8).clamp(max=7)[:, None] * m.frequencies[:3]),
    "shifted": lambda a, m, x: (a[:, :3], a[:, :3] + 0.5),
}


@pytest.mark.parametrize("name", ANGLES)
def test_cosine_and_sine_of_different_angles_are_no_rotation(name):
    def made(m, x, y):
        one, other = ANGLES[name](angles(m, x, 6), m, x)
        return y[..., :3] * one.cos() + y[..., 3:] * other.sin()

    module = Case(made)
    bounds = Bounds(module, torch.randn(1, 8, 6))
    # Both can be ±1 at some position, so nothing less than the sum of both ranges holds for all positions.
    y = bounds.values["layer_norm"]
    size = np.maximum(np.abs(y.low), np.abs(y.high))
    assert (bounds.output.high >= (size[:3] + size[3:]) * (1 - 1e-9)).all()
    assert pushed(module, bounds, (1, 8, 6)) <= 1 + 1e-9


# ---- norms and graphs at the edge --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 10.0])
def test_small_norms_of_any_eps_stay_within_their_bounds(size, eps):
    model = nn.Sequential(nn.LayerNorm(size, eps=eps), nn.Linear(size, 4), nn.GELU(), nn.Linear(4, size))
    bounds = Bounds(model, torch.randn(1, 8, size))
    for seed in range(4):
        assert bounds.broken([inputs_of((1, 8, size), seed)]) == []


def test_a_zero_gain_leaves_the_bias_alone():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6))
    model[0].weight.data.zero_()
    bounds = Bounds(model, torch.randn(1, 8, 6))
    assert np.allclose(bounds.output.low, bounds.output.high)
    assert bounds.broken([inputs_of((1, 8, 6), 0)]) == []


def test_a_norm_that_is_called_twice_has_two_directions():
    module = Case(lambda m, x, y: F.relu(m.a(y)) * m.b(m.norm(x.flip(1))))
    bounds = Bounds(module, torch.randn(1, 8, 6))
    assert pushed(module, bounds, (1, 8, 6)) <= 1 + 1e-9


def test_layers_that_are_shared_stay_within_their_bounds():
    import transformers

    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        vocab_size=50,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
    )
    model = transformers.AlbertModel(config).eval()
    bounds = Bounds(model, drawn(model))
    for seed in range(3):
        assert bounds.broken(list(drawn(model, seed=seed).values())) == []


def test_a_graph_without_norms_says_why_nothing_is_bounded():
    found = Bounds(nn.Sequential(nn.Linear(6, 6)), torch.randn(1, 8, 6)).output
    assert not np.isfinite(found.low).any()
    assert "range of the input" in found.why


@pytest.mark.parametrize("name", ["a.weight", "a.bias", "table"])
def test_weights_that_are_no_numbers_are_refused(name):
    module = Case(lambda m, x, y: m.a(y) + m.table)
    module.get_parameter(name).data.view(-1)[0] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        Bounds(module, torch.randn(1, 8, 6))


def test_weights_in_bfloat16_are_bounded_as_they_are():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)).bfloat16()
    bounds = Bounds(model, torch.randn(1, 8, 6).bfloat16())
    assert bounds.broken([inputs_of((1, 8, 6), 0)]) == []


@pytest.mark.parametrize(
    "sum_of", [lambda y: y.sum(1), lambda y: y.mT @ y, lambda y: (torch.softmax(y @ y.mT, -1) + 0.5) @ y]
)
def test_a_sum_over_tokens_has_no_bound(sum_of):
    found = Bounds(Case(lambda m, x, y: sum_of(y)), torch.randn(1, 8, 6)).output
    assert np.isinf(found.high).any()
    assert "any number" in found.why


def test_a_buffer_that_is_changed_in_place_is_not_read_as_it_was():
    def made(m, x, y):
        m.frequencies.mul_(3.0)
        return y * m.frequencies

    bounds = Bounds(Case(made), torch.randn(1, 8, 6))
    assert bounds.broken([inputs_of((1, 8, 6), 0)]) == []


def test_rows_of_a_table_beyond_those_of_the_traced_call_count():
    module = Case(lambda m, x, y: y + m.table[: x.shape[1], None], table=torch.tensor([0.0] * 8 + [1000.0]))
    found = Bounds(module, torch.randn(1, 8, 6)).output
    assert found.high.max() > 1000


def test_positions_counted_backwards_have_no_least():
    module = Case(lambda m, x, y: y + (10 - torch.arange(x.shape[1]))[:, None])
    assert np.isinf(Bounds(module, torch.randn(1, 8, 6)).output.low).any()


def test_positions_counted_by_a_sum_have_no_largest():
    module = Case(lambda m, x, y: y + torch.ones(x.shape[1], dtype=torch.int64).cumsum(0)[:, None])
    assert np.isinf(Bounds(module, torch.randn(1, 8, 6)).output.high).any()


def test_an_operation_in_place_leaves_the_buffers_of_a_model_alone():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(6)
            self.register_buffer("index", torch.arange(6))

        def forward(self, x):
            index = self.index[:6]
            return self.norm(x)[..., index.clone().add_(0)]

    model = Shifted()
    Bounds(model, torch.randn(1, 8, 6))
    assert torch.equal(model.index, torch.arange(6))


def test_a_model_that_cannot_be_traced_in_half_precision_makes_no_noise(capfd):
    subject = Subject(random_model("bart"))
    assert subject.held_otherwise("float16") == frozenset()
    assert capfd.readouterr().err == ""
