"""LSSR before and after every norm of a model, against the scatter of what `capture` sees."""

import json

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer
from typer.testing import CliRunner

import normscope as ns
from normscope import capture, separability
from normscope.capacity import scatter
from normscope.cli import app
from normscope.data import demo_model, sample_text
from normscope.models.labelled_texts import read_labelled
from normscope.models.load import TextBatches, load_model
from normscope.results.class_scatter import ClassScatter, NormScatter
from tiny_models import tiny_model

LABELS = np.arange(60) % 3


def token_batches(rows, count=60, length=6):
    tokens = torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": tokens[start : start + rows]} for start in range(0, count, rows)]


def figures(norm, side):
    return [getattr(norm, f"{name}_{side}") for name in ("rank", "ssr", "lssr")]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3"])
def test_samples_are_means_over_the_positions_of_each_input(architecture):
    model, (batch,) = tiny_model(architecture).double(), token_batches(60)
    result = separability(model, inputs=batch, labels=LABELS)
    with capture(model) as captured, torch.no_grad():
        model(**batch)
    assert (result.samples, result.classes) == (60, 3)
    assert [norm.name for norm in result.norms] == list(captured.norms)
    for norm in result.norms:
        seen = captured.norms[norm.name]
        assert not norm.trivial
        for side, tensor in (("before", seen.input), ("after", seen.output)):
            expected = scatter(tensor.reshape(60, -1, norm.size).mean(dim=1), LABELS)
            rank, *shares = figures(norm, side)
            assert rank == expected.rank
            assert shares == pytest.approx([expected.ssr, expected.lssr], abs=1e-9)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_size_of_the_batches_does_not_matter(rows):
    model = tiny_model("gpt2").double()
    whole, parts = (separability(model, inputs=token_batches(count), labels=LABELS) for count in (60, rows))
    for one, other in zip(whole.norms, parts.norms, strict=True):
        for side in ("before", "after"):
            assert figures(one, side) == pytest.approx(figures(other, side), abs=1e-9)


def test_padding_is_left_out():
    model = tiny_model("bert").double()
    (batch,) = token_batches(60)
    lengths = torch.arange(60) % 4 + 3
    mask = (torch.arange(6) < lengths[:, None]).long()
    padded = separability(model, inputs={**batch, "attention_mask": mask}, labels=LABELS)
    alone = [{"input_ids": row[None, :length]} for row, length in zip(batch["input_ids"], lengths, strict=True)]
    for one, other in zip(padded.norms, separability(model, inputs=alone, labels=LABELS).norms, strict=True):
        assert one.lssr_before == pytest.approx(other.lssr_before, abs=1e-9)
        assert one.ssr_after == pytest.approx(other.ssr_after, abs=1e-9)


def test_channels_may_stand_before_positions():
    class ChannelsFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4) + 0.5)

        def forward(self, x):
            y = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
            return y * self.weight[:, None, None]

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(2, 4, 1), ChannelsFirst()), torch.randn(30, 2, 5, 5)
    (norm,) = separability(model, inputs=[(x,)], labels=LABELS[:30]).norms
    expected = scatter(model[0](x).detach().mean(dim=(2, 3)), LABELS[:30])
    assert norm.lssr_before == pytest.approx(expected.lssr, abs=1e-5)


def test_texts_are_run_one_by_one_and_long_ones_in_pieces():
    lines = [line for line in sample_text().splitlines() if len(line) > 20][:79]
    texts = [*lines, " ".join(lines)]  # the last is longer than the model takes at once
    labels = ["a", "b"] * 40
    result = separability(ns.demo_model(), text=texts, labels=labels)
    model, tokenizer = load_model(demo_model()), AutoTokenizer.from_pretrained(demo_model())
    assert result.model == "the demo model"
    assert len(TextBatches([texts[-1]], tokenizer, model)) > 1
    samples = []
    for text in texts:
        with capture(model, norms=["transformer.ln_f"]) as captured, torch.no_grad():
            for batch in TextBatches([text], tokenizer, model):
                model(**batch)
        vectors = [call.reshape(-1, 64) for call in captured.norms["transformer.ln_f"]._outputs]
        samples.append(torch.cat(vectors).mean(dim=0))
    expected = scatter(torch.stack(samples), labels)
    assert result.norms[-1].lssr_after == pytest.approx(expected.lssr, abs=1e-4)
    assert result.norms[-1].ssr_after == pytest.approx(expected.ssr, abs=1e-5)


def test_too_few_inputs_are_said_to_be():
    result = separability(tiny_model("gpt2"), inputs=token_batches(9, count=9), labels=LABELS[:9])
    assert all(norm.trivial and norm.change is None for norm in result.norms)
    assert all((norm.lssr_before, norm.lssr_after) == (None, None) for norm in result.norms)
    assert "LSSR is trivially 0 at 5 of 5 norms: 9 inputs are too few" in str(result)


def test_inputs_that_all_coincide_have_no_scatter():
    model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    nn.init.zeros_(model[0].weight)
    (norm,) = separability(model, inputs=torch.randn(9, 2), labels=LABELS[:9]).norms
    assert figures(norm, "before") == figures(norm, "after") == [None] * 3
    assert (norm.change, norm.trivial) == (None, False)


def example():
    norms = [
        NormScatter("h.0.ln", "layernorm", 64, 63, 63, 0.9, 0.9, 0.8, 0.5, trivial=False),
        NormScatter("<b>", "rmsnorm", 64, 63, 63, 0.9, 0.9, 0.5, 0.6, trivial=False),
        NormScatter("h.1.ln", "layernorm", 128, None, 63, None, 0.9, None, None, trivial=True),
    ]
    return ClassScatter("model", 100, 2, tuple(norms))


