"""Loading a model to run it, and a text to run it on: all of it as stored, or refused in one line."""

import json
import shutil

import pytest
import torch
import transformers
from torch import nn
from transformers.utils import logging

import normscope
from normscope.data import demo_model, sample_text
from normscope.models import corpus
from normscope.models.architecture import build_architecture, notes_on
from normscope.models.checkpoint import CheckpointError
from normscope.models.load import load_model, run_in_pieces, text_batches
from normscope.models.transformers_library import NotFollowedWarning
from tiny_models import SMALL, build

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def model(tmp_path):
    """A copy of the demo model, to be spoilt."""
    return shutil.copytree(demo_model(), tmp_path / "model")


def change(path, **settings):
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def saved(folder, model):
    """A folder with the model and the bundled tokenizer."""
    model.save_pretrained(folder)
    for name in TOKENIZER:
        shutil.copy(demo_model() / name, folder)
    return folder


def refusal(kind, call, *arguments):
    with pytest.raises(kind) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_of_which_weights_are_missing_is_refused_and_not_made_up(model, capfd):
    change(model / "config.json", n_layer=5)
    message = "config.json describes are missing, for example transformer.h.4.attn.c_attn.bias (12 in all)"
    assert message in refusal(CheckpointError, load_model, model)
    refusal(CheckpointError, normscope.ranges, model)
    assert capfd.readouterr() == ("", "")


def test_a_model_with_weights_of_another_shape_is_refused(model, capfd):
    change(model / "config.json", vocab_size=1000)
    message = "for example transformer.wte.weight: (1024, 64) instead of (1000, 64) (1 in all)"
    assert message in refusal(CheckpointError, load_model, model)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("architecture", ["gpt2", "t5", "gemma"])
def test_tied_weights_are_not_missing(tmp_path, architecture):
    original = build(architecture).eval()
    original.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert type(again) is type(original)
    stored, loaded = dict(original.named_parameters()), dict(again.named_parameters())
    assert stored.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], value) for name, value in stored.items())


def test_what_transformers_says_elsewhere_is_as_before(model):
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_model(model)
    text_batches(model, "words")
    change(model / "config.json", n_layer=5)
    refusal(CheckpointError, load_model, model)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    "names",
    [["set_seed"], ["pipeline"], ["GPT2Config"], ["no_such_model"], ["PreTrainedModel"], ["GPT2PreTrainedModel"]],
)
def test_architectures_that_name_no_model_are_not_called_and_named(model, names):
    change(model / "config.json", architectures=names)
    config = json.loads((model / "config.json").read_text())
    assert type(build_architecture(config)).__name__ == "GPT2Model"
    with pytest.warns(NotFollowedWarning, match=f"names \\['{names[0]}'\\] as its architectures, not a model of"):
        assert type(load_model(model)).__name__ == "GPT2Model"


def test_a_config_without_architectures_needs_no_note(model):
    change(model / "config.json", architectures=[])
    assert type(load_model(model)).__name__ == "GPT2Model"
    assert notes_on(json.loads((model / "config.json").read_text())) == ()


def test_a_config_with_infinite_numbers_describes_its_model():
    settings = {"num_hidden_layers": 1, "hidden_size": 16, "num_heads": 4, "head_dim": 8, "state_size": 4}
    config = transformers.Mamba2Config(**settings, n_groups=1, vocab_size=50, architectures=["Mamba2ForCausalLM"])
    described = build_architecture(json.loads(config.to_json_string()))
    assert type(described).__name__ == "Mamba2ForCausalLM"
    assert tuple(described.config.time_step_limit) == (0.0, float("inf"))


@pytest.mark.parametrize(
    "settings", [{"model_type": "no such kind"}, {"n_head": 0}, {"n_embd": "many"}, {"quantization_config": 3}]
)
def test_a_config_that_leads_nowhere_is_refused_in_one_line(model, settings):
    change(model / "config.json", **settings)
    assert "the model can't be loaded" in refusal(CheckpointError, load_model, model)


def test_batches_hold_every_token_of_the_text_and_are_counted():
    text = sample_text()
    batches = text_batches(demo_model(), text)
    rows = [batch["input_ids"] for batch in batches]
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_model())
    assert torch.cat(rows, dim=1).tolist() == [tokenizer(text)["input_ids"]]
    assert {row.shape for row in rows[:-1]} == {(1, 256)}
    assert len(batches) == len(rows)
    assert all(torch.equal(batch["input_ids"], row) for batch, row in zip(batches, rows, strict=True))


