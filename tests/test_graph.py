import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

from normscope.errors import TraceError
from normscope.models.example_inputs import example_inputs
from normscope.models.float64_run import run_between
from normscope.models.graph import LinearReader, trace
from normscope.models.graph_operations import kind_of
from tiny_models import CONFIGS, build


@cache
def traced(architecture, attention="eager"):
    model = build(architecture, attention)
    return model, trace(model, example_inputs(model))


def norms_of(model):
    return [name for name, module in model.named_modules() if "norm" in type(module).__name__.lower()]


def linears_of(model):
    return [name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")]


def watched(model):
    """Inputs and outputs of every module in one call: name -> list of (input, output)."""
    seen = {}

    def hook(name):
        def remember(_, args, output):
            if args and isinstance(args[0], torch.Tensor) and isinstance(output, torch.Tensor):
                seen.setdefault(name, []).append((args[0], output))

        return remember

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules()]
    options = {} if isinstance(model, transformers.ViTModel) else {"use_cache": False}
    with torch.no_grad():
        model.eval()(**example_inputs(model), **options)
    for handle in handles:
        handle.remove()
    return seen


def rows(tensor):
    return {row.numpy().tobytes() for row in tensor.reshape(-1, tensor.shape[-1])}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_linear_readers_are_the_layers_that_are_given_the_very_rows_the_norm_gave(architecture, attention):
    model, graph = traced(architecture, attention)
    seen = watched(model)
    for norm in norms_of(model):
        written = rows(seen[norm][0][1])
        given = {name for name in linears_of(model) if name in seen and rows(seen[name][0][0]) <= written}
        assert {reader.name for reader in graph.linear_readers(norm)} == given
    assert {layer.name for layer in graph.linear_layers()} == set(linears_of(model)) & set(seen)


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "t5", "qwen3", "olmo2", "phi"])
def test_what_a_norm_reads_adds_up_to_its_input(architecture):
    model, graph = traced(architecture)
    seen = watched(model)
    for norm in norms_of(model):
        received = seen[norm][0][0]
        written = sum(seen[writer][0][1] for writer in graph.reads(norm))
        torch.testing.assert_close(written.reshape(received.shape), received, rtol=1e-4, atol=1e-5)


KNOWN = [
    ("gemma", "model.layers.0.input_layernorm", ["model.embed_tokens"],
     [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]),
    ("vit", "layers.0.layernorm_before", ["embeddings.patch_embeddings.projection", "embeddings"],
     [f"layers.0.attention.{part}_proj" for part in "qkv"]),
    ("whisper", "model.encoder.layer_norm",
     ["model.encoder", "model.encoder.embed_positions", "model.encoder.layers.0.self_attn.out_proj",
      "model.encoder.layers.0.fc2"],
     ["model.decoder.layers.0.encoder_attn.k_proj", "model.decoder.layers.0.encoder_attn.v_proj"]),
    ("t5", "decoder.final_layer_norm",
     ["decoder.embed_tokens", "decoder.block.0.layer.0.SelfAttention.o", "decoder.block.0.layer.1.EncDecAttention.o",
      "decoder.block.0.layer.2.DenseReluDense.wo"],
     ["lm_head"]),
    ("qwen3", "model.layers.1.self_attn.q_norm", ["model.layers.1.self_attn.q_proj"], ["model.layers.1.self_attn"]),
    ("olmo2", "model.layers.0.post_attention_layernorm", ["model.layers.0.self_attn.o_proj"], []),
    ("bert", "encoder.layer.0.output.LayerNorm",
     ["encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.dense"],
     [f"encoder.layer.1.attention.self.{part}" for part in ("query", "key", "value")]),
    ("phi", "model.layers.0.input_layernorm", ["model.embed_tokens"],
     [*(f"model.layers.0.self_attn.{part}_proj" for part in "qkv"), "model.layers.0.mlp.fc1"]),
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "norm", "reads", "read_by"), KNOWN, ids=[known[0] for known in KNOWN])
def test_known_places_in_the_residual_paths(architecture, norm, reads, read_by):
    _, graph = traced(architecture)
    assert list(graph.reads(norm)) == reads
    assert list(graph.read_by(norm)) == read_by


def test_a_model_without_weights_gives_the_same_graph():
    (model, graph), empty = traced("llama", "sdpa"), build("llama", "sdpa", device="meta")
    without = trace(empty, example_inputs(empty))
    for norm in norms_of(model):
        assert without.reads(norm) == graph.reads(norm)
        assert without.linear_readers(norm) == graph.linear_readers(norm)


