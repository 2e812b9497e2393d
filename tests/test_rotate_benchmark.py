"""What rounding costs: steps against a slow oracle, layers from the graph, models as they were; docs say what ran."""

from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from folding_models import folding_model
from normscope.data import demo_model, sample_text
from normscope.errors import InputError
from normscope.models.subject import Subject
from normscope.progress import silent
from normscope.results.result import type_named
from normscope_lab.bench.rotate_bench import (
    Setting,
    layers_of,
    losses,
    outliers,
    pieces,
    rewritten,
    rounded,
    rounding,
    run,
)
from normscope_lab.results.rotate_loss import NEAR
from test_benchmarks import read, whole

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def demo():
    ids = pieces(Subject(demo_model(), text=sample_text()).batches(), 64)
    model = Subject(demo_model()).module
    return model, ids, layers_of(model, ids[:, :16])


def nearest(row, bits):
    """The nearest of all numbers of a grid, entry by entry."""
    most = 2 ** (bits - 1) - 1
    grid = np.abs(row).max() * np.arange(-most, most + 1) / most
    return grid[np.abs(grid - row[:, None]).argmin(axis=1)]


@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(2, 9), size=st.integers(1, 9), power=st.integers(-30, 30))
def test_every_entry_goes_to_the_nearest_step_of_its_row(seed, bits, size, power):
    x = np.random.default_rng(seed).normal(size=(3, size)) * 2.0**power
    found = rounded(torch.from_numpy(x), bits).numpy()
    assert found == pytest.approx(np.array([nearest(row, bits) for row in x]), rel=1e-12, abs=1e-12 * 2.0**power)
    assert rounded(torch.from_numpy(x.T.copy()), bits, 0).numpy() == pytest.approx(found.T, rel=1e-15)


def test_rows_of_zeros_and_single_entries_stay():
    x = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    assert torch.equal(rounded(x, 4), x)
    assert torch.equal(rounded(torch.tensor([[-7.5], [0.1]]), 2), torch.tensor([[-7.5], [0.1]]))
    assert rounded(torch.tensor([[float("nan"), 1.0]]), 4).isnan().any()


def test_layers_come_from_the_graph_and_the_head_is_not_among_them(demo):
    _, _, layers = demo
    blocks = [f"transformer.h.{number}" for number in range(4)]
    near = {f"{block}.{name}" for block in blocks for name in ("attn.c_attn", "mlp.c_fc")}
    assert {layer.name for layer in layers.near} == near
    assert {layer.name for layer in layers.all} == near | {f"{b}.{n}.c_proj" for b in blocks for n in ("attn", "mlp")}
    assert {*layers.norms} == {f"{b}.ln_{n}" for b in blocks for n in (1, 2)} | {"transformer.ln_f"}
    assert layers.left_out == ()


@pytest.mark.parametrize("written", ["W3", "A3", "W3A3-all"])
def test_a_model_computes_with_rounded_tensors_and_is_as_it_was_afterwards(demo, written):
    model, ids, layers = demo
    setting, seen = Setting.of(written), {}
    before, state = losses(model, ids), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chosen = layers.all if written.endswith("-all") else layers.near
    with rounding(model, layers, setting):
        changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, state[name])}
        assert changed == ({layer.weight_name for layer in chosen} if setting.weights else set())
        for name in changed:  # stored as (inputs, outputs): a row of the map is a column here
            assert all(len(column.unique()) <= 2**3 - 1 for column in model.state_dict()[name].T)
        for layer in chosen:
            watched = model.get_submodule(layer.name)
            watched.register_forward_pre_hook(lambda _, args, name=layer.name: seen.update({name: args[0]}))
        assert not np.allclose(losses(model, ids), before, atol=1e-3)
    for layer in chosen:
        tokens = seen[layer.name].flatten(0, -2)
        assert all(len(token.unique()) <= 2**3 - 1 for token in tokens) == (setting.inputs is not None)
        model.get_submodule(layer.name)._forward_pre_hooks.clear()
    assert losses(model, ids) == pytest.approx(before, abs=0)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_losses_are_those_that_the_model_itself_reports(demo):
    model, ids, _ = demo
    own = [model(input_ids=piece[None], labels=piece[None]).loss.item() for piece in ids]
    assert losses(model, ids) == pytest.approx(own, rel=1e-5)


