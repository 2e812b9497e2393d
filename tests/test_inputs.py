"""What models are called with: examples by their configuration, and inputs of one's own, in memory or in a file."""

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

import normscope
from architectures import made, random_model
from normscope import fold
from normscope.data import demo_model
from normscope.models.batches import batches_for, first_batch, read_inputs
from normscope.models.example_inputs import example_inputs
from normscope.models.load import text_batches
from tiny_models import build

SHAPES = {  # of an example, where it is more than token ids
    "whisper": {"input_features": (2, 4, 16), "decoder_input_ids": (2, 8)},
    "vit": {"pixel_values": (2, 3, 8, 8)},
    "clip": {"input_ids": (2, 8), "pixel_values": (2, 3, 8, 8)},
    "siglip2": {"input_ids": (2, 8), "pixel_values": (2, 8, 48), "spatial_shapes": (2, 2),
                "pixel_attention_mask": (2, 8)},
    "wav2vec2": {"input_values": (2, 36)},
    "moonshine": {"input_values": (2, 3583), "decoder_input_ids": (2, 8)},
    "clap": {"input_ids": (2, 8), "input_features": (2, 1, 128, 8), "is_longer": (2, 1)},
    "sam": {"pixel_values": (2, 3, 16, 16), "input_points": (2, 1, 1, 2)},
    "vjepa2": {"pixel_values_videos": (2, 4, 3, 8, 8)},
    "t5gemma": {"input_ids": (2, 8), "decoder_input_ids": (2, 8)},
    "convnext": {"pixel_values": (2, 3, 32, 32)},
}  # fmt: skip


def refusal(kind, function, *arguments, **options):
    with pytest.raises(kind) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clip")
    random_model("clip").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("architecture", SHAPES)
def test_a_model_runs_on_an_example_of_what_its_configuration_describes(architecture):
    model = made(architecture).eval()
    inputs = example_inputs(model)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == SHAPES[architecture]
    with torch.no_grad():
        model(**inputs)
    again = example_inputs(model)
    assert all(torch.equal(inputs[name], again[name]) for name in inputs)


def test_examples_are_on_the_device_and_in_the_dtype_of_the_model():
    with torch.device("meta"):
        model = made("vit").bfloat16()
    pixels = example_inputs(model)["pixel_values"]
    assert (pixels.is_meta, pixels.dtype) == (True, torch.bfloat16)


def test_tokens_are_in_the_vocabulary_and_have_no_meaning_of_their_own():
    assert int(example_inputs(build("gpt2"))["input_ids"].max()) < 50
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=3, bos_token_id=0, eos_token_id=2, pad_token_id=0
    )
    assert set(example_inputs(transformers.GPT2Model(config))["input_ids"].flatten().tolist()) == {1}


def test_a_model_whose_tokens_stand_for_pictures_gets_text_alone():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.LlavaConfig(
        text_config={"model_type": "llama", **small, "vocab_size": 40, "num_key_value_heads": 2},
        vision_config={"model_type": "clip_vision_model", **small, "image_size": 8, "patch_size": 4},
        image_token_index=7,
    )
    inputs = example_inputs(transformers.LlavaModel(config))
    assert list(inputs) == ["input_ids"]
    assert 7 not in inputs["input_ids"]


