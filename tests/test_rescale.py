"""Powers of two through whole models: the same function, the same bits, and values that fit half precision."""

import copy
import csv
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from folding_models import folding_model
from normscope import fold
from normscope.errors import InputError, NotCertifiedError
from normscope.results.folding import FITS, KEPT_STREAM, RESCALED
from normscope.rewrite import rescale

HUGE = 2.0**14
DOCS = Path(__file__).parent.parent / "docs"


def with_huge_writers(architecture, parts, factor=HUGE, layers=1):
    model = folding_model(architecture, layers=layers)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if any(part in name for part in parts):
                values.mul_(factor)
    return model


def logits(model, folding):
    with torch.no_grad():
        return model(*folding.call.args, **folding.call.kwargs).logits


def stream(folding):
    return max(folding.streams, key=lambda verdict: verdict.bound or 0.0)


@pytest.mark.parametrize(
    ("architecture", "parts"),
    [("llama", ("o_proj", "down_proj")), ("gpt2", ("c_proj",))],
)
def test_a_stream_beyond_float16_fits_after_and_float32_outputs_are_the_same_bits(architecture, parts, tmp_path):
    model = with_huge_writers(architecture, parts)
    folding = fold(model, rescale="float16", out=tmp_path / "rescaled")
    assert folding.holds
    assert folding.certificate.rewrite_difference == folding.certificate.written_difference == 0.0
    found = stream(folding)
    assert found.what == RESCALED
    assert found.bound > 65504 > found.bound_now > 65504 / 8
    loaded = type(model).from_pretrained(tmp_path / "rescaled").eval()
    assert torch.equal(logits(loaded, folding), logits(model, folding))
    assert not logits(copy.deepcopy(model).half(), folding).isfinite().all()
    half = logits(loaded.half(), folding)
    assert half.isfinite().all()
    torch.testing.assert_close(half.float(), logits(model, folding), rtol=0, atol=2e-2 * float(half.abs().max()))


def test_gemma_3_in_float16_is_right_once_rescaled():
    model = with_huge_writers("gemma3_text", ("post_attention_layernorm", "post_feedforward_layernorm"), 2.0**16, 2)
    folding = fold(model, rescale="float16")
    assert folding.holds
    assert folding.certificate.rewrite_difference < 1e-13
    assert 0 < folding.gain_rounding < 1e-5
    assert not logits(copy.deepcopy(model).half(), folding).isfinite().all()
    half = logits(folding.module.half(), folding)
    torch.testing.assert_close(half.float(), logits(model, folding), rtol=0, atol=3e-2 * float(half.abs().max()))


def test_queries_and_keys_follow_the_eps_that_their_norms_share_with_the_stream():
    model = with_huge_writers("qwen3", ("o_proj", "down_proj"))
    with torch.no_grad():
        for name, values in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                values.mul_(1e-3)  # eps decides what their norms give
    folding = fold(model, rescale="float16")
    power = 2.0 ** stream(folding).exponent
    assert folding.certificate.rewrite_difference == 0.0
    before, after = (each.model.layers[0].self_attn for each in (model, folding.module))
    assert torch.equal(after.q_proj.weight, power * before.q_proj.weight)
    assert torch.equal(after.v_proj.weight, before.v_proj.weight)
    assert (
        folding.module.config.rms_norm_eps == after.q_norm.variance_epsilon == power**2 * before.q_norm.variance_epsilon
    )


def test_a_tied_table_is_scaled_and_the_last_gain_and_bias_make_up_for_it():
    model = with_huge_writers("gpt2", ("c_proj",))
    folding = fold(model, rescale="float16")
    power = 2.0 ** stream(folding).exponent
    before, after = model.transformer, folding.module.transformer
    assert after.wte.weight is folding.module.lm_head.weight
    assert torch.equal(after.wte.weight, power * before.wte.weight)
    assert torch.equal(after.ln_f.weight, before.ln_f.weight / power)
    assert torch.equal(after.ln_f.bias, before.ln_f.bias / power)
    assert torch.equal(after.h[0].mlp.c_proj.bias, power * before.h[0].mlp.c_proj.bias)
    assert folding.tied == ()