def test_weights_of_transposed_and_tied_layers_are_named():
    model, graph = traced("gpt2")
    name = "transformer.h.0.attn.c_attn"
    assert graph.linear_readers("transformer.h.0.ln_1") == (LinearReader(name, f"{name}.weight", f"{name}.bias", True),)
    (head,) = graph.linear_readers("transformer.ln_f")
    assert (head.name, head.transposed) == ("lm_head", False)
    assert model.get_parameter(head.weight_name) is model.lm_head.weight


class Example(nn.Module):
    """A norm, two layers, and a body that a test writes."""

    def __init__(self, body):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.weight, self.bias = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
        self.cube = nn.Parameter(torch.randn(2, 6, 6))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def graph_of(body, x=None):
    return trace(Example(body), (torch.zeros(2, 4, 6) if x is None else x,))


MOVES_THAT_KEEP_THE_CHANNELS = {
    "some of the tokens": lambda y: y[:, 1:3],
    "one token": lambda y: y[:, 0],
    "flattened tokens": lambda y: y.reshape(-1, 6),
    "swapped tokens and batch": lambda y: y.transpose(0, 1),
    "there and back": lambda y: y.permute(2, 0, 1).permute(1, 2, 0),
    "heads and back": lambda y: y.view(2, 4, 3, 2).flatten(-2),
    "all in one row and back": lambda y: y.view(2, 24).view(2, 4, 6),
    "dropout in place, in evaluation": lambda y: F.dropout(y, 0.5, training=False, inplace=True),
    "cast": lambda y: y.to(torch.float64).float(),
    "copied": lambda y: y.clone().contiguous().detach(),
    "dropout in evaluation": lambda y: F.dropout(y, 0.5, training=False),
    "repeated": lambda y: y.repeat(3, 1, 1),
    "split by tokens": lambda y: y.split(2, dim=1)[1],
    "broadcast": lambda y: y[:, :1].expand(2, 4, 6),
    "one of the batch": lambda y: torch.unbind(y, 0)[1],
}


def overwritten(value, part):
    part.zero_()
    return value


@torch.library.custom_op("normscope_tests::doubled", mutates_args=("value",))
def doubled(other: torch.Tensor, value: torch.Tensor) -> None:
    value.mul_(2)


def overwritten_by(change, value):
    change(torch.ones_like(value), value)
    return value


OTHER_THINGS = {
    "half of the channels, twice": lambda y: y[..., :3].repeat(1, 1, 2),
    "tokens in place of channels": lambda y: y.transpose(1, 2).reshape(2, 4, 6),
    "channels turned": lambda y: y.view(2, 4, 3, 2).transpose(-1, -2).reshape(2, 4, 6),
    "reversed": lambda y: y.flip(-1),
    "doubled": lambda y: 2 * y,
    "a sum": lambda y: y + 1,
    "dropout that drops": lambda y: F.dropout(y, 0.5, training=True),
    "an activation": F.relu,
    "a token overwritten": lambda y: overwritten(y, y[:, 0]),
    "doubled in place": lambda y: y.mul_(2),
    "doubled in place, second of two": lambda y: overwritten_by(lambda *both: torch._foreach_mul_(both, 2.0), y),
    "doubled in place by an operation of somebody's": lambda y: overwritten_by(doubled, y),
    "whole numbers only": lambda y: y.to(torch.int32).float(),
    "its bits": lambda y: y.view(torch.int32).float(),
}


@pytest.mark.parametrize("what", MOVES_THAT_KEEP_THE_CHANNELS)
def test_a_layer_reads_the_norm_through_moves_that_keep_its_channels(what):
    move = MOVES_THAT_KEEP_THE_CHANNELS[what]
    graph = graph_of(lambda self, x: self.first(move(self.norm(x))))
    assert [reader.name for reader in graph.linear_readers("norm")] == ["first"]
    assert graph.read_by("norm") == ("first",)


@pytest.mark.parametrize("what", OTHER_THINGS)
def test_a_layer_does_not_read_the_norm_through_anything_else(what):
    change = OTHER_THINGS[what]
    graph = graph_of(lambda self, x: self.first(change(self.norm(x))))
    assert graph.linear_readers("norm") == ()


PRODUCTS = {
    "matmul": (lambda self, y: y @ self.weight, None, True),
    "matmul with a transpose": (lambda self, y: y @ self.weight.T, None, False),
    "matmul and a bias": (lambda self, y: y @ self.weight + self.bias, "bias", True),
    "a bias before": (lambda self, y: self.bias + y @ self.weight.transpose(1, 0), "bias", False),
    "addmm": (lambda self, y: torch.addmm(self.bias, y.reshape(-1, 6), self.weight), "bias", True),
    "linear": (lambda self, y: F.linear(y, self.weight, self.bias), "bias", False),
    "linear in another precision": (lambda self, y: F.linear(y.double(), self.weight.double()), None, False),
    "mm": (lambda self, y: torch.mm(y[0], self.weight.permute(1, 0).t()), None, True),
}


