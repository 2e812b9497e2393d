"""Folding from files to files without loading a model, and folders of folded models checked against their originals."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import normscope as ns
from folding_models import OTHERS, REQUIRED, folding_model
from normscope.data import demo_model
from normscope.errors import InputError, NotCertifiedError
from normscope.models.load import load_model
from normscope.rewrite import fold_files
from normscope.rewrite.folded_files import MATRICES

SOME = ("gpt2", "bert", "gemma2", "mixtral", "llama4_text")  # LayerNorm, post-norm, 1 + w, experts merged and not


def saved(folder, architecture, dtype=torch.bfloat16, shard="5KB"):
    """A tiny model in several files."""
    folding_model(architecture).to(dtype).save_pretrained(folder, max_shard_size=shard)
    return folder


def decided(folding):
    return {verdict.norm: (verdict.centring.what, verdict.affine.what) for verdict in folding.norms}


def compared_with_a_run(place, architecture, dtype):
    """Tensors and verdicts of a fold from files to files are those of a fold of the loaded model."""
    original = saved(place / "model", architecture, dtype)
    by_files, by_run = (ns.fold(original, out=place / name, run=name == "run") for name in ("files", "run"))
    tensors = [load_model(place / name, dtype=by_run.dtype).state_dict() for name in ("files", "run")]
    assert by_files.holds
    assert tensors[0].keys() == tensors[1].keys()
    assert [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])] == []
    assert set(by_files.changed) == set(by_run.changed)
    known = {norm for norm, verdict in decided(by_run).items() if verdict != ("kept", "kept")}  # not by itself: in use
    assert {norm: decided(by_files)[norm] for norm in known} == {norm: decided(by_run)[norm] for norm in known}
    for name in ("files", "run"):
        checked = ns.verify(place / name, against=original)
        assert checked.holds, checked.reason


@pytest.mark.parametrize("architecture", SOME)
def test_a_fold_from_files_to_files_writes_what_a_fold_with_a_run_writes(architecture, tmp_path):
    compared_with_a_run(tmp_path, architecture, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("architecture", REQUIRED + OTHERS)
def test_so_it_does_for_every_architecture(architecture, dtype, tmp_path):
    compared_with_a_run(tmp_path, architecture, dtype)


def test_no_model_is_loaded_and_files_keep_their_names(monkeypatch, tmp_path):
    original = saved(tmp_path / "model", "llama")
    with monkeypatch.context() as patched:
        patched.setattr("normscope.models.load.load_model", None)
        patched.setattr("normscope.models.subject.load_model", None)
        patched.setattr("normscope.rewrite.saved_model.load_model", None)
        folding = ns.fold(original, out=tmp_path / "folded", run=False)
    indices = [json.loads((tmp_path / name / fold_files.INDEX).read_text()) for name in ("model", "folded")]
    assert len({*indices[0]["weight_map"].values()}) > 2
    assert indices[0]["weight_map"] == indices[1]["weight_map"]
    assert indices[0]["metadata"]["total_size"] == indices[1]["metadata"]["total_size"]
    assert folding.certificate is None
    assert ns.load(tmp_path / "folded").to_dict() == folding.to_dict()


def test_a_checkpoint_that_is_folded_twice_is_folded_further_by_nothing(tmp_path):
    original = saved(tmp_path / "model", "gpt2", torch.float64)
    ns.fold(original, out=tmp_path / "once", run=False)
    again = ns.fold(tmp_path / "once", out=tmp_path / "twice", run=False)
    assert again.holds
    tensors = [load_model(tmp_path / name, dtype="float64").state_dict() for name in ("once", "twice")]
    for name, values in tensors[0].items():
        torch.testing.assert_close(values, tensors[1][name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", ["o_proj", "q_proj", "input_layernorm"])
def test_a_tensor_that_is_written_otherwise_than_claimed_fails_and_leaves_nothing(
    wrong, monkeypatch, tmp_path, run_here
):
    honest = fold_files.FoldedWeights.rounded

    def careless(self, name, dtype):
        values = honest(self, name, dtype)
        return values * 1.01 if wrong in name else values

    original = saved(tmp_path / "model", "llama")
    if wrong == "o_proj":  # nothing that a fold changes
        monkeypatch.setattr(
            fold_files.FoldedWeights, "touched", property(lambda self: frozenset(self.names.first_names))
        )
    monkeypatch.setattr(fold_files.FoldedWeights, "rounded", careless)
    with pytest.raises(NotCertifiedError, match="not what they should be"):
        ns.fold(original, out=tmp_path / "folded", run=False)
    assert run_here("fold", original, "--no-run", "-o", tmp_path / "folded").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rotate": "hadamard"}, "rotate needs a run"),
        ({"rescale": "float16"}, "rescale needs a run"),
        ({"rms": True}, "rms needs a run"),
        ({"untie": True}, "untie needs a run"),
        ({"out": None}, "give its name"),
        ({"text": "To be"}, "no text or inputs"),
    ],
    ids=str,
)
def test_what_needs_a_run_is_refused_without_one(options, words, tmp_path):
    with pytest.raises(InputError, match=words):
        ns.fold(demo_model(), **{"out": tmp_path / "folded", "run": False, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_module_and_other_formats_are_refused(tmp_path):
    model = folding_model("llama")
    with pytest.raises(InputError, match="needs a folder"):
        ns.fold(model, out=tmp_path / "folded", run=False)
    saved(tmp_path / "model", "llama", shard="1GB")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors files to be rewritten"):
        ns.fold(tmp_path / "model", out=tmp_path / "folded", run=False)


REWRITES = {
    "folded": {},
    "rescaled": {"rescale": "float16"},
    "rotated": {"rotate": "hadamard", "rotate_heads": True, "untie": True},
    "both": {"rotate": "random", "rescale": "float16", "untie": True},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The demo model with large writers, rewritten in every way, beside the original."""
    place = tmp_path_factory.mktemp("rewritten")

    def enlarge(tensors):
        for name in (name for name in tensors if name.endswith("c_proj.weight")):
            tensors[name] *= 2.0**14

    original = altered(demo_model(), place / "original", enlarge)
    for name, options in REWRITES.items():
        ns.fold(original, out=place / name, **options)
    ns.fold(original, out=place / "by files", run=False)
    return place