def test_a_product_of_neurons_that_would_overflow_is_scaled_between_up_and_down():
    model = with_huge_writers("llama", ("up_proj",), 2.0**18)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 2.0**-18
    folding = fold(model, rescale="float16")
    assert folding.certificate.rewrite_difference == 0.0
    assert {name.split(".")[-2] for name in folding.changed} == {"up_proj", "down_proj"}
    assert not logits(copy.deepcopy(model).half(), folding).isfinite().all()
    assert logits(folding.module.half(), folding).isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gate_times_up_alone_overflows_and_the_power_goes_into_up_and_down(dtype):
    model = with_huge_writers("llama", ("gate_proj", "up_proj"), 2.0**10)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 2.0**-20
    model = model.to(getattr(torch, dtype))
    folding = fold(model, rescale="float16")
    (product,) = (verdict for verdict in folding.streams if verdict.what == RESCALED)
    assert folding.certificate.rewrite_difference == 0.0
    assert {name.split(".")[-2] for name in folding.changed} == {"up_proj", "down_proj"}
    watched, halved = {}, copy.deepcopy(model).half()
    for name in ("gate_proj", "up_proj", "down_proj"):
        layer = halved.model.layers[0].mlp.get_submodule(name)
        layer.register_forward_hook(lambda _, args, out, name=name: watched.update({name: (args[0], out)}))
    logits(halved, folding)
    assert watched["gate_proj"][1].isfinite().all()  # each of the two fits
    assert watched["up_proj"][1].isfinite().all()
    assert watched["down_proj"][0].isinf().any()  # their product does not
    assert product.bound > 65504 > product.bound_now
    half = logits(folding.module.half(), folding)
    torch.testing.assert_close(
        half.float(), logits(model.float(), folding), rtol=0, atol=2e-2 * float(half.abs().max())
    )


def test_a_model_that_also_reads_images_is_told_to_be_covered_for_text_alone():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
            "num_key_value_heads": 1, "vocab_size": 64}  # fmt: skip
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 8, "patch_size": 4}  # fmt: skip
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4,
                                                        image_token_index=60)).eval()  # fmt: skip
    with torch.no_grad():
        for values in model.parameters():
            nn.init.normal_(values)
        for layer in model.model.language_model.layers:
            layer.post_feedforward_layernorm.weight *= 2.0**15
    folding = fold(model, rescale="float16")
    assert stream(folding).what == RESCALED
    said = " ".join(folding.remarks())
    assert "does not use model.vision_tower" in said
    assert "such as an image, can give something else now" in said
    ids = torch.tensor([[2, 60, 60, 60, 60, 7]])
    image = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8), "token_type_ids": (ids == 60).long()}
    seen = fold(model, rescale="float16", inputs=image)
    assert any("it is an output of the model" in verdict.how for verdict in seen.streams)
    assert seen.changed == ()


def test_what_fits_is_left_alone_and_a_fixed_eps_is_named():
    folding = fold(folding_model("llama", layers=1), rescale="float16")
    assert (folding.changed, {verdict.what for verdict in folding.streams}) == ((), {FITS})
    refused = fold(with_huge_writers("opt", ("fc2", "out_proj")), rescale="float16")
    verdict = stream(refused)
    assert verdict.what == KEPT_STREAM
    assert "set by the code of the model" in verdict.how
    assert refused.changed == ()


