"""A config.json describes a model: nothing that it says reaches a network, chooses code or takes what it likes."""

import ast
import importlib.util
import json
import os
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers

import normscope
from normscope.cli import main
from normscope.data import demo_model
from normscope.models.architecture import build_architecture
from normscope.models.checkpoint import CheckpointError
from normscope.models.config_rules import ConfigError, allow_modules, checked_config, most_modules
from normscope.models.find import find
from normscope.models.load import load_model, load_tokenizer, text_batches
from normscope.models.token_texts import token_texts
from normscope.models.transformers_library import NoNetworkError, locked, no_network

ROOT = Path(__file__).parent.parent
GPT2 = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10, "n_positions": 8}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1], "out_features": ["stage1"]}
DETR = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}


@pytest.fixture
def folder(tmp_path):
    """A copy of the demo model, to be spoilt."""
    return shutil.copytree(demo_model(), tmp_path / "model")


@pytest.fixture
def command(monkeypatch, capfd):
    """Run the command line in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capfd.readouterr()
        return end.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def most():
    before = most_modules()
    yield allow_modules
    allow_modules(before)


def change(path, **settings):
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def connect():
    socket.create_connection(("127.0.0.1", 9), timeout=0.1)


def outcome(action):
    try:
        action()
    except OSError as error:
        return type(error)
    return None


def test_no_socket_is_opened_in_a_locked_thread_or_in_one_that_it_starts():
    found = {}
    with no_network() as asked:
        found["here"] = outcome(connect)
        inner = threading.Thread(target=lambda: found.update(inside=outcome(connect)))
        inner.start()
        inner.join()
        found["by name"] = outcome(lambda: socket.gethostbyname("example.invalid"))
        with pytest.raises(NoNetworkError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.sendto(b"", ("127.0.0.1", 9))
    assert set(found.values()) == {NoNetworkError}
    assert asked == ["127.0.0.1", "127.0.0.1", "example.invalid", "127.0.0.1"]
    assert outcome(connect) is not NoNetworkError


def test_other_threads_and_sockets_of_this_machine_are_left_alone(tmp_path):
    begin, found = threading.Event(), {}
    other = threading.Thread(target=lambda: begin.wait() and found.update(other=outcome(connect)))
    other.start()
    with no_network(), socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        client.connect(str(tmp_path / "socket"))
        begin.set()
        other.join()
    assert found["other"] is not NoNetworkError


def test_settings_of_the_hub_are_as_before(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with suppress(ZeroDivisionError), no_network():
        with no_network():
            assert huggingface_hub.is_offline_mode()
        assert huggingface_hub.is_offline_mode()
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        raise ZeroDivisionError
    assert not huggingface_hub.is_offline_mode()
    assert os.environ["HF_HUB_OFFLINE"] == "0"


def test_a_repository_is_not_read_by_name_even_where_an_earlier_download_left_it(tmp_path):
    snapshot = tmp_path / "models--any--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--any--name" / "refs").mkdir()
    (tmp_path / "models--any--name" / "refs" / "main").write_text("0" * 40)
    stored = {"repo_id": "any/name", "filename": "config.json", "cache_dir": tmp_path, "local_files_only": True}
    assert Path(huggingface_hub.hf_hub_download(**stored)).read_text() == "{}"
    with pytest.raises(NoNetworkError, match="'any/name' was asked for"), locked() as asked:
        huggingface_hub.hf_hub_download(**stored)
    assert asked == ["any/name"]
    assert Path(huggingface_hub.hf_hub_download(**stored)).read_text() == "{}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backbone": "any/name"}, "backbone must be described in backbone_config, got the name 'any/name'"),
        ({"a": [{"mask_backbone": "https://any.where"}]}, "a.mask_backbone must be described in mask_backbone_config"),
        ({"backbone": "hf-hub:name"}, "backbone must .* got the name 'hf-hub:name': nothing is loaded by name"),
        ({"backbone": "../name"}, "backbone must .* got the name '../name'"),
        ({"_attn_implementation": "any/name"}, "_attn_implementation must be one that transformers ships, got 'any/n"),
        ({"b": {"attn_implementation": {"": "sdpa", "c": "any/name@v1:run"}}}, "b.attn_implementation must be one"),
        ({"_attn_implementation_internal": "any/name"}, "_attn_implementation_internal must be one"),
        ({"convolution_implementation": "faster"}, "convolution_implementation must be one that"),
        ({"b": {"experts_implementation": "any/name"}}, "b.experts_implementation must be one that transformers"),
        ({"quantization_config": {"quant_method": "any/name"}}, "quantization_config.quant_method must be one that"),
        ({"b": {"model_type": "timm_wrapper"}}, "b.model_type must be a model of transformers, got 'timm_wrapper'"),
        ({"b": {"to_dict": 1}}, "b.to_dict must not be set: it is a method of every configuration"),
        ({"b": {"num_blocks": [1, 10**30]}}, r"b.num_blocks must be at most 1000, got \[1, 10{30}\]: a model"),
        ({"depth": float("inf")}, "depth must be at most 1000, got inf"),
    ],
)  # fmt: skip
def test_keys_that_name_code_or_a_repository_are_refused_at_any_depth(settings, message):
    with pytest.raises(ConfigError, match=f"^config.json: {message}"):
        checked_config(GPT2 | settings)


def test_a_config_that_is_nested_without_end_is_refused():
    nested = {}
    for _ in range(200):
        nested = {"text_config": [nested]}
    with pytest.raises(ConfigError, match=r"text_config\.text_config.* must not be nested more than 40 deep"):
        checked_config(nested)


def test_what_only_says_where_a_config_came_from_is_left_out():
    notes = {
        "_name_or_path": "any/name",
        "_commit_hash": "0" * 40,
        "auto_map": {"AutoModel": "evil.Model"},
        "attn_implementation": "flash_attention_2",
        "_attn_implementation": {"": "eager"},
        "backbone": None,
        "a_key_of_somebody": "any/name",
        "id2label": {"0": "update", "1": "to_dict"},
        "label2id": {"update": 0, "to_dict": 1},
    }
    plain = build_architecture(GPT2 | {"architectures": ["GPT2Model"]})
    noted = build_architecture(GPT2 | notes | {"architectures": ["GPT2Model"]})
    assert [name for name, _ in noted.named_modules()] == [name for name, _ in plain.named_modules()]
    assert noted.config.id2label == {0: "update", 1: "to_dict"}
    assert not hasattr(noted.config, "auto_map")


def test_a_backbone_that_is_described_is_built():
    model = build_architecture(DETR | {"model_type": "detr", "backbone_config": RESNET, "use_timm_backbone": False})
    assert type(model).__name__ == "DetrModel"
    assert any(isinstance(module, transformers.ResNetBackbone) for module in model.modules())


@pytest.mark.parametrize("kind", ["detr", "table-transformer", "maskformer", "vitmatte", "zoedepth"])
def test_a_bare_name_that_leads_to_a_repository_is_refused_with_its_key(kind):
    settings = {"model_type": kind, "backbone": "any-name", "backbone_config": None, "use_timm_backbone": False}
    with pytest.raises(
        ConfigError, match=r"^config.json: backbone must describe .* got the name 'any-name': nothing is"
    ):
        build_architecture(settings)


def test_a_default_that_needs_another_library_is_refused():
    with pytest.raises(ValueError, match="does not describe a model of kind 'detr': TimmBackbone requires the timm"):
        build_architecture({"model_type": "detr"})


@pytest.mark.parametrize("name", ["inspect", "ranges", "keys", "vocab", "fold"])
@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"model_type": "table-transformer", "backbone": "any-name", "use_timm_backbone": False}, "backbone"),
        ({"attn_implementation": "any/name"}, "attn_implementation"),
        ({"n_layer": 1_000_000}, "n_layer"),
    ],
)
def test_every_command_refuses_in_one_line(command, folder, tmp_path, name, settings, key):
    change(folder / "config.json", **settings)
    more = {"keys": ["--text", "sample"], "fold": ["--out", tmp_path / "folded"]}.get(name, [])
    started = time.monotonic()
    code, out, err = command(name, folder, *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"normscope: {folder}: config.json: {key} must ")
    assert len(err) < 500
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("name", "more"), [("inspect", []), ("keys", ["--text", "sample", "--heads", "1"])])
def test_a_class_that_is_no_whole_model_is_named_in_a_note(command, folder, name, more):
    if name == "keys":
        more = ["--text", str(folder / "text")]
        (folder / "text").write_text("A few words.")
    change(folder / "config.json", architectures=["PreTrainedModel"])
    code, out, err = command(name, folder, "--json", *more)
    assert code == 0
    said = json.loads(out)["notes"][0] if name == "inspect" else err
    assert "names ['PreTrainedModel'] as its architectures, not a model of transformers" in said
    assert "read as the plain model of kind 'gpt2', without a head" in said


def test_notes_are_in_the_table_of_inspect(command, folder):
    change(folder / "config.json", architectures=["OurOwnModel"])
    code, out, _ = command("inspect", folder)
    assert code == 0
    assert "names ['OurOwnModel'] as its architectures" in " ".join(out.split())


def test_the_number_of_modules_has_a_limit_that_can_be_raised(command, folder, most):
    most(10)
    with pytest.raises(ValueError, match="it must have at most 10 modules, got more: --max-modules allows more"):
        build_architecture(GPT2 | {"n_layer": 1})
    with pytest.raises(
        ConfigError, match="n_layer must be at most 1, got 2: a model may have 10 modules, --max-modules"
    ):
        build_architecture(GPT2 | {"n_layer": 2})
    assert command("--max-modules", "1000", "inspect", folder)[0] == 0
    assert command("--max-modules", "0", "inspect", folder)[2] == "normscope: --max-modules must be 1 or more, got 0\n"


@pytest.mark.parametrize("channels", [10**7, 10**8])
def test_more_channels_than_memory_allows_are_refused_before_any_is_taken(folder, channels):
    change(folder / "config.json", n_embd=channels)
    with pytest.raises(CheckpointError, match=rf"rows of {channels} numbers, asks for .* --max-gigabytes"):
        find(folder)


@pytest.mark.parametrize("length", ["128", True, 0, -3, [1], float("nan")])
def test_a_longest_input_that_is_no_number_is_refused(folder, length):
    change(folder / "tokenizer_config.json", model_max_length=length)
    with pytest.raises(CheckpointError, match=r"model_max_length in tokenizer_config.json must be a number"):
        text_batches(folder, "words")


@pytest.mark.parametrize("name", ["AutoModel", "pipeline", "GPT2LMHeadModel", ["GPT2Tokenizer"], 3])
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_tokenizer_class_that_is_no_tokenizer_is_refused(folder, file, name):
    change(folder / file, tokenizer_class=name)
    with pytest.raises(CheckpointError, match="tokenizer_class must be the name of a tokenizer"):
        load_tokenizer(folder)
    assert token_texts(folder, [3]) == [None]


def test_code_of_a_tokenizer_is_not_run(folder):
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass Tokenizer: pass\n")
    change(
        folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", None]}, tokenizer_class="Evil"
    )
    change(folder / "config.json", auto_map={"AutoTokenizer": "evil.Tokenizer", "AutoModel": "evil.Tokenizer"})
    token_texts(folder, [3])
    load_model(folder)
    assert not (folder / "ran").exists()


def test_an_adapter_is_refused(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "any/name"}))
    with pytest.raises(CheckpointError, match=r"adapter_config\.json asks for an adapter: merge it into the weights"):
        load_model(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_embd": "x" * 100_000},
        {"model_type": "x" * 100_000},
        {"n_layer": 10**4000},
        {"architectures": ["x" * 100_000], "n_embd": 3},
        {"x" * 100_000: {"to_dict": 3}},
        {"attn_implementation": "x" * 100_000},
    ],
)
def test_messages_are_never_long(folder, settings):
    change(folder / "config.json", **settings)
    said = ""
    for read in (load_tokenizer, load_model, normscope.find):
        try:
            read(folder)
        except ValueError as error:
            said = max(said, str(error), key=len)
    assert 0 < len(said) - len(str(folder)) < 500


def test_private_parts_of_transformers_are_used_in_one_file_only():
    users = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("transformers.", "huggingface_hub")
            ):
                users.add(path.name)
    assert users == {"transformers_library.py"}


def hostile_configs():
    place = importlib.util.spec_from_file_location("hostile_configs", ROOT / "tools" / "hostile_configs.py")
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["gpt2", "detr", "table-transformer", "llava", "musicgen"])
def test_hostile_keys_of_a_sample_of_model_types_reach_nothing(monkeypatch, kind):
    attempts = []

    def deny(*arguments, **_):
        attempts.append(arguments)
        raise OSError("networks are denied")

    monkeypatch.setattr(socket, "getaddrinfo", deny)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    tried = hostile_configs().try_type(kind, attempts, most_fields=2)
    counts = tried["counts"]
    assert tried["lines"] == []
    assert counts["cases"] == counts["refused"] + counts.get("built", 0) > 10
    assert counts["types that connect without normscope"] == ("transformer" in kind or kind == "detr")


def test_a_socket_that_is_asked_for_while_a_model_is_built_is_named_with_its_key_if_it_has_one(monkeypatch):
    def reaching(self, config, **_):
        torch.nn.Module.__init__(self)
        socket.create_connection((getattr(config, "a_new_key", "fixed.place"), 80))

    monkeypatch.setattr(transformers.GPT2Model, "__init__", reaching)
    with pytest.raises(
        ConfigError, match=r"a_new_key must describe a part of the model, got the name 'any\.where': noth"
    ):
        build_architecture(GPT2 | {"a_new_key": "any.where"})
    with pytest.raises(ValueError, match=r"model of kind 'gpt2': no network is used, but 'fixed\.place' was asked for"):
        build_architecture(GPT2)