@pytest.mark.parametrize("name", [*REWRITES, "by files"])
def test_a_folder_is_checked_against_its_original_by_tensors_and_by_a_run(name, folders):
    checked = ns.verify(folders / name, text="To be, or not to be")
    assert checked.holds, checked.reason
    assert "in float64, on input_ids" in checked.reason
    assert "Neither model was run" in ns.verify(folders / name).reason


@pytest.mark.parametrize("architecture", ["gemma3_text", "qwen3_moe", "vit", "gpt_oss"])
def test_so_are_rewrites_of_other_architectures(architecture, tmp_path):
    original = tmp_path / "model"
    folding_model(architecture).save_pretrained(original)
    ns.fold(original, out=tmp_path / "rewritten", rotate="hadamard", rescale="float16", untie=True)
    checked = ns.verify(tmp_path / "rewritten", against=original)
    assert checked.holds, checked.reason


def altered(folder, place, change):
    """A copy of a folder with other tensors."""
    shutil.copytree(folder, place)
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


@pytest.mark.parametrize("name", [*REWRITES, "by files"])
def test_one_number_that_is_off_by_two_units_in_the_last_place_is_found(name, folders, tmp_path):
    for tensor in ("transformer.h.1.attn.c_attn.weight", "transformer.h.0.mlp.c_proj.bias", "transformer.wpe.weight"):

        def nudge(tensors, tensor=tensor):
            flat = tensors[tensor].view(-1)
            largest = int(flat.abs().argmax())
            flat[largest] *= 1 + 3 * torch.finfo(flat.dtype).eps

        checked = ns.verify(altered(folders / name, tmp_path / tensor, nudge))
        assert not checked.holds
        assert tensor in checked.reason


def with_json(folder, place, file, change):
    """A copy of a folder with another JSON file."""
    shutil.copytree(folder, place)
    content = json.loads((place / file).read_text())
    change(content)
    (place / file).write_text(json.dumps(content))
    return place