def test_gains_stored_as_one_plus_w_are_refused_where_too_many_digits_are_lost():
    model = with_huge_writers("gemma3_text", ("embed_tokens",), 2.0**20, 2).bfloat16()
    with pytest.raises(InputError, match=r"1 \+ w: in bfloat16 it would be off by .* more than the tolerance 0.01"):
        fold(model, rescale="float16")
    allowed = fold(model, rescale="float16", tolerance=1.0)
    assert 1e-2 < allowed.gain_rounding < 1
    assert allowed.certificate.rewrite_difference < 1e-13


@pytest.mark.parametrize("left_out", ["embed_tokens", "q_proj"])
def test_a_rescale_with_one_tensor_left_out_fails_and_writes_nothing(left_out, monkeypatch, tmp_path):
    honest = rescale.plan_rescale

    def forgetful(*args):
        rescaling = honest(*args)
        exponents = rescaling.scaling.exponents
        name = next(name for name in exponents if left_out in name)
        del exponents[name]
        return rescaling

    model = with_huge_writers("qwen3", ("o_proj", "down_proj"))
    monkeypatch.setattr(rescale, "plan_rescale", forgetful)
    with pytest.raises(NotCertifiedError, match="not the same function"):
        fold(model, rescale="float16", out=tmp_path / "rescaled")
    assert list(tmp_path.iterdir()) == []


class Residual(nn.Module):
    """A stream with a writer that is zero, one behind a ReLU, a factor, and an output that is no stream."""

    def __init__(self, factor):
        super().__init__()
        self.table, self.up, self.down = nn.Embedding(5, 4), nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.zero, self.norm, self.last = nn.Linear(4, 4, bias=False), nn.LayerNorm(4), nn.LayerNorm(4)
        nn.init.zeros_(self.zero.weight)
        self.table.weight.data *= factor

    def forward(self, ids):
        x = 3.0 * self.table(ids)
        y = self.norm(x)
        x = x + self.zero(y) + self.down(torch.relu(self.up(y)))
        return self.last(x)


@pytest.mark.parametrize("factor", [1.0, 2.0**20, 0.0])
def test_modules_without_a_configuration_get_another_eps_each(factor):
    model = Residual(factor)
    folding = fold(model, inputs=torch.arange(5), rescale="float16")
    assert folding.holds
    assert folding.certificate.rewrite_difference == 0.0
    (found,) = folding.streams
    assert folding.module.norm.eps == folding.module.last.eps == math.ldexp(model.norm.eps, 2 * found.exponent)
    assert (found.exponent < 0) == (factor > 1)