@pytest.mark.parametrize("name", ["ResNet", "Segformer"])
def test_sizes_that_a_configuration_leaves_open_are_the_processor_s_or_small(name, tmp_path):
    with torch.device("meta"):
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
    assert example_inputs(model)["pixel_values"].shape == (2, 3, 64, 64)
    for settings, shape in (
        ({"size": {"height": 96, "width": 32}}, (96, 32)),
        ({"size": {"shortest_edge": 48}}, (48, 48)),
        ({"size": 256, "crop_size": {"height": 224, "width": 224}}, (224, 224)),
        ({"image_processor": {"size": [40, 40]}}, (40, 40)),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
        assert example_inputs(model, tmp_path)["pixel_values"].shape == (2, 3, *shape)


def test_the_processor_of_the_folder_that_a_model_was_loaded_from_is_read(tmp_path):
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1])
    transformers.ResNetModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"size": {"shortest_edge": 40}}', encoding="utf-8")
    loaded = transformers.ResNetModel.from_pretrained(tmp_path)
    assert example_inputs(loaded)["pixel_values"].shape == (2, 3, 40, 40)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "preprocessor_config.json must be JSON"),
        ('{"size": {"height": 100000, "width": 100000}}', "numbers, and 268435456 are the limit"),
        ('{"size": {"height": -1, "width": 8}}', "must be one or two whole numbers, got [-1, 8]"),
        ('{"size": [1, 2, 3]}', "must be one or two whole numbers"),
        ('{"size": "224"}', "must be one or two whole numbers"),
    ],
)
def test_a_processor_that_asks_for_nonsense_is_refused(content, words, tmp_path):
    with torch.device("meta"):
        model = transformers.ResNetModel(transformers.ResNetConfig())
    (tmp_path / "preprocessor_config.json").write_text(content, encoding="utf-8")
    assert words in refusal(ValueError, example_inputs, model, tmp_path)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("DecisionTransformer", "no rule for its 'states'"), ("Canine", "its configuration does not say vocab_size")],
)
def test_what_can_t_be_generated_is_named_with_what_helps(name, missing):
    with torch.device("meta"):
        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
    assert refusal(ValueError, example_inputs, model) == (
        f"an example input must be given for {name}Model: {missing} (--inputs FILE, or inputs= in Python)"
    )


def test_a_plain_module_needs_an_example():
    assert "an example input must be given for Linear" in refusal(ValueError, example_inputs, nn.Linear(2, 2))


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_inputs_are_read_from_both_kinds_of_files(ending, tmp_path):
    tensors = {"input_ids": torch.arange(6).reshape(2, 3), "pixel_values": torch.rand(2, 3, 8, 8)}
    path = tmp_path / f"inputs{ending}"
    if ending == ".npz":
        np.savez_compressed(path, **{name: value.numpy() for name, value in tensors.items()})
    else:
        save_file(tensors, path)
    found = read_inputs(path)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_files_that_hold_no_inputs_are_refused_in_one_line(tmp_path):
    def file(name, **arrays):
        np.savez(tmp_path / name, **arrays)
        return tmp_path / name

    for path, words in (
        (file("nan.npz", x=np.array([1.0, np.nan])), "input 'x' must be finite and real, got 1 NaN or infinite of 2"),
        (file("complex.npz", x=np.array([1j])), "array 'x' must hold numbers or text, got dtype dtype('complex128')"),
        (file("words.npz", x=np.array(["a"])), "input 'x' must be a tensor or an array of numbers"),
        (file("objects.npz", x=np.array([{}], dtype=object)), "not a readable .npz file"),
    ):
        assert words in refusal(ValueError, read_inputs, path)
    save_file({}, tmp_path / "empty.safetensors")
    assert "must hold tensors" in refusal(ValueError, read_inputs, tmp_path / "empty.safetensors")
    (tmp_path / "text.npz").write_text("words", encoding="utf-8")
    assert "not a readable .npz file" in refusal(ValueError, read_inputs, tmp_path / "text.npz")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    assert "cut.safetensors" in refusal(ValueError, read_inputs, tmp_path / "cut.safetensors")
    assert "must end in .npz or .safetensors" in refusal(ValueError, read_inputs, tmp_path / "inputs.csv")
    with pytest.raises(OSError, match="missing"):
        read_inputs(tmp_path / "missing.npz")


