"""LSSR before and after every norm of a model, against the scatter of what `capture` sees."""

import json
from importlib.resources import files
from io import StringIO

import jsonschema
import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from transformers import AutoTokenizer

import normscope.report.tables.separability  # noqa: F401  (registers its table)
from normscope import capture
from normscope.capacity.scatter import Scatter, scatter
from normscope.cli.separability import separability as command
from normscope.data import demo_model, sample_text
from normscope.models.labelled_texts import read_labelled
from normscope.models.load import TextBatches, load_model
from normscope.report.tables.shared import tables
from normscope.studies.separability import NormSeparability, Separability, separability
from tiny_models import tiny_model

LABELS = np.arange(60) % 3


def token_batches(rows, count=60, length=6):
    tokens = torch.randint(0, 50, (count, length), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": tokens[start : start + rows]} for start in range(0, count, rows)]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3"])
def test_samples_are_means_over_the_positions_of_each_input(architecture):
    model, (batch,) = tiny_model(architecture).double(), token_batches(60)
    result = separability(model, [batch], LABELS)
    with capture(model) as captured, torch.no_grad():
        model(**batch)
    assert (result.samples, result.classes) == (60, 3)
    assert [norm.name for norm in result.norms] == list(captured.norms)
    for norm in result.norms:
        seen = captured.norms[norm.name]
        for side, tensor in ((norm.before, seen.input), (norm.after, seen.output)):
            means = tensor.reshape(60, -1, norm.size).mean(dim=1)
            expected = scatter(means, LABELS)
            assert (side.rank, side.trivial) == (expected.rank, False)
            assert (side.ssr, side.lssr) == pytest.approx((expected.ssr, expected.lssr), abs=1e-9)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_size_of_the_batches_does_not_matter(rows):
    model = tiny_model("gpt2").double()
    whole, parts = (separability(model, token_batches(count), LABELS) for count in (60, rows))
    for one, other in zip(whole.norms, parts.norms, strict=True):
        for side, same in ((one.before, other.before), (one.after, other.after)):
            assert (side.samples, side.classes, side.rank) == (same.samples, same.classes, same.rank)
            assert (side.ssr, side.lssr) == pytest.approx((same.ssr, same.lssr), abs=1e-9)


def test_padding_is_left_out():
    model = tiny_model("bert").double()
    (batch,) = token_batches(60)
    lengths = torch.arange(60) % 4 + 3
    mask = (torch.arange(6) < lengths[:, None]).long()
    padded = separability(model, [{**batch, "attention_mask": mask}], LABELS)
    alone = [{"input_ids": row[None, :length]} for row, length in zip(batch["input_ids"], lengths, strict=True)]
    for one, other in zip(padded.norms, separability(model, alone, LABELS).norms, strict=True):
        assert one.before.lssr == pytest.approx(other.before.lssr, abs=1e-9)
        assert one.after.ssr == pytest.approx(other.after.ssr, abs=1e-9)


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
    (norm,) = separability(model, [{"input": x}], LABELS[:30]).norms
    expected = scatter(model[0](x).detach().mean(dim=(2, 3)), LABELS[:30])
    assert norm.before.lssr == pytest.approx(expected.lssr, abs=1e-5)


def test_texts_are_run_one_by_one_and_long_ones_in_pieces():
    lines = [line for line in sample_text().splitlines() if len(line) > 20][:79]
    texts = [*lines, " ".join(lines)]  # the last is longer than the model takes at once
    labels = ["a", "b"] * 40
    result = separability(None, texts, labels)
    model, tokenizer = load_model(demo_model()), AutoTokenizer.from_pretrained(demo_model())
    assert result.model == "the bundled model"
    assert len(TextBatches(texts[-1], tokenizer, model)) > 1
    samples = []
    for text in texts:
        with capture(model, norms=["transformer.ln_f"]) as captured, torch.no_grad():
            for batch in TextBatches(text, tokenizer, model):
                model(**batch)
        vectors = [call.reshape(-1, 64) for call in captured.norms["transformer.ln_f"]._outputs]
        samples.append(torch.cat(vectors).mean(dim=0))
    expected = scatter(torch.stack(samples), labels)
    assert result.norms[-1].after.lssr == pytest.approx(expected.lssr, abs=1e-4)
    assert result.norms[-1].after.ssr == pytest.approx(expected.ssr, abs=1e-5)


def test_too_few_inputs_are_said_to_be():
    result = separability(tiny_model("gpt2"), token_batches(9, count=9), LABELS[:9])
    assert all(norm.before.trivial and norm.after.trivial and norm.change is None for norm in result.norms)
    assert all(norm.before.lssr == 0 for norm in result.norms)
    text = printed(result)
    assert "LSSR is trivially 0 at 5 of 5 norms: 9 inputs are too few" in text
    assert text.count("trivial ") >= 10


