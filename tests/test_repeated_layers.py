"""Equal layers are traced once and copied: the graph must be the one that tracing every layer gives."""

import inspect

import pytest
import torch
from torch import nn

from architectures import ARCHITECTURES, random_model
from normscope.errors import TraceError
from normscope.models import repeated_layers
from normscope.models.example_inputs import example_inputs
from normscope.models.float64_run import difference, evaluate, outputs_of
from normscope.models.graph import ModelGraph, as_exported, trace
from normscope.models.repeated_layers import Unfit, exported
from normscope.rewrite.stored_tensors import StoredTensors

COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
          "encoder_num_hidden_layers", "decoder_num_hidden_layers", "pred_num_hidden_layers")  # fmt: skip
LISTS = ("layer_types", "no_rope_layers", "block_types", "layers_block_type")
TESTED = (
    "gpt2",
    "bert",
    "gemma3_text",
    "qwen3_next",
    "deepseek_v3",
)  # of all: decoders, an encoder, mixed kinds, dense first
WITHOUT = {  # traced as a whole, and why
    "beit": "no equal layers",  # a rate of dropped paths for each
    "swin": "no equal layers",
    "swinv2": "no equal layers",
    "zamba2": "no layer is called as another was",
    "rwkv": "depends on its place",
}


def deeper(settings):
    """The same with twice as many layers, and three of one."""
    changed = {}
    for key, value in settings.items():
        if key in COUNTS:
            changed[key] = 2 * value if value > 1 else 3
        elif key in LISTS:
            changed[key] = 2 * value
        else:
            changed[key] = deeper(value) if isinstance(value, dict) else value
    return changed


@pytest.fixture(autouse=True)
def two_equal_layers_are_enough(monkeypatch):
    monkeypatch.setattr(repeated_layers, "FEWEST", 2)


def described(graph):
    """Every operation with its arguments, up to the names of values; casts to the same dtype are seen through."""
    signature, names = graph.program.graph_signature, {}
    operations = [node for node in graph.nodes if node.op != "placeholder"]
    for node in graph.nodes:
        if node.op == "placeholder":
            names[node] = graph.stored_name(node) or (node.name if node.name in signature.user_inputs else "constant")
    for place, node in enumerate(operations):
        cast = str(node.target).startswith("aten.to.") and node.meta["val"].dtype == node.args[0].meta["val"].dtype
        names[node] = names[node.args[0]] if cast else f"%{place}"
    return [
        (
            str(node.target),
            str(torch.fx.map_arg((node.args, node.kwargs), names.__getitem__)),
            tuple(path for path, _ in node.meta.get("nn_module_stack", {}).values()),
        )
        for node in operations
    ]


def both_graphs(model):
    kwargs = dict(example_inputs(model))
    if "use_cache" in inspect.signature(model.forward).parameters:
        kwargs["use_cache"] = False
    with as_exported(model):
        program, copies = exported(model, (), kwargs)
        whole = torch.export.export(model, (), kwargs, strict=False)
    assert copies
    return ModelGraph(program, model), ModelGraph(whole, model), kwargs


def assert_same(model):
    copied, whole, kwargs = both_graphs(model)
    assert described(copied) == described(whole)
    names = [name for name, module in model.named_modules() if "norm" in type(module).__name__.lower()]
    for name in names:
        for question in ("reads", "read_by", "linear_readers", "is_added", "is_bypassed", "shapes"):
            assert getattr(copied, question)(name) == getattr(whole, question)(name), (question, name)
        assert len(copied.calls_of(name)) == len(whole.calls_of(name))
    assert copied.linear_layers() == whole.linear_layers()
    assert copied.other_layers() == whole.other_layers()
    stored = StoredTensors(model)
    outputs = evaluate(copied.program, stored.in_float64)
    assert all(map(torch.equal, outputs, evaluate(whole.program, stored.in_float64)))
    assert difference(outputs_of(model, (), kwargs), outputs) < 1e-3


@pytest.mark.parametrize("architecture", TESTED)
def test_copied_layers_are_those_that_tracing_all_of_them_gives(architecture):
    assert_same(random_model(architecture, deeper(ARCHITECTURES[architecture][1])))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name not in (*TESTED, *WITHOUT)])
def test_copied_layers_of_every_architecture(architecture):
    assert_same(random_model(architecture, deeper(ARCHITECTURES[architecture][1])))


