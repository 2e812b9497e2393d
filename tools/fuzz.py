"""Damaged and hostile files for every reader of the package: each must end in a result or in one of our errors.

    python tools/fuzz.py --list
    python tools/fuzz.py certificates --cases 100000 --seed 1
    python tools/fuzz.py certificates --seed 1 --only 4711
    python tools/fuzz.py all --cases 1000000 --seed 1 --json docs/results/fuzz.json
    python tools/fuzz.py --table docs/results/fuzz.json

A case is a small valid file, damaged: bits flipped, bytes cut, moved or replaced, or its structure changed with the
rest put right (JSON values, declared shapes, ranks and dtypes, flags of archives, archives that unpack to gigabytes).
It depends on the reader, the seed and its number alone, so it can be repeated.

Cases run in a child process with a limit on memory and on CPU time per case. A case is right if the file is read, or
refused by NormscopeError or OSError (which the command line turns into one line and exit code 2) with a message of one
line and at most 600 characters. Anything else is a finding: another exception, a longer message, more memory or time,
a process that dies.
"""

import argparse
import contextlib
import gzip
import io
import json
import mmap
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from normscope.errors import NormscopeError

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
LONGEST = 600  # characters of a message
BATCH = 20_000  # cases of one child
ALLOWED = 0.05  # GB that a file may ask for beyond its own size (--max-gigabytes)
FAST = Path("/dev/shm")  # a folder in memory, where there is one
Random = random.Random


# ---------------------------------------------------------------------------------------------------------- readers


@dataclass(frozen=True)
class Reader:
    """Something that reads what a user gives."""

    what: str
    prepare: Callable[[Path], list[Path]]  # writes valid files to an empty folder, and says which are to be damaged
    read: Callable[[Path], object]  # reads what was damaged; says what the user would see, if it is more than a result
    share: float  # of a thousand cases of all readers: more where a case takes less time


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def tensors() -> dict[str, Any]:
    import torch

    return {
        "h.0.ln_1.weight": torch.tensor([0.5, 2.0, 1.0, -1.0]),
        "h.0.ln_1.bias": torch.zeros(4),
        "h.0.mlp.weight": torch.ones(3, 4, dtype=torch.bfloat16),
        "norm.weight": torch.full((4,), 3.0, dtype=torch.float64),
        "count": torch.tensor(7),
    }


def read_checkpoint(path: Path) -> None:
    from normscope.models.checkpoint import open_checkpoint
    from normscope.models.find import find
    from normscope.models.token_texts import token_texts

    with open_checkpoint(path) as checkpoint:
        for name in checkpoint.names:
            checkpoint.tensor(name)
    if path.suffix == ".gguf":
        token_texts(path, [0, 2, 5])
    find(path)


def prepare_safetensors(folder: Path) -> list[Path]:
    from safetensors.torch import save

    return [write(folder / "model.safetensors", save(tensors(), metadata={"format": "pt"}))]


def prepare_gguf(folder: Path) -> list[Path]:
    import gguf
    import numpy as np

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "Ġc"])
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(4, np.float32))
    writer.add_tensor("output.weight", np.ones((2, 32), np.float16))
    quantized = gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.ffn_up.weight", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path]


def prepare_torch(folder: Path) -> list[Path]:
    import torch

    torch.save(tensors(), folder / "a.pt")
    torch.save({"epoch": 3, "state_dict": tensors()}, folder / "b.bin")
    torch.save(tensors(), folder / "c.pth", _use_new_zipfile_serialization=False)
    return [folder / name for name in ("a.pt", "b.bin", "c.pth")]


def prepare_index(folder: Path) -> list[Path]:
    from safetensors.torch import save

    places = {}
    for number, name in enumerate(tensors()):
        places[name] = f"part-{number % 2}.safetensors"
    for shard in set(places.values()):
        write(folder / shard, save({name: tensor for name, tensor in tensors().items() if places[name] == shard}))
    index = {"metadata": {"total_size": 100}, "weight_map": places}
    return [write(folder / "model.safetensors.index.json", json.dumps(index))]


def read_folder(path: Path) -> None:
    read_checkpoint(path.parent)


@cache
def tiny_gpt() -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": 300}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def prepare_config(folder: Path) -> list[Path]:
    tiny_gpt().save_pretrained(folder)
    return [folder / "config.json"]


def prepare_tokenizer(folder: Path) -> list[Path]:
    from normscope_lab.training.byte_pairs import learned_pairs

    tiny_gpt().save_pretrained(folder)
    learned_pairs(["to be or not to be"] * 9, 262, special=["<end>"]).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 16, "eos_token": "<end>"}
    return [
        write(folder / "tokenizer_config.json", json.dumps(settings)),
        folder / "tokenizer.json",
        write(folder / "special_tokens_map.json", json.dumps({"eos_token": "<end>"})),
    ]