@pytest.mark.parametrize("block", [7, 100, 1000])
def test_a_text_is_the_same_in_blocks_and_is_tokenized_as_it_is_needed(monkeypatch, block):
    text = " ".join(sample_text().split())
    whole = [batch["input_ids"] for batch in text_batches(demo_model(), text)]
    monkeypatch.setattr(corpus, "BLOCK", max(block, max(map(len, text.split())) + 2))
    batches = text_batches(demo_model(), text)
    assert all(torch.equal(batch["input_ids"], row) for batch, row in zip(batches, whole, strict=True))
    read, cut = [], corpus.cut
    monkeypatch.setattr(corpus, "cut", lambda *given: (read.append(block) or block for block in cut(*given)))
    next(iter(batches))
    assert 0 < sum(map(len, read)) < len(text) / 2


def test_a_text_without_spaces_is_cut_all_the_same():
    assert list(corpus.cut(["x" * 25], 10)) == ["x" * 10, "x" * 10, "x" * 5]
    assert list(corpus.cut(["one two three"], 10)) == ["one two", " three"]


def test_special_tokens_are_around_every_piece_of_a_python_tokenizer(tmp_path):
    config = transformers.T5Config(d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, vocab_size=384)
    transformers.T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    transformers.ByT5Tokenizer(model_max_length=6).save_pretrained(tmp_path)
    batches = list(text_batches(tmp_path, "字 words"))
    assert [batch["input_ids"].tolist() for batch in batches] == [
        [[*(byte + 3 for byte in piece), 1]] for piece in ("字 w".encode(), b"ords")
    ]
    assert all(torch.equal(batch["decoder_input_ids"], batch["input_ids"]) for batch in batches)
    assert len(list(run_in_pieces(load_model(tmp_path), batches))) == 2


def test_positions_that_stand_for_padding_are_not_used(tmp_path):
    config = transformers.RobertaConfig(**SMALL | {"vocab_size": 1024}, max_position_embeddings=34, pad_token_id=1)
    folder = saved(tmp_path, transformers.RobertaModel(config))
    batches = text_batches(folder, sample_text()[:500])
    assert next(iter(batches))["input_ids"].shape == (1, 32)
    assert len(list(run_in_pieces(load_model(folder), batches))) == len(batches)


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "t5"])
def test_a_model_without_tokenizer_files_is_refused(tmp_path, architecture):
    build(architecture).save_pretrained(tmp_path)
    assert "tokenizer files may be missing" in refusal(ValueError, text_batches, tmp_path, "Some words.")


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = saved(tmp_path, build("gpt2"))
    assert "tokens must be below 50, the vocabulary of the model, got" in refusal(
        ValueError, text_batches, folder, sample_text()
    )


def test_a_length_without_room_for_a_token_is_refused(tmp_path):
    build("t5").save_pretrained(tmp_path)
    transformers.ByT5Tokenizer(model_max_length=1).save_pretrained(tmp_path)
    assert "context is too short" in refusal(ValueError, text_batches, tmp_path, "words")


@pytest.mark.parametrize(("architecture", "takes"), [("vit", "pixel_values"), ("whisper", "input_features")])
def test_a_model_that_takes_no_text_is_refused(tmp_path, architecture, takes):
    folder = saved(tmp_path, build(architecture))
    assert f"takes {takes}, not text" in refusal(ValueError, text_batches, folder, "words")


class Noisy(nn.Module):
    """Fails on negative input, and remembers whether it was in training mode."""

    def __init__(self):
        super().__init__()
        self.dropout, self.frozen, self.modes = nn.Dropout(), nn.Dropout().eval(), []

    def forward(self, x):
        self.modes.append(any(module.training for module in self.modules()))
        if x.min() < 0:
            raise KeyError("first line\nsecond line")


def test_a_model_is_run_in_evaluation_mode_and_then_as_it_was():
    model = Noisy()
    assert len(list(run_in_pieces(model, [{"x": torch.ones(1)}] * 3))) == 3
    failing = run_in_pieces(model, [{"x": -torch.ones(1)}])
    assert refusal(ValueError, list, failing).startswith("Noisy can't be run on this input: ")
    halfway = run_in_pieces(model, [{"x": torch.ones(1)}] * 3)
    next(halfway)
    halfway.close()
    assert model.modes == [False] * 5
    assert [model.training, model.dropout.training, model.frozen.training] == [True, True, False]


def test_a_model_without_values_is_not_run():
    empty = build("gpt2", device="meta")
    batches = [{"input_ids": torch.zeros(1, 4, dtype=torch.long)}]
    assert "it is on the meta device" in refusal(ValueError, list, run_in_pieces(empty, batches))
    assert "it is on the meta device" in refusal(
        ValueError, lambda: normscope.inspect(demo_model(), text="some words", device="meta")
    )
