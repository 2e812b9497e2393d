"""Models that accelerate places: layers in memory, the others on the disk; what is measured is the same."""

import pytest
import torch
from torch import nn

import normscope
from normscope.errors import InputError
from normscope.models import load
from normscope.models.load import load_model
from tiny_models import build

accelerate = pytest.importorskip("accelerate", reason="device maps need accelerate, of the test extra")

EXAMPLE = {"input_ids": torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])}


@pytest.fixture
def placed(monkeypatch):
    """Give models that accelerate places half of the memory that they need; returns those that were loaded."""
    loaded, usual = [], load.load_model

    def with_room(path, *, device, dtype):
        half = sum(file.stat().st_size for file in path.glob("*.safetensors")) // 2
        loaded.append(usual(path, device=device, dtype=dtype, room={"cpu": half} if device == "auto" else None))
        return loaded[-1]

    monkeypatch.setattr("normscope.models.subject.load_model", with_room)
    return loaded


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_layers_on_the_disk_change_nothing(tmp_path, placed, architecture):
    build(architecture).eval().save_pretrained(tmp_path)
    alone = normscope.inspect(tmp_path, inputs=EXAMPLE)
    together = normscope.inspect(tmp_path, inputs=EXAMPLE, device="auto")
    model = placed[-1]
    assert {"disk", "cpu"} == set(model.hf_device_map.values())
    assert any(parameter.is_meta for parameter in model.parameters())
    assert alone.norms[0].landing.inputs == 8
    assert together.to_bytes() == alone.to_bytes()


def test_keys_are_judged_and_what_needs_all_layers_says_so(tmp_path, placed):
    build("llama").eval().save_pretrained(tmp_path)
    alone, together = (normscope.keys(tmp_path, inputs=EXAMPLE, device=device) for device in ("cpu", "auto"))
    assert any(parameter.is_meta for parameter in placed[-1].parameters())
    assert alone.places
    assert together.places == alone.places
    with pytest.raises(InputError, match="its layers are not all in memory: run it on one device"):
        normscope.keys(tmp_path, inputs=EXAMPLE, device="auto", queries="reachable")
    with pytest.raises(InputError, match="lm_head must have its matrix in memory"):
        normscope.vocab(tmp_path, device="auto")


def test_a_model_that_fits_stays_in_memory(tmp_path):
    build("llama").eval().save_pretrained(tmp_path)
    model = load_model(tmp_path, device="auto", room={"cpu": 10**9})
    assert not any(parameter.is_meta for parameter in model.parameters())
    assert not model.training


def test_weights_that_are_brought_for_each_call_change_nothing():
    """CPU offload: outside of a call, all parameters are on the meta device."""
    model, offloaded = build("llama").eval(), accelerate.cpu_offload(build("llama").eval(), torch.device("cpu"))
    assert all(parameter.is_meta for parameter in offloaded.parameters())
    seen = []
    for each in (model, offloaded):
        with normscope.capture(each, norms=["model.norm"], heads=True) as captured:
            for _ in load.run_in_pieces(each, [EXAMPLE]):
                pass
        seen.append([captured.norms["model.norm"].input, *(heads.key for heads in captured.heads.values())])
    assert len(seen[0]) == 3
    for ours, expected in zip(*seen, strict=True):
        assert torch.equal(ours, expected)


def test_what_can_not_be_placed_is_said(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"device auto needs a folder with config.json, got .*\.gguf"):
        load_model(tmp_path / "model.gguf", device="auto")
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"device auto needs accelerate: pip install 'normscope\[large\]'"):
        load_model(tmp_path, device="auto")
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(InputError, match="it is on the meta device"):
        next(load.run_in_pieces(empty, [{"input": torch.ones(1, 2)}]))