def read_tokenizer(path: Path) -> None:
    from normscope.models.load import text_batches
    from normscope.models.token_texts import token_texts

    token_texts(path.parent, [0, 5, 261])
    for batch in text_batches(path.parent, "to be or not to be, that is the question"):
        assert batch["input_ids"].shape[1] <= 16


def keys_and_answers() -> Iterator[Any]:
    import numpy as np

    from normscope import Norm, selectable

    keys = np.random.default_rng(0).normal(size=(2, 9, 2))
    keys[1, 7] = keys[1, 8]
    yield selectable(keys)
    yield selectable(keys, bias=keys[..., 0])
    yield selectable(keys[0], queries=Norm(gain=[0.5, 0.5], bias=[3, 0], project=False).ellipsoid)


def prepare_certificates(folder: Path) -> list[Path]:
    paths = [folder / f"{number}.safetensors" for number in range(3)]
    for path, answer in zip(paths, keys_and_answers(), strict=True):
        answer.save(path)
    return paths


def prepare_keys(folder: Path) -> list[Path]:
    import torch

    import normscope

    words = {"input_ids": torch.arange(3, 9)[None]}
    normscope.keys(tiny_gpt(), inputs=words).save(folder / "keys.safetensors")
    return [folder / "keys.safetensors"]


def verified(path: Path) -> str:
    """What `normscope verify` says."""
    from normscope.verify_file import verify

    samples = path.parent / "samples.csv"
    return verify(path, against=samples if samples.exists() else None).reason


def prepare_vocab(folder: Path) -> list[Path]:
    import torch

    import normscope

    model = folder / "model"
    tiny_gpt().save_pretrained(model)
    with torch.no_grad():
        normscope.vocab(model, resume=folder / "tokens.safetensors")
    return [folder / "tokens.safetensors"]


@cache
def vocab_table(model: Path) -> Any:
    from normscope.certificates.check_tokens import TableRead
    from normscope.certificates.token_table import Table
    from normscope.models.subject import Subject
    from normscope.models.unembedding import unembedding_of

    found = unembedding_of(Subject(model))
    return TableRead(Table.after(found.norm, found.rows, found.bias), {})


def read_vocab(path: Path) -> str:
    """What verify does, for a model that is read once."""
    import normscope
    from normscope.certificates.check_tokens import check

    return check(normscope.load(path), against=vocab_table(path.parent / "model"))[1]


def prepare_shatter(folder: Path) -> list[Path]:
    import normscope

    normscope.capacity.shatter(2, resume=folder / "two.safetensors")
    return [folder / "two.safetensors"]


def prepare_network(folder: Path) -> list[Path]:
    import normscope

    labels = ["a", "b", "a", "b", "c"]
    write(folder / "samples.csv", "\n".join(f"{number},{label}" for number, label in enumerate(labels)))
    for method in ("search", "merge"):
        normscope.capacity.memorize([[float(number)] for number in range(5)], labels, method=method).save(
            folder / f"{method}.safetensors"
        )
    return [folder / "search.safetensors", folder / "merge.safetensors"]


def prepare_csv(folder: Path) -> list[Path]:
    rows = "\n".join(f"{number},{number * number / 7:.3f},{'ab'[number % 2]}" for number in range(6))
    return [
        write(folder / "plain.csv", rows),
        write(folder / "heading.csv", f"one,two,kind\n{rows}\n"),
        write(folder / "quoted.csv", '"a";"b c"\n1;x\n2;"y"\n-0.0;x\n1e308;z\n5e-324;y\n'),
    ]


def read_csv(path: Path) -> None:
    """Samples as `normscope memorize` takes them, up to the line that they are laid on."""
    import numpy as np

    from normscope.capacity.samples import checked_samples, choose_line
    from normscope.models.labelled_table import read_labelled_table

    table = read_labelled_table(path)
    samples = checked_samples(table.samples, np.array(table.labels), "float64")
    choose_line(samples.inputs, samples.labels, 0)


def prepare_images(folder: Path) -> list[Path]:
    import numpy as np

    draw = Random(0)
    pixels = [bytes(draw.choices(range(256), k=3072)) for _ in range(2)]
    both = {"x": np.frombuffer(b"".join(pixels), np.uint8).reshape(2, 32, 32, 3), "y": np.array([3, 4], np.uint8)}
    arrays = {f"{name}_{split}": array for name, array in both.items() for split in ("train", "test")}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    found = [write(folder / "archive" / "images.npz", file.getvalue())]
    for name in ("data_batch_1", "test_batch"):
        found.append(write(folder / "binary" / f"{name}.bin", b"".join(b"\3" + each for each in pixels)))
        data = b"".join(pixels)
        pickled = b"\x80\x02}(U\4dataT" + struct.pack("<i", len(data)) + data + b"U\6labels](K\3K\4eu."
        found.append(write(folder / "python" / name, pickled))
    for split in ("train", "t10k"):
        images = struct.pack(">BBBBIII", 0, 0, 8, 3, 2, 28, 28) + bytes(2 * 28 * 28)
        found.append(write(folder / "digits" / f"{split}-images-idx3-ubyte.gz", gzip.compress(images)))
        found.append(write(folder / "digits" / f"{split}-labels-idx1-ubyte", b"\0\0\x08\1\0\0\0\2\3\4"))
    return found