@pytest.mark.parametrize("what", PRODUCTS)
def test_a_product_with_a_stored_matrix_is_a_linear_layer_however_it_is_written(what):
    product, bias, transposed = PRODUCTS[what]
    graph = graph_of(lambda self, x: product(self, self.norm(x)))
    (reader,) = graph.linear_readers("norm")
    assert replace(reader, alone=True) == LinearReader("", "weight", bias, transposed)
    assert graph.other_layers() == ()


UNFOLLOWED = {
    "part of a matrix": lambda self, y: y[..., :3] @ self.weight[:3],
    "one of its parts": lambda self, y: y @ self.weight.chunk(2, dim=1)[0],
    "a matrix reshaped": lambda self, y: y @ self.weight.reshape(3, 12).reshape(6, 6),
    "a computed matrix": lambda self, y: y @ F.normalize(self.weight),
    "einsum": lambda self, y: torch.einsum("btd,de->bte", y, self.weight),
    "one matrix per item": lambda self, y: torch.bmm(y, self.cube),
    "a bias that is one number": lambda self, y: torch.addmm(self.bias[:1], y[0], self.weight),
    "a scaled bias": lambda self, y: torch.addmm(self.bias, y[0], self.weight, beta=2.0),
    "a convolution": lambda self, y: F.conv1d(y.transpose(1, 2), self.weight[:, :, None]),
}


@pytest.mark.parametrize("what", UNFOLLOWED)
def test_other_ways_to_apply_weights_are_listed_and_never_taken_for_a_linear_layer(what):
    graph = graph_of(lambda self, x: UNFOLLOWED[what](self, self.norm(x)))
    assert graph.linear_readers("norm") == ()
    assert graph.linear_layers() == ()
    assert graph.other_layers() == ("",)


def test_reads_follow_sums_joins_moves_and_constant_factors():
    def body(self, x):
        x = math.sqrt(6) * self.first(x) + self.bias
        x = torch.cat([x[:, :2], self.second(x[:, 2:]) / 2], dim=1)
        x += x.roll(1, 1).tanh()
        return self.norm(x)

    graph = graph_of(body)
    assert set(graph.reads("norm")) == {"first", "second", ""}  # the model itself: its own bias, and its own tanh
    assert graph.read_by("norm") == ()


def test_what_only_looks_at_the_shape_of_a_norm_does_not_read_it():
    def body(self, x):
        y = self.norm(x)
        return self.first(y) + self.second(torch.ones_like(y) + y.new_zeros(y.shape))

    assert graph_of(body).read_by("norm") == ("first",)


def test_a_norm_that_is_called_again_answers_for_all_its_calls():
    def body(self, x):
        return self.second(self.norm(self.norm(self.first(self.norm(x)))))

    graph = graph_of(body)
    assert graph.reads("norm") == ("first", "norm")
    assert graph.read_by("norm") == ("first", "norm", "second")
    assert [reader.name for reader in graph.linear_readers("norm")] == ["first", "second"]


def test_calls_of_a_layer_are_counted():
    def body(self, x):
        return self.first(self.first(self.norm(x)))

    graph = graph_of(body)
    assert [(reader.name, reader.calls) for reader in graph.linear_readers("norm")] == [("first", 1)]
    assert [(layer.name, layer.calls) for layer in graph.linear_layers()] == [("first", 2)]


def test_a_module_with_two_names_answers_to_both():
    model = Example(lambda self, x: self.first(self.again(x)))
    model.again = model.norm
    graph = trace(model, (torch.zeros(2, 4, 6),))
    assert graph.read_by("norm") == graph.read_by("again") == ("first",)


def test_a_norm_that_is_not_called_has_empty_answers_and_an_unknown_name_is_refused():
    graph = graph_of(lambda self, x: self.first(x))
    assert graph.reads("norm") == graph.read_by("norm") == graph.linear_readers("norm") == graph.shapes("norm") == ()
    with pytest.raises(ValueError, match="must be a module of the traced model, got 'nrom'"):
        graph.reads("nrom")


def test_encoder_layers_of_torch_are_seen_inside_even_when_frozen():
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).requires_grad_(False)
    graph = trace(layer, (torch.zeros(2, 4, 6),))
    assert graph.reads("norm2") == ("norm1", "linear2")
    assert [reader.name for reader in graph.linear_readers("norm1")] == ["linear1"]


def test_training_mode_is_as_before():
    model = Example(lambda self, x: self.first(self.norm(x))).train()
    model.first.eval()
    trace(model, (torch.zeros(2, 4, 6),))
    assert (model.training, model.norm.training, model.first.training) == (True, True, False)