class Centre(nn.Module):
    """A norm that does not divide: its output grows with its input."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) * self.weight + self.bias


class Changed(Residual):
    """A stream that something acts on between its norms."""

    def __init__(self, change, factor=2.0**20):
        torch.manual_seed(0)
        super().__init__(factor)
        self.change, self.centre = change, Centre()
        self.register_buffer("stored", torch.randn(4) * factor)
        self.register_buffer("created", torch.randn(4) * factor, persistent=False)
        self.plain, self.hidden = torch.randn(4) * factor, [self.table.weight]

    def forward(self, ids):
        x = 3.0 * self.table(ids)
        x = self.change(self, x + self.down(torch.relu(self.up(self.norm(x)))))
        return self.last(x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda self, x: torch.div(x, 3.0, rounding_mode="floor"), "div in the model"),
        (lambda self, x: x.round(), "round in the model"),
        (lambda self, x: 3e5 * torch.tanh(x / 3e5), "tanh in the model"),
        (lambda self, x: x.clamp(-1e6, 1e6), "clamp in the model"),
        (lambda self, x: 1 - x, "rsub in the model"),
        (lambda self, x: torch.where(x > 1e5, x, -x), "gt in the model"),
        (lambda self, x: torch.where(x > 1e5, x, 1.0), "in the model"),
        (lambda self, x: x + torch.full_like(x, 1e5), "full_like in the model"),
        (lambda self, x: x + self.norm.eps, "add in the model"),
        (lambda self, x: x + self.plain, "is added to it"),
        (lambda self, x: x + self.hidden[0].mean(0), "is added to it"),
        (lambda self, x: x + self.created, "created with the model"),
        (lambda self, x: x + self.stored, ""),
        (lambda self, x: x * self.stored, ""),
        (lambda self, x: torch.add(x, self.down(self.up(self.norm(x))), alpha=0.5), ""),
        (lambda self, x: self.centre(x), ""),
        (lambda self, x: x * x, ""),
    ],
)
def test_whatever_acts_on_a_stream_follows_its_scale_or_is_named(change, words):
    model = Changed(change)
    folding = fold(model, inputs=torch.arange(5), rescale="float16")
    assert folding.holds
    assert folding.certificate.rewrite_difference == 0.0
    if words:
        assert any(each.what == KEPT_STREAM and words in each.how for each in folding.streams)
        assert not [name for name in folding.changed if "table" in name]
    else:
        assert "table.weight" in folding.changed


class HalfNorm(nn.Module):
    """An RMSNorm that computes in the type of its input."""

    def __init__(self, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(4)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps))


@pytest.mark.parametrize(("eps", "broken"), [(1e-2, 0), (1e-6, 2)])
def test_an_eps_that_is_0_in_half_precision_once_rescaled_breaks_the_certificate(eps, broken):
    model = Residual(1.0)
    model.norm, model.last = HalfNorm(eps), HalfNorm(eps)
    with torch.no_grad():
        model.table.weight[0] = 0.0
        model.up.weight.mul_(2.0**8)
        model.down.weight.mul_(2.0**13)
    folding = fold(model.half(), inputs=torch.arange(1, 5), rescale="float16")  # without the row of zeros
    assert stream(folding).what == RESCALED
    assert len(folding.certificate.broken) == broken
    assert folding.holds is not bool(broken)
    assert all("is not 0 in float16, in which it is added" in words for words in folding.certificate.broken)


def test_a_checkpoint_that_its_stored_type_cannot_hold_is_refused_with_the_tensor(tmp_path):
    model = folding_model("llama", layers=1)
    nn.init.constant_(model.model.norm.weight, 1e5)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"model.norm.weight holds values that are not finite in float16"):
        fold(tmp_path / "model", rescale="float16", dtype="float16")
    assert fold(tmp_path / "model", rescale="float16", dtype="bfloat16").holds


def test_a_model_that_is_still_infinite_in_its_own_type_says_so():
    model = with_huge_writers("llama", ("lm_head",), 2.0**17).half()
    nn.init.constant_(model.lm_head.weight, 6e4)
    nn.init.constant_(model.model.norm.weight, 1e3)
    folding = fold(model, rescale="float16")
    assert folding.certificate.folded_error is None
    assert "In float16, outputs of both models are not finite on these inputs." in folding.remarks()


def test_arguments_that_make_no_sense_are_refused():
    model, ids = Residual(1.0), torch.arange(5)
    with pytest.raises(InputError, match=r"rescale must be one of float16, .*, got 'half'"):
        fold(model, inputs=ids, rescale="half")
    with pytest.raises(InputError, match="tolerance must be 0 or more, got -1"):
        fold(model, inputs=ids, rescale="float16", tolerance=-1)
    with pytest.raises(InputError, match="rms can't be combined with rescale"):
        fold(model, inputs=ids, rescale="float16", rms=True)


def test_the_page_on_folding_says_what_was_largest_in_float16():
    text, largest = (DOCS / "folding.md").read_text(encoding="utf-8"), {}
    for name in ("stream-float16", "stream-float16-rescaled"):
        with (DOCS / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            largest[name] = max((float(row["largest input"]), row["norm"]) for row in csv.DictReader(file))
    (before, norm), (after, same) = largest.values()
    assert (after, same) == (before / 16, norm)
    assert f"give {before:g} as the largest entry that a norm reads before, and {after:g} after" in text
    assert f"`{norm}`" in text