def test_inputs_that_all_coincide_have_no_scatter():
    model = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4))
    nn.init.zeros_(model[0].weight)
    (norm,) = separability(model, [{"input": torch.randn(9, 2)}], LABELS[:9]).norms
    assert (norm.before, norm.after, norm.change, norm.trivial) == (None, None, None, False)


def printed(result):
    console = Console(file=StringIO(), width=100)
    for part in tables(result):
        console.print(part)
    return console.file.getvalue()


def example():
    def side(lssr, trivial=False):
        return Scatter(100, 2, 63, 0.9, lssr, trivial)

    norms = [
        NormSeparability("h.0.ln", "layernorm", 64, side(0.8), side(0.5)),
        NormSeparability("<b>", "rmsnorm", 64, side(0.5), side(0.6)),
        NormSeparability("h.1.ln", "layernorm", 128, None, side(0.0, trivial=True)),
    ]
    return Separability("model", 100, 2, tuple(norms))


def test_the_table_tells_which_norm_helps_most():
    text = " ".join(printed(example()).split())
    assert "h.0.ln layernorm 63 63 0.9 0.9 0.8 0.5" in text
    assert "h.1.ln layernorm – 63 – 0.9 – trivial" in text
    assert "1 of 2 norms lower LSSR, h.0.ln the most: by 0.3." in text
    assert "100 inputs are too few for it to say anything there; 130 are enough." in text
    worse = Separability("model", 100, 2, example().norms[1:2])
    assert "0 of 1 norms lower LSSR." in printed(worse)


def test_a_notebook_shows_a_table_with_names_escaped():
    page = example()._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<tr>") == 4


def schema():
    return json.loads((files("normscope") / "schemas" / "separability.json").read_text(encoding="utf-8"))


def test_the_command_prints_json_that_fits_its_schema(tmp_path, capsys):
    file = tmp_path / "labelled.tsv"
    lines = [line.strip() for line in sample_text().splitlines() if len(line) > 20][:80]
    file.write_text("".join(f"{line}\t{'ab'[len(line) % 2]}\n" for line in lines), encoding="utf-8")
    command(None, texts=file, json=True)
    result = json.loads(capsys.readouterr().out)
    jsonschema.validate(result, schema(), cls=jsonschema.Draft202012Validator)
    assert (result["samples"], result["classes"], len(result["norms"])) == (80, 2, 9)
    jsonschema.validate(example().to_dict(), schema(), cls=jsonschema.Draft202012Validator)


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
        ("a\t1\nb\t1\n", "there must be two or more labels, got 1"),
        ("", "there must be two or more labels, got 0"),
    ],
)
def test_a_file_that_is_not_so_is_refused_with_the_line(tmp_path, content, message):
    file = tmp_path / "labelled.tsv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_labelled(file)


@pytest.mark.parametrize(
    ("model", "inputs", "labels", "message"),
    [
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [0, 1], "got 2 labels of 3 inputs or more"),
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [0, 1, 1, 0], "got 4 labels of 3 inputs"),
        (nn.LayerNorm(4), [{"input": torch.randn(3, 4)}], [1, 1, 1], "labels must name two or more classes, got 1"),
        (nn.LayerNorm(4), ["some words"], [0, 1], "inputs of a live module must be batches of keyword inputs, got str"),
        (nn.LayerNorm(4), [{"input": torch.randn(0, 4)}], [0, 1], "batches must have one input or more"),
        (None, [{"input_ids": torch.ones(1, 3)}], [0, 1], "inputs must be texts, got dict: batches need a live module"),
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
            "the input of 1: samples must be finite",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused_with_what_came(model, inputs, labels, message):
    with pytest.raises(ValueError, match=message):
        separability(model, inputs, labels)


def test_padding_that_can_not_be_told_is_refused():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x, attention_mask):
            return self.norm(x.reshape(len(x), -1, 2, 4).transpose(1, 2))

    batch = {"x": torch.randn(3, 5, 8), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]] * 3)}
    with pytest.raises(ValueError, match=r"has shape \(3, 2, 5, 4\), in which padding can't be told"):
        separability(Heads(), [batch], [0, 1, 1])


def test_the_model_is_in_training_mode_again_afterwards():
    model = nn.Sequential(nn.Dropout(0.5), nn.LayerNorm(4)).train()
    separability(model, [{"input": torch.randn(9, 4)}], LABELS[:9])
    assert model.training
    assert model[0].training
