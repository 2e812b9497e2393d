"""Orthogonal matrices through whole models, and the matrices themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from folding_models import folding_model
from normscope import fold
from normscope.errors import InputError, NotCertifiedError
from normscope.results.folding import KEPT_STREAM, RESCALED, ROTATED
from normscope.rewrite import rotation as rotation_plan
from normscope.rewrite import value_heads
from normscope.rewrite.orthogonal import hadamard, rotation


@given(
    size=st.integers(1, 70),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["hadamard", "random"]),
    keeps_ones=st.booleans(),
)
def test_every_matrix_is_orthogonal_and_keeps_the_ones_where_it_must(size, seed, kind, keeps_ones):
    matrix = rotation(kind, size, (seed,), keeps_ones=keeps_ones).matrix
    assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-13
    if keeps_ones:
        assert np.abs(matrix.sum(axis=1) - 1).max() < 1e-13
        assert np.abs(matrix.sum(axis=0) - 1).max() < 1e-13


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 28, 36, 576, 768, 960, 1536])
def test_hadamard_matrices_have_entries_of_one_size_and_rows_at_right_angles(order):
    table = hadamard(order)
    assert (np.abs(table) == 1).all()
    assert (table @ table.T == order * np.eye(order)).all()


@pytest.mark.parametrize("order", [3, 6, 52, 92])
def test_orders_without_a_known_hadamard_matrix_say_what_is_used(order):
    assert hadamard(order) is None
    for keeps_ones in (False, True):
        assert "no Hadamard matrix of order" in rotation("hadamard", order, (0,), keeps_ones=keeps_ones).words


def test_a_power_of_four_keeps_the_ones_and_spreads_evenly():
    made = rotation("hadamard", 64, (3,), keeps_ones=True).matrix
    assert np.abs(np.abs(made) - 1 / 8).max() == 0
    assert (rotation("hadamard", 64, (4,), keeps_ones=True).matrix != made).any()


@pytest.mark.parametrize(("architecture", "kind"), [("llama", "hadamard"), ("gpt2", "random")])
def test_a_rotated_model_is_the_same_function_in_the_same_architecture(architecture, kind, tmp_path):
    model = folding_model(architecture, layers=1)
    folding = fold(model, rotate=kind, seed=3, untie=True, out=tmp_path / "rotated")
    (verdict,) = folding.streams
    assert verdict.what == ROTATED
    assert "seed 3" in verdict.how
    assert folding.holds
    assert folding.certificate.read_back
    assert folding.certificate.rewrite_difference < 1e-13
    loaded = type(model).from_pretrained(tmp_path / "rotated").eval()
    table, turned = (each.get_input_embeddings().weight.detach() for each in (model, loaded))
    assert (turned - table).abs().max() > 0.1
    with torch.no_grad():
        outputs = [each(*folding.call.args, **folding.call.kwargs).logits for each in (model, loaded)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5 * float(outputs[0].abs().max()))


def test_a_tied_table_turns_only_if_the_last_gain_is_constant():
    model = folding_model("gpt2", layers=1)
    (verdict,) = fold(model, rotate="hadamard").streams
    assert verdict.what == KEPT_STREAM
    assert verdict.how == "the gain of transformer.ln_f is not constant and can't be folded"
    nn.init.constant_(model.transformer.ln_f.weight, 0.5)
    folding = fold(model, rotate="hadamard")
    assert [each.what for each in folding.streams] == [ROTATED]
    assert folding.module.lm_head.weight is folding.module.transformer.wte.weight
    assert folding.certificate.rewrite_difference < 1e-13


def test_gains_of_branch_norms_block_a_rotation_unless_they_are_constant():
    model = folding_model("gemma3_text")
    folding = fold(model, rotate="hadamard", untie=True)
    (verdict,) = folding.streams
    assert "the gain of model.layers.0.post_attention_layernorm is not constant" in verdict.how
    for layer in model.model.layers:
        nn.init.constant_(layer.post_attention_layernorm.weight, 0.25)
        nn.init.constant_(layer.post_feedforward_layernorm.weight, -0.5)
    folding = fold(model, rotate="hadamard", untie=True)
    assert [each.what for each in folding.streams] == [ROTATED]
    assert folding.certificate.rewrite_difference < 1e-13


def test_rotated_and_rescaled_at_once_with_one_certificate():
    model = folding_model("llama", layers=1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.mul_(2.0**16)
    folding = fold(model, rotate="hadamard", rescale="float16")
    assert [each.what for each in folding.streams] == [ROTATED, RESCALED]
    assert folding.certificate.rewrite_difference < 1e-13
    assert folding.holds
    assert folding.module.config.rms_norm_eps < model.config.rms_norm_eps


class Block(nn.Module):
    """A stream with one reader that may act on its channels one by one."""

    def __init__(self, gate):
        super().__init__()
        self.table, self.norm, self.layer = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 6)
        self.last, self.head, self.gate = nn.LayerNorm(6), nn.Linear(6, 3), gate
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, ids):
        x = self.table(ids)
        y = self.layer(self.norm(x).tanh()) if self.gate == "tanh" else self.layer(self.norm(x))
        if self.gate == "mul":
            y = y * x.sigmoid()
        return self.head(self.last(x + y))


@pytest.mark.parametrize(
    ("gate", "words"),
    [("tanh", "tanh in the model"), ("mul", "sigmoid in the model"), ("", "no Hadamard matrix of order 6 is known")],
)
def test_what_acts_on_single_channels_blocks_and_is_named(gate, words):
    folding = fold(Block(gate), inputs=torch.arange(7), rotate="hadamard")
    (verdict,) = folding.streams
    assert words in verdict.how
    assert verdict.what == (KEPT_STREAM if gate else ROTATED)
    assert folding.holds


def test_a_matrix_of_a_file_is_checked_and_used(tmp_path):
    keeping, other = (rotation("random", 6, (1,), keeps_ones=keeps).matrix for keeps in (True, False))
    np.save(tmp_path / "keeping.npy", keeping.astype(np.float32))
    np.save(tmp_path / "other.npy", other)
    np.save(tmp_path / "larger.npy", np.eye(7))
    model, ids = Block(""), torch.arange(7)
    folding = fold(model, inputs=ids, rotate=tmp_path / "keeping.npy")
    assert folding.streams[0].what == ROTATED
    assert folding.certificate.rewrite_difference < 1e-13
    with pytest.raises(InputError, match=r"turns no stream: a LayerNorm reads it, .*not keep the vector of ones"):
        fold(model, inputs=ids, rotate=tmp_path / "other.npy")
    with pytest.raises(InputError, match=r"turns no stream: .*a matrix of order 7, and the stream has 6 channels"):
        fold(model, inputs=ids, rotate=tmp_path / "larger.npy")
    assert "tanh" in fold(Block("tanh"), inputs=ids, rotate=tmp_path / "larger.npy").streams[0].how
    with pytest.raises(InputError, match=r"rotate must be hadamard, random or a .npy file, got 'walsh'"):
        fold(model, inputs=ids, rotate="walsh")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.full((6, 6), 0.5), r"an orthogonal matrix: Q·Qᵀ is 1\.5e\+00 away from 1"),
        (2 * np.eye(6), "entries beyond ±1"),
        (np.full((6, 6), 1e308), "entries beyond ±1"),
        (np.full((6, 6), np.nan), "or that are no numbers"),
        (np.eye(6, dtype=int), r"floating-point numbers, got int64 \(6, 6\)"),
        (np.zeros((0, 0)), r"a square matrix of floating-point numbers, got float64 \(0, 0\)"),
        (np.zeros(6), "a square matrix"),
        (b"hello", "must be a .npy file with a matrix"),
        (b"", "must be a .npy file with a matrix"),
    ],
)
def test_a_file_without_an_orthogonal_matrix_is_refused_in_one_line(tmp_path, matrix, words):
    path = tmp_path / "matrix.npy"
    path.write_bytes(matrix) if isinstance(matrix, bytes) else np.save(path, matrix)
    with pytest.raises(InputError, match=words) as found:
        fold(Block(""), inputs=torch.arange(7), rotate=path)
    assert "\n" not in str(found.value)


def test_a_row_that_is_too_large_once_turned_breaks_the_certificate_also_where_no_token_looks_it_up():
    model = Block("").half()
    with torch.no_grad():
        model.table.weight[6] = torch.tensor([6.4e4, -6.4e4, 6.4e4, -6.4e4, 6.4e4, -6.4e4])
    folding = fold(model, inputs=torch.arange(6), rotate="random")
    assert folding.module.table.weight[6].isinf().any()
    assert folding.certificate.broken == ("table.weight is stored as it was computed",)
    assert not folding.holds


@pytest.mark.parametrize("left_out", ["q_proj", "o_proj", "lm_head"])
def test_a_rotation_with_one_tensor_left_out_fails_and_writes_nothing(left_out, monkeypatch, tmp_path):
    honest = rotation_plan.plan_rotation

    def forgetful(*args):
        rotations = honest(*args)
        name = next(name for name in rotations.turning.axes if left_out in name)
        del rotations.turning.axes[name]
        return rotations

    monkeypatch.setattr(rotation_plan, "plan_rotation", forgetful)
    with pytest.raises(NotCertifiedError, match="not the same function"):
        fold(folding_model("llama", layers=1), rotate="hadamard", out=tmp_path / "rotated")
    assert list(tmp_path.iterdir()) == []


def test_the_command_ends_with_1_and_writes_nothing_if_a_reader_is_left_out(monkeypatch, run_here, tmp_path):
    honest = rotation_plan.plan_rotation

    def forgetful(*args):
        rotations = honest(*args)
        del rotations.turning.axes["transformer.h.1.attn.c_attn.weight"]
        return rotations

    command = ("fold", "--rotate", "hadamard", "--untie", "--seed", 1, "-o", tmp_path / "rotated")
    monkeypatch.setattr(rotation_plan, "plan_rotation", forgetful)
    done = run_here(*command)
    assert done.returncode == 1
    assert "not the same function" in done.stderr
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(rotation_plan, "plan_rotation", honest)
    done = run_here(*command)
    assert done.returncode == 0
    assert "Hadamard" in done.stdout
    assert (tmp_path / "rotated" / "config.json").exists()


class Attention(nn.Module):
    """Two query heads that share one value head, from a layer that makes queries, keys and values at once."""

    def __init__(self, between=None):
        super().__init__()
        self.norm, self.all, self.out = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(8, 8)
        self.last, self.head, self.between = nn.LayerNorm(8), nn.Linear(8, 3), between

    def forward(self, x):
        q, k, v = self.all(self.norm(x)).split((8, 4, 4), dim=-1)
        q = q.unflatten(-1, (2, 4)).transpose(1, 2)
        k, v = (each.unsqueeze(1).expand(-1, 2, -1, -1) for each in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(self.last(self.out(y * y.sigmoid() if self.between == "gate" else y)))


@pytest.mark.parametrize("between", [None, "gate"])
def test_value_heads_turn_with_the_layer_that_reads_them_unless_something_is_between(between):
    torch.manual_seed(0)
    model = Attention(between)
    folding = fold(model, inputs=torch.randn(2, 5, 8), rotate="hadamard", rotate_heads=True)
    verdict = folding.streams[-1]
    assert verdict.stream == "value heads of the model"
    assert folding.certificate.rewrite_difference < 1e-13
    assert folding.holds
    if between:
        assert verdict.what == KEPT_STREAM
        return
    assert verdict.what == ROTATED
    plain = fold(model, inputs=torch.randn(2, 5, 8), rotate="hadamard")
    assert torch.equal(folding.module.all.weight[:12], plain.module.all.weight[:12])  # queries and keys
    assert not torch.allclose(folding.module.all.weight[12:], plain.module.all.weight[12:])
    assert not torch.allclose(folding.module.all.bias[12:], plain.module.all.bias[12:])


def test_heads_that_are_turned_without_their_reader_fail(monkeypatch):
    honest = value_heads.plan_heads

    def forgetful(*args):
        turning, verdicts = honest(*args)
        turning.axes["out.weight"] = tuple(place for place in turning.axes["out.weight"] if place[0] != 1)
        return turning, verdicts

    monkeypatch.setattr(value_heads, "plan_heads", forgetful)
    folding = fold(Attention(), inputs=torch.randn(2, 5, 8), rotate="random", rotate_heads=True)
    assert not folding.holds


def test_rotated_heads_need_a_rotation():
    with pytest.raises(InputError, match="rotate_heads needs rotate"):
        fold(Attention(), inputs=torch.randn(2, 5, 8), rotate_heads=True)