@pytest.mark.parametrize("architecture", ["rwkv", pytest.param("zamba2", marks=pytest.mark.slow)])
def test_layers_that_do_not_fit_are_traced_as_a_whole(architecture):
    model = random_model(architecture, deeper(ARCHITECTURES[architecture][1]))
    kwargs = {**example_inputs(model), "use_cache": False}
    with as_exported(model), pytest.raises(Unfit, match=WITHOUT[architecture]):
        exported(model, (), kwargs)
    assert trace(model, kwargs).nodes


class Layer(nn.Module):
    def __init__(self, number, body):
        super().__init__()
        self.number, self.body = number, body
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x, others):
        return self.body(self, x, others)


class Stack(nn.Module):
    def __init__(self, body, loop=None):
        super().__init__()
        self.layers = nn.ModuleList(Layer(number, body) for number in range(4))
        self.loop = loop

    def forward(self, x):
        others = []
        for number, layer in enumerate(self.layers):
            x = layer(x, others) if self.loop is None else self.loop(number, layer, x)
        return x


def plain(layer, x, others):
    return x + layer.linear(layer.norm(x))


def by_number(layer, x, others):
    return x + layer.linear(layer.norm(x)) / (layer.number + 1)


def handing_over(layer, x, others):
    others.append(layer.linear(x))
    return x + others[0]


def in_place(layer, x, others):
    return x.add_(layer.linear(layer.norm(x)))


@pytest.mark.parametrize("body", [by_number, handing_over, in_place])
def test_a_layer_that_depends_on_more_than_its_arguments_is_not_copied(body):
    model, x = Stack(body), torch.randn(2, 4)
    with torch.no_grad(), pytest.raises(Unfit):
        exported(model, (x,), {})
    stored = StoredTensors(model)
    with torch.no_grad():
        (traced,) = evaluate(trace(model, (x.clone(),)).program, stored.in_float64)
        torch.testing.assert_close(traced, model(x.clone()).double(), rtol=1e-4, atol=1e-5)
    assert [layer.number for layer in model.layers] == [0, 1, 2, 3]
    assert all("forward" not in vars(layer) for layer in model.layers)


def every_second_doubled(number, layer, x):
    return layer(x, []) * (2 if number % 2 else 1)


def from_the_first(number, layer, x):
    x = layer(x, [])
    return x if number else x + x.mean()


@pytest.mark.parametrize("loop", [every_second_doubled, from_the_first])
def test_what_a_loop_does_by_the_number_of_a_layer_is_traced_for_each(loop):
    assert_same_of(Stack(plain, loop))


def test_a_loop_may_read_the_output_of_an_earlier_layer():
    class UNet(Stack):
        def forward(self, x):
            a = self.layers[0](x, [])
            b = self.layers[1](a, [])
            return self.layers[3](self.layers[2](b, []) + a, [])

    assert_same_of(UNet(plain))


def assert_same_of(model):
    x = torch.randn(2, 4)
    with torch.no_grad():
        program, copies = exported(model, (x,), {})
        whole = torch.export.export(model, (x,), strict=False)
    assert copies == 3
    assert described(ModelGraph(program, model)) == described(ModelGraph(whole, model))


def test_layers_with_other_settings_or_hooks_are_kinds_of_their_own():
    model, x = Stack(plain), torch.randn(2, 4)
    model.layers[1].norm.eps = 0.5
    model.layers[2].linear.register_forward_hook(lambda *_: None)
    with torch.no_grad():
        program, copies = exported(model, (x,), {})
    assert copies == 1
    assert evaluate(program, StoredTensors(model).in_float64)[0].shape == (2, 4)


def test_a_large_model_is_refused_only_if_its_layers_are_not_alike():
    x = torch.randn(2, 4)
    assert trace(Stack(plain), (x,), most=10).nodes
    with pytest.raises(TraceError, match="more than 10 parameters are traced only if their layers are alike"):
        trace(Stack(by_number), (x,), most=10)


def test_a_saved_program_with_copies_computes_the_same(tmp_path):
    model, x = Stack(plain).eval(), torch.randn(2, 4)
    program = trace(model, (x,)).program
    torch.export.save(program, tmp_path / "program.pt2")
    again = torch.export.load(tmp_path / "program.pt2")
    for each in (program, again):
        torch.testing.assert_close(each.module()(x), model(x))