def test_outliers_are_channels_of_what_norms_read(demo):
    model, ids, layers = demo
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states[0]  # what the first norm reads
    for place, values in ((0, hidden), (2, hidden[:, 8:])):
        channel = values.abs().flatten(0, 1).max(dim=0).values.detach()
        ratio = (channel.max() / channel.median()).item()
        assert outliers(model, layers.norms[:1], ids)[place : place + 2] == pytest.approx([ratio, ratio], rel=1e-6)


def test_many_bits_cost_nothing_and_few_cost_much():
    result = whole(run(demo_model(), sample_text(), 256, 2, ["W20A20-all", "W3A3"], silent))
    assert result.holds
    assert [(row.variant, row.seeds) for row in result.losses] == 2 * [("as it is", 1), ("folded", 1), ("rotated", 2)]
    assert all(abs(row.added) < 1e-3 for row in result.losses[:3])
    assert all(row.added > 0.05 and row.worst >= row.added for row in result.losses[3:])
    as_it_is, _, rotated = result.channels
    assert 1 < rotated.worst < as_it_is.worst


@pytest.mark.parametrize("written", ["", "-all", "W", "A1", "W25", "w6", "6"])
def test_roundings_that_cannot_be_are_refused(written):
    with pytest.raises(InputError, match="must be written like W6A6"):
        Setting.of(written)


def test_pieces_are_the_text_from_its_beginning():
    batches = [{"input_ids": torch.arange(start, start + size)[None]} for start, size in ((0, 70), (70, 30))]
    assert torch.equal(pieces(batches, 20), torch.arange(20)[None])
    assert torch.equal(pieces(batches[1:], 1000), torch.arange(70, 100)[None])
    assert torch.equal(pieces(batches, 1000), torch.arange(70)[None])  # the rest is no whole piece
    long = pieces([{"input_ids": torch.arange(2000)[None]}], 1000)
    assert torch.equal(long, torch.arange(1024).reshape(2, 512))
    with pytest.raises(InputError, match="at least 16 tokens, got 3"):
        pieces([{"input_ids": torch.arange(3)[None]}], 1000)


@pytest.mark.parametrize(
    ("architecture", "mlp", "left_out"),
    [("llama", ["mlp.gate_proj", "mlp.up_proj"], 0), ("mixtral", [], 1)],
)
def test_readers_of_norms_in_other_architectures(architecture, mlp, left_out):
    layers = layers_of(folding_model(architecture, layers=1), torch.arange(3, 19)[None])
    expected = [f"model.layers.0.{name}" for name in ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", *mlp]]
    assert {layer.name for layer in layers.near} == {*expected}
    assert {layer.name for layer in layers.all} - {*expected} >= {"model.layers.0.self_attn.o_proj"}
    assert len(layers.norms) == 3
    assert bool(layers.left_out) == bool(left_out)


def test_a_stream_that_cannot_be_turned_is_refused():
    with pytest.raises(InputError, match=r"must have a stream that can be rotated: .*gain"):
        rewritten(Subject(folding_model("gemma2", layers=1)), 0)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(InputError, match="must be a language model"):
        layers_of(Subject(demo_model()).module.transformer, torch.arange(16)[None])


def test_the_page_on_folding_says_what_the_kept_run_says():
    text, kept = (DOCS / "folding.md").read_text(encoding="utf-8"), read("rotate.json")
    jsonschema.validate(kept, type_named(kept["type"]).json_schema(), cls=jsonschema.Draft202012Validator)
    assert kept["certified"]
    assert kept["tokens"] >= 8000
    for row in kept["losses"]:
        bits = [str(row[name] or "–") for name in ("weight_bits", "input_bits")]
        figures = [f"{row[name]:.3f}" for name in ("added", "error", "worst")]
        assert f"| {' | '.join([row['layers'], *bits, row['variant'], *figures])} |" in text
    for row in kept["channels"]:
        figures = [f"{row[name]:.1f}" for name in ("median", "worst", "later_median", "later_worst")]
        assert f"| {' | '.join([row['variant'], *figures])} |" in text
    assert f"{kept['loss']:.3f} nats" in text
    assert f"{kept['tokens']:,} tokens" in text
    assert f"the first {kept['stream_tokens']:,}" in text
    near = {(row["weight_bits"], row["input_bits"]): row for row in kept["losses"]
            if row["layers"] == NEAR and row["variant"] == "rotated"}  # fmt: skip
    assert near[6, 6]["seeds"] == near[None, 4]["seeds"] == 3
    assert near[6, 6]["added"] <= 0.10
    assert near[None, 4]["added"] <= 0.75