def read_images(path: Path) -> None:
    from normscope_lab.loaders.images import read_images as read

    images = read(path.parent)
    assert images.x_train.ndim == images.x_test.ndim == 4
    assert len(images.x_train) == len(images.y_train)
    assert len(images.x_test) == len(images.y_test)


def prepare_texts(folder: Path) -> list[Path]:
    found = [write(folder / "plain" / "text.txt", "Sein oder Nichtsein\nläuft\n")]
    for split in ("train", "val", "test"):
        for language in ("de", "en"):
            packed = gzip.compress(f"eins {language}\nzwei\n".encode())
            found.append(write(folder / "parallel" / f"{split}.{language}.gz", packed))
    return found


def read_texts(path: Path) -> None:
    from normscope.models.corpus import read_text
    from normscope_lab.loaders.parallel import read_parallel
    from normscope_lab.loaders.plain_texts import whole_text

    if path.suffix == ".txt":
        whole_text(path.parent)
        read_text(path)
    else:
        read_parallel(path.parent, "de", "en")


def prepare_labelled(folder: Path) -> list[Path]:
    return [write(folder / "texts.tsv", "gut und schön\t1\nschlecht\t0\n\nnicht\tgut\t0\nläuft\t1\n")]


def read_labelled(path: Path) -> None:
    from normscope.models.labelled_texts import read_labelled as read

    read(path)


def prepare_run(folder: Path) -> list[Path]:
    from normscope_lab.engine.runs import reproduce

    reproduce("random-keys", folder / "run", seeds=1, changes=TINY_RUN, workers=1)
    cells = sorted((folder / "run" / "cells").glob("*.json"))
    from normscope_lab.engine.cell_state import CellState

    CellState(folder, "cell").save({"epoch": 3, "rows": [{"loss": 0.5}]}, done=0.25)
    return [folder / "run" / "config.json", cells[0], folder / "cell.state", folder / "cell.done"]


TINY_RUN = {"channels": [2], "keys": [3], "runs": 1}


def read_run(path: Path) -> None:
    """What a resumed run reads of what is there, without the pictures that follow."""
    from normscope_lab.engine import runs
    from normscope_lab.engine.cell_state import CellState
    from normscope_lab.engine.experiment import experiment_named

    if path.stem == "cell":
        CellState(path.parent, "cell").load()
        assert 0 <= CellState(path.parent, "cell").fraction <= 1
        return
    folder = path.parent if path.name == "config.json" else path.parent.parent
    experiment = experiment_named("random-keys")
    settings = runs.changed(experiment.settings("quick", None), TINY_RUN)
    runs.open_folder(folder, experiment.name, "quick", [0], settings)
    for cell in experiment.cells(settings, [0]):
        runs.finished(folder / "cells", cell)


def prepare_settings(folder: Path) -> list[Path]:
    lines = ["random-keys channels=[2, 3] runs=1", "vit learning_rate=1e-3 batch=8", "network-depth merge=[9]"]
    return [write(folder / f"{number}.args", line) for number, line in enumerate(lines)]


def read_settings(path: Path) -> None:
    """An experiment and what --set gives it, up to the cells that would be run."""
    from normscope_lab.engine.experiment import experiment_named
    from normscope_lab.engine.runs import changed, parsed_change

    name, _, changes = path.read_text("utf-8", "surrogateescape").partition(" ")
    experiment = experiment_named(name)
    given = dict(parsed_change(each) for each in changes.replace(", ", ",").split(" "))
    experiment.cells(changed(experiment.settings("quick", None), given), [0])


def prepare_options(folder: Path) -> list[Path]:
    prepare_csv(folder)
    prepare_network(folder)
    commands = [
        "shatter 1 --points 2 --seed 0",
        "memorize FOLDER/heading.csv --label kind --eps 0 --seed 3 --dtype float64 --method search --seconds 5",
        "verify FOLDER/search.safetensors FOLDER/samples.csv --label 2",
        "separability --text FOLDER/plain.csv",
        "reproduce network-depth --preset quick --set merge=[9] --seeds 0",
        "keys --text sample --at heads --max-keys x",
        "inspect FOLDER/plain.csv --dtype float32 --device cpu",
        "fold FOLDER -o FOLDER/plain.csv",
        "--max-gigabytes 2 ranges FOLDER",
        "vocab FOLDER/plain.csv --seconds 0",
    ]
    return [write(folder / f"{number}.args", line) for number, line in enumerate(commands)]