def test_the_table_tells_which_norm_helps_most():
    text = " ".join(str(example()).split())
    assert "h.0.ln layernorm 63 63 0.9 0.9 0.8 0.5" in text
    assert "h.1.ln layernorm – 63 – 0.9 – –" in text
    assert "1 of 2 norms lower LSSR, h.0.ln the most: by 0.3." in text
    assert "100 inputs are too few for it to say anything there; 130 are enough." in text
    assert repr(example()) == "ClassScatter(model: 100 inputs of 2 classes, 1 of 2 norms lower LSSR)"
    worse = ClassScatter("model", 100, 2, example().norms[1:2])
    assert "0 of 1 norms lower LSSR." in str(worse)


def test_a_notebook_shows_a_table_with_names_escaped():
    page = example()._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<tr>") == 4


def test_the_command_prints_json_and_saves_what_it_prints(tmp_path):
    file, saved = tmp_path / "labelled.tsv", tmp_path / "scatter.safetensors"
    lines = [line.strip() for line in sample_text().splitlines() if len(line) > 20][:80]
    file.write_text("".join(f"{line}\t{'ab'[len(line) % 2]}\n" for line in lines), encoding="utf-8")
    done = CliRunner().invoke(app, ["separability", "--text", str(file), "--json", "-o", str(saved)])
    result = json.loads(done.stdout)
    assert (result["samples"], result["classes"], len(result["norms"])) == (80, 2, 9)
    assert ns.load(saved).to_dict() == result
    for found in (result, example().to_dict()):
        jsonschema.validate(found, ClassScatter.json_schema(), cls=jsonschema.Draft202012Validator)


def test_a_file_has_a_text_a_tab_and_a_label_in_each_line(tmp_path):
    file = tmp_path / "labelled.tsv"
    file.write_text("one\tand two\tyes\n\n  three \tno\nfour\tyes\nfive\tno\n", encoding="utf-8")
    assert read_labelled(file) == (["one\tand two", "three", "four", "five"], ["yes", "no", "yes", "no"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\t1\nb 1\n", "line 2 must be a text, a tab and a label, got 'b 1'"),
        ("\t1\n", r"line 1 must be a text, a tab and a label, got '\\t1'"),
        (
            "sentence\tlabel\na\t1\nb\t1\nc\t0\nd\t0\n",
            "each label must occur twice or more, got 'label' only in line 1",
        ),
        ("a\t1\nb\t1\n", "expected two or more different labels, got 1"),
        ("", "expected two or more different labels, got 0"),
    ],
)
def test_a_file_that_is_not_so_is_refused_with_the_line(tmp_path, content, message):
    file = tmp_path / "labelled.tsv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_labelled(file)


@pytest.mark.parametrize(
    ("model", "given", "labels", "message"),
    [
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [0, 1], "got 2 labels of 3 inputs or more"),
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [0, 1, 1, 0], "got 4 labels of 3 inputs"),
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [1, 1, 1], "labels must name two or more classes, got 1"),
        (nn.LayerNorm(4), ["some words"], [0, 1], "a batch of inputs must be a mapping .* got str"),
        (nn.LayerNorm(4), None, [0, 1], "separability needs a text or inputs"),
        (nn.LayerNorm(4), [{"input": torch.randn(0, 4)}], [0, 1], "batches must have one input or more"),
        (None, torch.ones(1, 3), [0, 1], "model must be a path or a torch module, got NoneType"),
        (
            nn.Sequential(nn.Flatten(0, 1), nn.LayerNorm(4)),
            [{"input": torch.randn(3, 2, 4)}],
            [0, 1, 1],
            "the input of 1 has 6 rows for a batch of 3 inputs",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
            [{"input": torch.full((3, 4), torch.inf)}],
            [0, 1, 1],
            "must be finite",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused_with_what_came(model, given, labels, message):
    with pytest.raises(ValueError, match=message):
        separability(model, inputs=given, labels=labels)


def test_texts_need_a_folder_and_must_be_texts():
    with pytest.raises(ValueError, match="text needs a folder with a tokenizer"):
        separability(nn.LayerNorm(4), text=["some", "words"], labels=[0, 1])
    with pytest.raises(ValueError, match="text must be a string or several strings, got one of type dict"):
        separability(ns.demo_model(), text=[{"input_ids": [1]}, "words"], labels=[0, 1])


def test_an_output_that_is_infinite_is_refused_with_its_place():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.constant_(model[0].weight, 3e38)
    with pytest.raises(ValueError, match="the input of 1: samples must be finite"):
        separability(model, inputs=torch.randn(3, 4) * 1e3, labels=[0, 1, 1])


def test_padding_that_can_not_be_told_is_refused():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x, attention_mask):
            return self.norm(x.reshape(len(x), -1, 2, 4).transpose(1, 2))

    batch = {"x": torch.randn(3, 5, 8), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * 3)}
    with pytest.raises(ValueError, match=r"has shape \(3, 2, 5, 4\), in which padding can't be told"):
        separability(Heads(), inputs=batch, labels=[0, 1, 1])


def test_the_model_is_in_training_mode_again_afterwards():
    model = nn.Sequential(nn.Dropout(0.5), nn.LayerNorm(4)).train()
    separability(model, inputs=torch.randn(9, 4), labels=LABELS[:9])
    assert model.training
    assert model[0].training
