"""A checkpoint of 70B shape, inspected without being loaded: CPU time and peak memory of a new process.

The checkpoint is a Llama of 80 layers and hidden size 8192 in bfloat16, in 30 shards. Its 161 norms have values; its
large matrices are holes in sparse files, so it takes hardly any disk. Imports are part of the time.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from normscope_lab.bench.new_processes import IMPORTS, TORCH, run_code, run_command
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.inspect_speed import InspectRun, InspectSpeed

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, VOCABULARY, SHARDS = 80, 8192, 28672, 64, 8, 128256, 30
BYTES = 2  # of a bfloat16
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def run() -> InspectSpeed:
    """Make the checkpoint, inspect it in a new process, delete it; then what its imports take by themselves."""
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder))
        ended = run_command("inspect", folder, "--json")
    result = json.loads(ended.output)
    kind = str(CONFIG["model_type"]), "LlamaForCausalLM"
    found = InspectRun(
        parameters=result["parameters"],
        norms=len(result["norms"]),
        cpu_seconds=ended.cpu_seconds,
        torch_seconds=run_code(sys.executable, TORCH).cpu_seconds,
        import_seconds=run_code(sys.executable, IMPORTS, *kind).cpu_seconds,
        export_seconds=ended.export_seconds,
        peak_megabytes=ended.peak_megabytes,
    )
    return InspectSpeed(this_machine(), (found,))


def make_checkpoint(folder: Path) -> None:
    """Write the config, the shards and their index."""
    tensors = list(_tensors())
    per_shard = -(-len(tensors) // SHARDS)
    names = {}
    for number in range(SHARDS):
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        part = tensors[number * per_shard : (number + 1) * per_shard]
        _write_shard(folder / file, part)
        names.update({name: file for name, _ in part})
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")


def _tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    head = HIDDEN // HEADS
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        yield f"{block}.input_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", KEY_HEADS * head), ("v", KEY_HEADS * head), ("o", HIDDEN)):
            yield f"{block}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        yield f"{block}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{block}.mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{block}.mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{block}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    header, place, values = {}, 0, {}
    for name, shape in tensors:
        size = BYTES * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        if len(shape) == 1:
            values[place] = _gains(name, shape[0])
        place += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for offset, stored in values.items():
            file.seek(start + offset)
            file.write(stored)
        file.truncate(start + place)


def _gains(name: str, size: int) -> bytes:
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    drawn = 1 + 0.1 * torch.randn(size, generator=generator)
    return drawn.bfloat16().view(torch.uint8).numpy().tobytes()
