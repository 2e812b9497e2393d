"""A checkpoint of 70B shape, inspected without being loaded: CPU time and peak memory of a new process.

The checkpoint is a Llama of 80 layers and hidden size 8192 in bfloat16, in 30 shards. Its 161 norms have values; its
large matrices are holes in sparse files, so it takes hardly any disk. Imports are part of the time.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normscope_lab.bench.new_processes import IMPORTS, TORCH, run_code, run_command
from normscope_lab.bench.timing import this_machine
from normscope_lab.results.inspect_speed import InspectRun, InspectSpeed

BYTES = 2  # of a bfloat16


@dataclass(frozen=True)
class Shape:
    """A Llama."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    vocabulary: int
    shards: int

    @property
    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
        }

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The names and shapes of its tensors."""
        head = self.hidden // self.heads
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            block, keys = f"model.layers.{layer}", self.key_heads * head
            yield f"{block}.input_layernorm.weight", (self.hidden,)
            for name, rows in (("q", self.hidden), ("k", keys), ("v", keys), ("o", self.hidden)):
                yield f"{block}.self_attn.{name}_proj.weight", (rows, self.hidden)
            yield f"{block}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{block}.mlp.gate_proj.weight", (self.intermediate, self.hidden)
            yield f"{block}.mlp.up_proj.weight", (self.intermediate, self.hidden)
            yield f"{block}.mlp.down_proj.weight", (self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocabulary, self.hidden)


LLAMA_70B = Shape(80, 8192, 28672, 64, 8, 128256, shards=30)
LLAMA_405B = Shape(126, 16384, 53248, 128, 8, 128256, shards=191)


def run() -> InspectSpeed:
    """Make the checkpoint, inspect it in a new process, delete it; then what its imports take by themselves."""
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder))
        ended = run_command("inspect", folder, "--json")
    result = json.loads(ended.output)
    kind = "llama", "LlamaForCausalLM"
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


def make_checkpoint(folder: Path, shape: Shape = LLAMA_70B) -> None:
    """Write the config, the shards and their index."""
    tensors = list(shape.tensors())
    per_shard = -(-len(tensors) // shape.shards)
    names = {}
    for number in range(shape.shards):
        file = f"model-{number + 1:05}-of-{shape.shards:05}.safetensors"
        part = tensors[number * per_shard : (number + 1) * per_shard]
        _write_shard(folder / file, part)
        names.update({name: file for name, _ in part})
    (folder / "config.json").write_text(json.dumps(shape.config), encoding="utf-8")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), encoding="utf-8")


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