def test_what_cannot_be_traced_is_refused_in_one_line_and_leaves_the_model_as_it_was():
    model = Example(lambda self, x: self.first(x) if x.sum() > 0 else self.second(x))
    with pytest.raises(TraceError, match="Example cannot be traced") as caught:
        trace(model, (torch.zeros(2, 4, 6),))
    assert "\n" not in str(caught.value)
    assert model.training


def test_layers_that_run_without_gradients_are_seen():
    graph = graph_of(lambda self, x: self.second(torch.no_grad()(lambda: self.norm(self.first(x)))()))
    assert graph.reads("norm") == ("first",)


def test_layers_hidden_in_a_region_of_their_own_are_refused():
    def body(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.first(self.norm(x))

    with pytest.raises(TraceError, match="inside the region"):
        graph_of(body)


def test_a_gain_that_another_call_has_cast_is_still_the_norms_own():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.weight.float() * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    model = nn.Sequential(nn.Linear(4, 4), norm := Norm(), nn.Linear(4, 4), norm)
    graph = trace(model, (torch.randn(2, 4),))
    assert [[value.name for value in graph.entering("1", call)] for call in graph.calls_of("1")] == [
        ["linear"],
        ["linear_1"],
    ]
    assert graph.reads("1") == ("0", "2")


def test_a_model_that_cannot_be_told_to_make_no_cache_makes_none_by_its_configuration():
    class Cache:
        pass

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 4)
            self.config = SimpleNamespace(use_cache=True)

        def forward(self, x):
            return (self.layer(self.norm(x)), Cache()) if self.config.use_cache else self.layer(self.norm(x))

    model = Model()
    assert trace(model, (torch.randn(2, 4),)).read_by("norm") == ("layer",)
    assert model.config.use_cache


def is_torchdynamo_exporting():
    """As the code of some models in transformers asks it."""
    return torch.compiler.is_exporting()


class WithStandIn(nn.Module):
    """A model that does something else when it is exported, for runtimes that know few operations."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        x = self.norm(x)
        return (
            x.cumsum(-1) if not is_torchdynamo_exporting() else torch.stack([x[..., : n + 1].sum(-1) for n in range(4)])
        )


def test_what_is_traced_is_what_a_model_does_when_it_is_run():
    graph = trace(WithStandIn(), (torch.zeros(2, 4),))
    assert [kind_of(node) for node in graph.program.graph.nodes if node.op == "call_function"] == [
        "layer_norm",
        "cumsum",
    ]
    with_stand_in = torch.export.export(WithStandIn(), (torch.zeros(2, 4),), strict=False)
    assert any(kind_of(node) == "stack" for node in with_stand_in.graph.nodes if node.op == "call_function")


class WritesInPlace(nn.Module):
    """Keys are written to an empty tensor part by part, as in latent attention; nothing reads what a write returns."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.norm(x)
        whole = y.new_empty(*y.shape[:-1], 8)
        whole[..., :4] = self.layer(y)
        whole[..., 4:] = y
        scaled = whole * 2
        whole[..., 4:] = 7.0  # after it was read
        return scaled, whole


def test_a_part_of_the_graph_is_run_with_what_is_written_in_place_on_the_way():
    model, x, other = WritesInPlace().double(), torch.randn(1, 3, 4).double(), torch.randn(1, 3, 4).double()
    graph = trace(model, (x,))
    (call,) = graph.calls_of("norm")
    (given,) = graph.entering("norm", call)
    scaled = next(node for node in graph.nodes if kind_of(node) == "mul")
    torch.use_deterministic_algorithms(True)  # what is not written is NaN
    try:
        made = run_between(graph, {given: other}, scaled, model.get_parameter)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.no_grad():
        torch.testing.assert_close(made, model(other)[0], rtol=1e-12, atol=1e-12)


def test_what_was_written_before_to_the_memory_of_a_given_value_does_not_change_it():
    class Copied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            whole = torch.zeros_like(x)
            part = whole[:, 1:]
            part.copy_(x[:, 1:])
            return self.norm(whole) + whole

    model, x, other = Copied().double(), torch.randn(1, 3, 4).double(), torch.randn(1, 3, 4).double()
    graph = trace(model, (x,))
    (call,) = graph.calls_of("norm")
    (given,) = graph.entering("norm", call)
    total = next(node for node in graph.nodes if kind_of(node) == "add")
    made = run_between(graph, {given: other}, total, model.get_parameter)
    with torch.no_grad():
        torch.testing.assert_close(made, model.norm(other) + other, rtol=1e-12, atol=1e-12)