def test_other_settings_claims_and_matrices_are_found(folders, tmp_path):
    def other_eps(config):
        config["layer_norm_epsilon"] *= 2

    for name in REWRITES:
        checked = ns.verify(with_json(folders / name, tmp_path / f"eps {name}", "config.json", other_eps))
        assert not checked.holds
        assert "layer_norm_epsilon" in checked.reason

    def no_exponent(folding):
        folding["claims"]["exponents"].pop("transformer.wte.weight")

    assert not ns.verify(with_json(folders / "both", tmp_path / "exponent", "folding.json", no_exponent)).holds

    def turned_once_more(folding):
        folding["claims"]["turned"].append(folding["claims"]["turned"][0])

    assert not ns.verify(with_json(folders / "both", tmp_path / "turned", "folding.json", turned_once_more)).holds
    shutil.copytree(folders / "rotated", tmp_path / "no matrix")
    (tmp_path / "no matrix" / MATRICES).unlink()
    assert "every matrix of a rotation is there" in ns.verify(tmp_path / "no matrix").reason
    shutil.copytree(folders / "rotated", tmp_path / "stretched")
    held = np.load(folders / "rotated" / MATRICES)
    np.savez(tmp_path / "stretched" / MATRICES, *(2 * held[name] for name in held))
    assert "is orthogonal" in ns.verify(tmp_path / "stretched").reason


def test_a_gain_that_no_reader_took_over_is_found_by_the_run(folders, tmp_path):
    """Its tensors are what the claims say, but the claims are of another function."""
    place, norm = tmp_path / "lost", "transformer.h.1.ln_1"

    def forget(folding):
        taken = next(each for each in folding["claims"]["taken"] if each["norm"] == norm)
        taken["readers"] = []

    with_json(folders / "by files", place, "folding.json", forget)
    tensors, before = (load_file(path / "model.safetensors") for path in (place, folders / "original"))
    for name in ("transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_attn.bias"):
        tensors[name] = before[name]
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    assert ns.verify(place).holds
    checked = ns.verify(place, text="To be, or not to be")
    assert not checked.holds
    assert checked.reason.startswith("failed: in float64")


def test_what_a_folder_can_be_checked_with_is_told(folders, tmp_path, run_here):
    assert run_here("verify", folders / "rotated", "--text", "sample").returncode == 0
    other = saved(tmp_path / "model", "llama")
    with pytest.raises(InputError, match="another model: it has no tensor"):
        ns.verify(folders / "folded", against=other)
    with pytest.raises(InputError, match="takes no label"):
        ns.verify(folders / "folded", label="class")
    moved = with_json(folders / "folded", tmp_path / "moved", "folding.json", lambda each: each.update(model="gone"))
    with pytest.raises(InputError, match="give its path"):
        ns.verify(moved)
    assert ns.verify(moved, against=folders / "original").holds
    ns.selectable([[0.0], [1.0]]).save(tmp_path / "keys.safetensors")
    with pytest.raises(InputError, match="takes no text"):
        ns.verify(tmp_path / "keys.safetensors", text="To be")
    alone = replace(ns.load(folders / "folded"))
    alone_file = tmp_path / "folding.safetensors"
    alone_file.write_bytes(alone.to_bytes())
    with pytest.raises(InputError, match="only a folder"):
        ns.verify(alone_file)


def test_a_checkpoint_with_two_values_of_one_tensor_is_refused(tmp_path):
    shutil.copytree(demo_model(), tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1
    save_file(tensors, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="stored with other values"):
        ns.fold(tmp_path / "model", out=tmp_path / "folded", run=False)


def test_matrices_in_many_parts_are_those_of_one_part(monkeypatch, tmp_path):
    original = saved(tmp_path / "model", "gpt_oss", torch.float32)
    ns.fold(original, out=tmp_path / "whole", run=False)
    monkeypatch.setattr("normscope.rewrite.folded_weights.BLOCK", 7)
    monkeypatch.setattr("normscope.certificates.check_fold_files.BLOCK", 5)
    ns.fold(original, out=tmp_path / "parts", run=False)
    one, other = (load_model(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-6
    assert ns.verify(tmp_path / "whole", against=original).holds