class Two(nn.Module):
    """A module of two inputs, one of which it needs."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x, shift=None):
        return self.layer(self.norm(x if shift is None else x + shift))


def test_a_batch_must_fit_the_parameters_of_forward():
    model = Two().double()
    fitted = first_batch(model, {"x": np.ones((3, 4), dtype=np.float32)})
    assert fitted["x"].dtype == torch.float64
    wrong = refusal(ValueError, first_batch, model, {"x": torch.ones(3, 4), "y": torch.ones(1)})
    assert wrong == "inputs must be named like parameters of Two.forward, got 'y'; they are x, shift"
    assert "inputs must have 'x', which Two.forward needs" in refusal(
        ValueError, first_batch, model, {"shift": torch.ones(4)}
    )
    assert "must be a mapping" in refusal(ValueError, first_batch, model, ["words"])
    assert fitted["x"].equal(first_batch(model, [torch.ones(3, 4)])["x"])
    assert "at least one batch" in refusal(ValueError, batches_for, model, [])
    assert "3 NaN or infinite" in refusal(ValueError, first_batch, model, {"x": torch.full((1, 3), torch.inf)})


def test_batches_are_taken_one_after_the_other():
    asked = []

    def batches():
        for size in (1, 2, 3):
            asked.append(size)
            yield {"x": torch.ones(size, 4)}

    given = batches_for(Two(), batches())
    assert (len(next(given)["x"]), asked) == (1, [1])
    assert [len(batch["x"]) for batch in given] == [2, 3]


def test_a_module_of_one_s_own_is_studied_on_inputs():
    model, batch = Two(), {"x": torch.randn(5, 4, generator=torch.Generator().manual_seed(0))}
    (norm,) = normscope.inspect(model, inputs=[batch, batch]).norms
    assert (norm.landing.inputs, norm.read_by) == (10, ("layer",))
    (layer,) = normscope.ranges(model, inputs=batch).layers
    assert (layer.layer, layer.norm) == ("layer", "norm")
    folding = normscope.fold(model, inputs=batch)
    assert folding.certificate.holds
    assert folding.certificate.inputs == "x 5×4"
    assert "cannot be combined" in refusal(ValueError, normscope.inspect, model, inputs=batch, text="words")


def test_keys_of_a_live_module_and_of_a_folder_are_those_of_inputs():
    (batch,) = text_batches(demo_model(), "To be, or not to be.")
    of_text = normscope.keys(demo_model(), text="To be, or not to be.")
    of_inputs = normscope.keys(demo_model(), inputs=batch)
    assert of_inputs.text is None
    assert of_inputs.places == of_text.places
    assert normscope.keys(normscope.models.load.load_model(demo_model()), inputs=[batch]).sequences == 1


def test_two_towers_are_folded_from_the_command_line_s_own_call(clip, tmp_path):
    folding = fold(clip, out=tmp_path / "folded")
    assert folding.not_run == ()
    assert folding.certificate.inputs == "input_ids 2×8, pixel_values 2×3×8×8"
    own = {"input_ids": torch.arange(3, 9).reshape(1, 6), "pixel_values": torch.ones(1, 3, 8, 8)}
    folding = fold(clip, out=tmp_path / "again", inputs=own)
    assert folding.certificate.inputs == "input_ids 1×6, pixel_values 1×3×8×8"


def test_a_sound_model_is_traced_from_its_folder(tmp_path):
    """Its mask vector is made on the CPU even where everything else is on the meta device."""
    random_model("wav2vec2").save_pretrained(tmp_path)
    found = normscope.inspect(tmp_path)
    assert found.placement == "pre-norm"
    assert all(norm.reads is not None for norm in found.norms)


def test_every_line_of_a_text_is_a_sequence():
    text = "To be, or not to be.\n\n  \nThat is the question.\nTo be"
    batches = text_batches(demo_model(), text.splitlines())
    apart = [next(iter(text_batches(demo_model(), line))) for line in text.split("\n") if line.strip()]
    assert len(batches) == len(apart) == 3
    assert all(torch.equal(one["input_ids"], other["input_ids"]) for one, other in zip(batches, apart, strict=True))
    assert len(text_batches(demo_model(), text)) == 1
    found = normscope.keys(demo_model(), text=text.splitlines())
    assert (found.sequences, normscope.keys(demo_model(), text=text).sequences) == (3, 1)
    tokens = sum(batch["input_ids"].numel() for batch in apart)
    assert normscope.inspect(demo_model(), text=text.splitlines()).norms[0].landing.inputs == tokens


def test_a_line_that_is_too_long_is_cut_and_joined_with_no_other():
    long = "word " * 300
    batches = list(text_batches(demo_model(), [long, "short"]))
    alone = list(text_batches(demo_model(), long.rstrip()))
    assert len(alone) > 1
    assert len(batches) == len(alone) + 1


def test_a_text_that_names_a_file_is_refused_with_what_to_do(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("To be, or not to be")
    message = refusal(ValueError, normscope.inspect, normscope.demo_model(), text=str(file))
    assert "is the name of a file: give Path(" in message
    assert normscope.inspect(normscope.demo_model(), text=file).text == "19 characters"


def test_only_modules_can_be_captured():
    assert "model must be a torch module" in refusal(ValueError, normscope.capture, normscope.demo_model())