def read_options(path: Path) -> str:
    """A whole command, whose arguments are the words of a file; what it prints on standard error."""
    from normscope.cli import main

    words = path.read_text("utf-8", "surrogateescape").replace("FOLDER", str(path.parent)).split(" ")
    arguments, said = sys.argv, io.StringIO()
    sys.argv = ["normscope", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            main()
    except SystemExit as ended:
        if ended.code not in (None, 0, 1, 2):
            raise AssertionError(f"exit code {ended.code}") from None
    finally:
        sys.argv = arguments
    return " ".join(said.getvalue().split())


READERS = {
    "safetensors": Reader("a .safetensors file", prepare_safetensors, read_checkpoint, 120),
    "gguf": Reader("a .gguf file", prepare_gguf, read_checkpoint, 80),
    "torch": Reader("a state dict saved by torch", prepare_torch, read_checkpoint, 40),
    "index": Reader("the index of a checkpoint in shards", prepare_index, read_folder, 80),
    "config": Reader("config.json of a folder", prepare_config, read_folder, 8),
    "tokenizer": Reader("tokenizer files of a folder", prepare_tokenizer, read_tokenizer, 6),
    "certificates": Reader("certificates of keys, .safetensors", prepare_certificates, verified, 60),
    "keys": Reader("keys of a model, .safetensors", prepare_keys, verified, 30),
    "vocab": Reader("a result of `vocab`, .safetensors", prepare_vocab, read_vocab, 30),
    "shatter": Reader("a result of `shatter`, .safetensors", prepare_shatter, verified, 16),
    "network": Reader("a result of `memorize`, .safetensors", prepare_network, verified, 150),
    "csv": Reader("samples with labels, .csv", prepare_csv, read_csv, 80),
    "images": Reader("images of the experiments: .npz, binary, pickled, IDX", prepare_images, read_images, 60),
    "texts": Reader("texts of the experiments, plain and .gz", prepare_texts, read_texts, 20),
    "labelled": Reader("texts with labels, .tsv", prepare_labelled, read_labelled, 90),
    "run": Reader("the folder of a run that is resumed", prepare_run, read_run, 40),
    "settings": Reader("values of --set", prepare_settings, read_settings, 80),
    "options": Reader("words of a command line", prepare_options, read_options, 10),
}


# --------------------------------------------------------------------------------------------------------- mutations

SIZES = (0, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**45, 2**63 - 1, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**45, -(2**63), 2**64, 10**30, 10**400,
    float("nan"), float("inf"), "", "²", "float64", "../x", "a" * 3000, "\ud800", "\0", [], {}, [[]], [1, "a"],
    {"a": 1},
)  # fmt: skip
ODD_WORDS = (
    "", "-1", "0", "1e999", "nan", "²", "१", "1000000", "9" * 5000, "a" * 3000, "=", "[]", "[[1]]", '"a"', "--", "true",
    "null", "{}", "=1", "[1e9]", "-0.5", "[0]", "[" * 3000, "\udcff", "\n", ".", "/dev/null",
)  # fmt: skip


def damaged(content: bytes, name: str, draw: Random) -> bytes:
    """A file of that name with one to three damages, of its structure or of its bytes."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        structured = STRUCTURES.get(Path(name).suffix)
        if structured is not None and draw.random() < 0.6:
            with contextlib.suppress(Exception):  # what the damage before this one has left may have no structure
                content = structured(content, draw)
                continue
        content = draw.choice(BYTES)(content, draw)
    return content


def flip(content: bytes, draw: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8, 64)) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def move(content: bytes, draw: Random) -> bytes:
    """A piece of the file put elsewhere in it, in place of what is there or not."""
    begin, place = draw.randrange(len(content) + 1), draw.randrange(len(content) + 1)
    piece = content[begin : begin + draw.choice((1, 4, 16, 256))]
    return content[:place] + piece + content[place + draw.choice((0, len(piece))) :]


def remove(content: bytes, draw: Random) -> bytes:
    begin = draw.randrange(len(content) + 1)
    return content[:begin] + content[begin + draw.choice((1, 2, 8, 64)) :]


def overwrite(content: bytes, draw: Random) -> bytes:
    """A number that sizes and offsets have trouble with, in some width and order."""
    code = draw.choice(("<B", "<H", "<I", "<Q", ">I", ">H"))
    number = struct.pack(code, draw.choice(SIZES) % 256 ** struct.calcsize(code))
    place = draw.randrange(len(content) + 1)
    return content[:place] + number + content[place + len(number) :]


def insert(content: bytes, draw: Random) -> bytes:
    odd = (b"\0", b"\xff", b"\n", b'"', b"\xc3\x28", b"\xed\xa0\x80", b"9" * 400, b"x" * 140_000, b"[" * 5000, b"\t")
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(odd) + content[place:]


BYTES = (flip, flip, flip, cut, move, remove, overwrite, overwrite, insert)


def change_json(value: Any, draw: Random) -> Any:
    """A JSON value with something in it replaced, taken out, doubled or renamed."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        changed = value.copy()
        kind = draw.random()
        if kind < 0.7:
            changed[key] = change_json(value[key], draw)
        elif kind < 0.8:
            del changed[key]
        elif isinstance(changed, dict):
            changed[draw.choice(("", "x", "a" * 3000, "__metadata__", str(key) + "x"))] = changed.pop(key)
        else:
            changed.insert(key, draw.choice(value))
        return changed
    if isinstance(value, str) and value[:1] in ("{", "[") and draw.random() < 0.9:  # JSON as text inside JSON
        return json.dumps(change_json(json.loads(value), draw))
    if isinstance(value, int) and draw.random() < 0.4:
        return draw.choice((value + 1, value - 1, -value, value * 2**33, draw.choice(SIZES)))
    if draw.random() < 0.02:
        return json.loads("[" * 400 + "]" * 400)
    return draw.choice(ODD_VALUES)


def change_json_file(content: bytes, draw: Random) -> bytes:
    return json.dumps(change_json(json.loads(content), draw)).encode()


def change_safetensors(content: bytes, draw: Random) -> bytes:
    """Another header of the right length."""
    header, data = safetensors_parts(content)
    return safetensors_file(change_json(header, draw), data)


def change_numbers(content: bytes, draw: Random) -> bytes:
    """Other values among the float64 at the end of a file."""
    place = len(content) - 8 * draw.randrange(1, max(2, len(content) // 16))
    odd = draw.choice((0.0, -1.0, 1e300, -1e308, 5e-324, float("nan"), float("inf")))
    return content[:place] + struct.pack("<d", odd) + content[place + 8 :]


def change_metadata(content: bytes, draw: Random) -> bytes:
    """Other metadata, all of them texts, as the format asks for; what they mean is for us to check."""
    header, data = safetensors_parts(content)
    said = header["__metadata__"]
    key = draw.choice(list(said))
    changed = change_json(json.loads(said[key]), draw) if said[key][:1] in ("{", "[") else change_json(said[key], draw)
    said[key] = changed if isinstance(changed, str) else json.dumps(changed)
    return safetensors_file(header, data)


def change_tensor(content: bytes, draw: Random) -> bytes:
    """A tensor of other values, shape, type or name, or none, in a file whose offsets are right."""
    header, data = safetensors_parts(content)
    kept = {name: (each, data[slice(*each["data_offsets"])]) for name, each in header.items() if name != "__metadata__"}
    name = draw.choice(list(kept))
    about, inside = kept.pop(name)
    kind = draw.randrange(8)
    if kind == 1:
        name = draw.choice(("", "x", "a" * 3000, draw.choice(list(header)) + ".", name + "x"))
    elif kind == 2:
        about["shape"] = draw.choice(([1, *about["shape"]], [*about["shape"], 1], about["shape"][::-1]))
    elif kind == 3:
        about["shape"], inside = [0], b""
    elif kind == 4:
        about |= {"dtype": draw.choice(("I64", "U64", "F64")), "shape": [len(inside) // 8]}
        inside = inside[: len(inside) // 8 * 8]
    elif kind >= 5:
        inside = change_numbers(inside, draw)[: len(inside)]
    if kind:
        kept[name] = about, inside
    changed, data = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}, b""
    for name, (about, inside) in kept.items():
        changed[name] = about | {"data_offsets": [len(data), len(data) + len(inside)]}
        data += inside
    return safetensors_file(changed, data)


def safetensors_parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def safetensors_file(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def change_in_safetensors(content: bytes, draw: Random) -> bytes:
    """What the format itself refuses, and as often what only its reader can see."""
    kinds = (change_safetensors, change_numbers, change_metadata, change_metadata, change_tensor, change_tensor)
    return draw.choice(kinds)(content, draw)


def change_archive(content: bytes, draw: Random) -> bytes:
    """An archive with one file in it changed, its sizes and sums put right; or with another header."""
    if draw.random() < 0.3:
        return draw.choice((mark,) * 12 + (claim_size,) * 12 + (unpacks_to_more,))(content, draw)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(member.file_size for member in archive.infolist()) > 2**20:
            return draw.choice(BYTES)(content, draw)
        members = [(member.filename, archive.open(member).read(2**20)) for member in archive.infolist()]
    place = draw.randrange(len(members))
    name, inside = members[place]
    kind = draw.random()
    if kind < 0.85:
        members[place] = name, change_npy(inside, draw) if name.endswith(".npy") else damaged(inside, name, draw)
    elif kind < 0.9:
        del members[place]
    elif kind < 0.95:
        members[place] = draw.choice(("x.npy", "", "a" * 3000, "../x.npy", "format.npy")), inside
    else:
        members[place] = name, draw.choice(members)[1]
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", draw.choice((0,) * 20 + (8,) * 9 + (12, 14))) as archive:
        warnings.simplefilter("ignore")
        for name, inside in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), inside, archive.compression)
    return file.getvalue()


def change_npy(content: bytes, draw: Random) -> bytes:
    """An array of other values, shape or dtype; or one that says so."""
    import numpy as np

    array = np.load(io.BytesIO(content))
    kind = draw.randrange(8)
    if kind == 0:
        return draw.choice(BYTES)(content, draw)
    if kind <= 2:  # a header that lies
        shape = tuple(draw.choice((0, 1, 3, *SIZES)) for _ in range(draw.randrange(4)))
        dtypes = (array.dtype.str, "|O", "<f8", ">f8", "<i8", "|b1", "<f16", "<c16", "|V0", "<M8[s]", "|S0", "<U9")
        header = {"descr": draw.choice(dtypes), "fortran_order": draw.random() < 0.3, "shape": shape}
        text = (draw.choice((repr(header), repr(header)[:-1], "(" * 9000)) + "\n").encode()
        size = struct.pack("<H", min(len(text), 65535))
        return b"\x93NUMPY" + draw.choice((b"\1\0", b"\1\0", b"\2\0")) + size + text + content[-array.nbytes :]
    if kind == 3:
        array = array.astype(draw.choice(("f8", "f4", "f2", ">f8", "i8", "u8", "i1", "?", "U9", "S9", "c16")))
    elif kind == 4:
        array = draw.choice((array[None], array.ravel(), array.reshape(*array.shape, 1), array.ravel()[0]))
    elif kind == 5:
        array = (
            draw.choice((array[:0], array[:1], np.concatenate([array, array]), array[::-1])) if array.ndim else array
        )
    elif array.size and array.dtype.kind in "iuf":
        array = array.copy()
        odd = (
            (0, 1, -1, 2, 10**6, 2**31, 2**62, -(2**63))
            if array.dtype.kind in "iu"
            else (0.0, -1.0, 1e308, np.nan, -np.inf, 5e-324)
        )
        with np.errstate(all="ignore"):
            array.reshape(-1)[draw.randrange(array.size)] = np.array(draw.choice(odd)).astype(array.dtype)
    elif array.dtype.kind == "U":
        array = np.array(draw.choice(("", "x", "a" * 5000, str(array) + "x", "{}", "[" * 5000, '{"path": 3}')))
    elif array.dtype.kind == "b" and array.size:
        array = array.copy()
        array.reshape(-1)[draw.randrange(array.size)] ^= True
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.save(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def headers(content: bytes) -> list[tuple[int, int]]:
    """Where headers of files in an archive are, and where the flags in them: of each file, and in the directory."""
    found = []
    for mark_, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = content.find(mark_)
        while place >= 0:
            found.append((place, place + offset))
            place = content.find(mark_, place + 4)
    return found


def mark(content: bytes, draw: Random) -> bytes:
    """Files marked as encrypted, as patches, as having sizes elsewhere, or as compressed in an unknown way."""
    changed = bytearray(content)
    field_, value = draw.choice(((0, 1), (0, 32), (0, 64), (0, 8), (2, 1), (2, 9), (2, 12), (2, 14), (2, 99), (2, 8)))
    everywhere = draw.random() < 0.6
    for _, flags in headers(content) if everywhere else [draw.choice(headers(content))]:
        struct.pack_into("<H", changed, flags + field_, value)
    return bytes(changed)


def claim_size(content: bytes, draw: Random) -> bytes:
    """A directory that claims other sizes."""
    changed = bytearray(content)
    directory = [place for place, flags in headers(content) if flags - place == 8]
    struct.pack_into("<I", changed, draw.choice(directory) + draw.choice((20, 24, 42)), draw.choice(SIZES) % 2**32)
    return bytes(changed)


def unpacks_to_more(content: bytes, draw: Random) -> bytes:
    """An archive of some kilobytes with a file that unpacks to 4 GB, and may declare a smaller size."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
    name, packed = draw.choice(names).encode(), zeros()
    said = draw.choice((len(packed) * 900, 2**32 - 2, 10**7, 4))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(packed), said, len(name), 0) + name
    there = struct.pack(
        "<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(packed), said, len(name), 0, 0, 0, 0, 0, 0
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(there) + len(name), len(local) + len(packed), 0)
    return local + packed + there + name + end


@cache
def zeros() -> bytes:
    """A stream of deflate that unpacks to 64 MB of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * 4


def change_packed(content: bytes, draw: Random) -> bytes:
    """Other content in a .gz file, or far more of it."""
    if draw.random() < 0.01:
        return b"\x1f\x8b\x08\0\0\0\0\0\0\3" + zeros() + b"\3\0" + bytes(8)
    return gzip.compress(damaged(gzip.decompress(content), "x", draw), 1)


def change_table(content: bytes, draw: Random) -> bytes:
    """Another cell, or cells in another order."""
    lines = [line.split(b",") for line in content.split(b"\n")]
    row = draw.choice(lines)
    place = draw.randrange(len(row))
    odd = (
        b"",
        b"nan",
        b"1e309",
        b"1e308",
        b"-1.7e308",
        b"5e-324",
        b'"',
        b'"' + b"x" * 140_000,
        b"\xff",
        b"\0",
        b"9" * 9000,
    )
    row[place : place + draw.choice((0, 1, 1))] = [draw.choice((*odd, *row))]
    return b"\n".join(b",".join(line) for line in lines)


def change_words(content: bytes, draw: Random) -> bytes:
    """Another word, or a value after its =."""
    words = content.split(b" ")
    place = draw.randrange(1, len(words))
    odd = draw.choice(ODD_WORDS).encode("utf-8", "surrogateescape")
    before, equals, _ = words[place].partition(b"=")
    words[place : place + draw.choice((0, 1, 1, 1))] = [before + equals + odd if equals else odd]
    return b" ".join(words)


STRUCTURES: dict[str, Callable[[bytes, Random], bytes]] = {
    ".json": change_json_file,
    ".safetensors": change_in_safetensors,
    ".npz": change_archive,
    ".zip": change_archive,
    ".pt": change_archive,
    ".bin": change_archive,
    ".state": change_archive,
    ".gz": change_packed,
    ".csv": change_table,
    ".args": change_words,
}


# ---------------------------------------------------------------------------------------------------------- campaign


@dataclass
class Findings:
    """What came of the cases of one reader."""

    reader: str
    seed: int
    cases: int = 0
    read: int = 0
    refused: int = 0
    findings: dict[str, list[int]] = field(default_factory=dict)  # what happened -> the first cases
    seconds: float = 0.0


class TooLongError(BaseException):
    """Not caught by what catches Exception."""


class Workshop:
    """The valid files of one reader, and damaged ones in their place."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._reader = name, READERS[name]
        self._targets = self._reader.prepare(folder)
        self._contents = {target: target.read_bytes() for target in self._targets}
        for target in self._targets:
            self._reader.read(target)  # a valid file is read, or nothing is learnt from damaged ones

    def run(self, seed: int, case: int) -> tuple[bool, str | None]:
        """Whether a case was read, and what is wrong with how it ended."""
        draw = Random(f"{self.name} {seed} {case}")
        target = draw.choice(self._targets)
        target.write_bytes(damaged(self._contents[target], target.name, draw))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            said, read = self._reader.read(target), True
        except (NormscopeError, OSError) as error:
            said, read = str(error), False
        except TooLongError as error:
            return False, f"more than {SECONDS} s {_where(error)}"
        except Exception as error:
            return False, f"{type(error).__name__} {_where(error)}: {str(error)[:80]!r}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            target.write_bytes(self._contents[target])
        if isinstance(said, str) and (len(said) > LONGEST or "\n" in said):
            return read, f"a message of {len(said.splitlines())} lines and {len(said)} characters: {said[:60]!r}"
        return read, None


SECONDS = 10.0


def _where(error: BaseException) -> str:
    """The innermost place of the package that an error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "normscope/" in frame.filename]
    return f"at {frames[-1].filename.rpartition('normscope/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"


def campaign(name: str, cases: int, seed: int, *, gigabytes: float = 1.0, first: int = 0) -> Findings:
    """Run this many cases of a reader in child processes."""
    found, start = Findings(name, seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="normscope-fuzz-", dir=FAST if FAST.is_dir() else None) as folder:
        workshop = Workshop(name, Path(folder))
        following, end = first, first + cases
        while following < end:
            following = _batch(workshop, found, following, min(end, following + BATCH), gigabytes)
    found.cases, found.seconds = cases, round(time.monotonic() - start, 1)
    return found


def _batch(workshop: Workshop, found: Findings, first: int, end: int, gigabytes: float) -> int:
    """Cases in one child, until they are done or it dies; the number of the next one."""
    shared = mmap.mmap(-1, 24)  # case, read, refused
    reading, writing = os.pipe()
    struct.pack_into("<3q", shared, 0, first, 0, 0)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(workshop, found.seed, first, end, gigabytes, shared, writing)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as told:
        pending, last, since = b"", first, time.monotonic()
        while True:
            if select.select([told], [], [], 1.0)[0]:
                received = told.read(65536)
                if not received:
                    break
                pending += received
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    case, what = json.loads(line)
                    _note(found, what, case)
            (case,) = struct.unpack_from("<q", shared)
            if case != last:
                last, since = case, time.monotonic()
            elif time.monotonic() - since > 6 * SECONDS:
                os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    case, read, refused = struct.unpack_from("<3q", shared)
    found.read, found.refused = found.read + read, found.refused + refused
    if status:
        _note(found, f"the process died: status {status}", case)
        return int(case) + 1
    return end


def _note(found: Findings, what: str, case: int) -> None:
    found.findings.setdefault(what, []).append(case)


def _work(workshop: Workshop, seed: int, first: int, end: int, gigabytes: float, shared: Any, writing: int) -> None:
    """The child: runs cases and tells what is wrong; never returns."""
    status = 1
    try:
        _limit(gigabytes)
        read = refused = 0
        for case in range(first, end):
            was_read, wrong = workshop.run(seed, case)
            read, refused = read + (was_read and not wrong), refused + (not was_read and not wrong)
            struct.pack_into("<3q", shared, 0, case + 1, read, refused)
            if wrong:
                os.write(writing, json.dumps([case, wrong]).encode() + b"\n")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _limit(gigabytes: float) -> None:
    """Limit the memory of this process from now on, and let the alarm end what takes too long."""
    from normscope.checks import allow_memory

    warnings.simplefilter("ignore")
    allow_memory(ALLOWED)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def too_long(*_: Any) -> None:
        raise TooLongError

    signal.signal(signal.SIGPROF, too_long)


def repeat(name: str, seed: int, case: int) -> None:
    """One case in this process, with its whole traceback; the damaged file is kept."""
    with tempfile.TemporaryDirectory(prefix="normscope-fuzz-") as folder:
        workshop = Workshop(name, Path(folder))
        draw = Random(f"{name} {seed} {case}")
        target = draw.choice(workshop._targets)
        target.write_bytes(damaged(workshop._contents[target], target.name, draw))
        kept = Path(tempfile.mkdtemp(prefix="normscope-case-")) / "files"
        shutil.copytree(folder, kept)
        print(f"{kept / target.relative_to(folder)}", file=sys.stderr)
        _limit(1.0)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        print("read:", READERS[name].read(target))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", nargs="*", help="a reader, several, or all")
    parser.add_argument("--list", action="store_true", help="show all readers and stop")
    parser.add_argument(
        "--cases", type=int, default=1000, help="in all: several readers share them, those that are fast get more"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat this case alone, with its traceback")
    parser.add_argument("--json", type=Path, help="add the counts to this file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="show the counts in such a file as a table and stop")
    options = parser.parse_args()
    if options.table:
        print(table(options.table))
        return 0
    if options.list:
        for name, reader in READERS.items():
            print(f"{name:14} {reader.what}")
        return 0
    chosen = list(READERS) if options.reader == ["all"] else options.reader
    if not chosen or not set(chosen) <= set(READERS):
        parser.error(f"readers are {', '.join(READERS)}, or all; got {' '.join(chosen) or 'none'}")
    if options.only is not None:
        repeat(chosen[0], options.seed, options.only)
        return 0
    wrong = 0
    shares = sum(READERS[name].share for name in chosen)
    for name in chosen:
        found = campaign(name, round(options.cases * READERS[name].share / shares), options.seed)
        count = sum(map(len, found.findings.values()))
        wrong += count
        print(f"{name:14} {found.cases:>9,} cases: {found.read:,} read, {found.refused:,} refused, {count} findings, "
              f"{found.seconds:.0f} s", flush=True)  # fmt: skip
        for what, cases in sorted(found.findings.items(), key=lambda item: -len(item[1])):
            print(f"    {len(cases):>6} × {what}; --seed {options.seed} --only {cases[0]}", flush=True)
        if options.json:
            keep(options.json, found)
    return 1 if wrong else 0


def table(path: Path) -> str:
    """The counts of all runs in a file, by reader, for docs/security.md."""
    runs = json.loads(path.read_text("utf-8"))["runs"]
    lines = ["| reader | reads | cases | read | refused |", "|---|---|---:|---:|---:|"]
    for name, reader in READERS.items():
        sums = [sum(run[what] for run in runs if run["reader"] == name) for what in ("cases", "read", "refused")]
        lines.append(f"| `{name}` | {reader.what} | {' | '.join(f'{count:,}' for count in sums)} |")
    findings = sum(sum(run["findings"].values()) for run in runs)
    return "\n".join([f"**{sum(run['cases'] for run in runs):,} cases**, {findings} findings", "", *lines])


def keep(path: Path, found: Findings) -> None:
    """The counts of one reader put into a file, in place of earlier ones with the same seed."""
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {"schema_version": 1, "runs": []}
    entry = asdict(found) | {"findings": {what: len(cases) for what, cases in found.findings.items()}}
    others = [run for run in stored["runs"] if (run["reader"], run["seed"]) != (found.reader, found.seed)]
    stored["runs"] = sorted([*others, entry], key=lambda run: (list(READERS).index(run["reader"]), run["seed"]))
    path.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
