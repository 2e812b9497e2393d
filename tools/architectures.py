"""docs/architectures.md: every architecture through inspect, ranges, fold, capture and swap.

    python tools/architectures.py                # twenty minutes; resumes an interrupted run
    python tools/architectures.py gemma3_text    # only these, anew
    python tools/architectures.py --page         # only the page, from docs/results/architectures.json

The models are tiny and random (tests/architectures.py). Each is written to a folder and given to the commands as
such, in a process of its own with a time limit; failures are tried again by the next run. Finished rows are
kept in build/architectures. Large weights are for `ranges`: its bounds are compared with what the model computes.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from itertools import chain
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
PAGE, RESULTS, DONE = ROOT / "docs" / "architectures.md", ROOT / "docs" / "results", ROOT / "build" / "architectures"
SECONDS = 1200  # for one architecture
SEEDS, FACTORS = (1, 2), (1.0, 1.0, 1e-3, 1e3)  # of large weights; on inputs that are no tokens, one pass for each
LARGE = 100.0
HEAD = """# Architectures

    python tools/architectures.py

Tiny random models of every architecture, each written to a folder and passed to the commands as it
is; example inputs are generated. The code does not know any architecture by name.

- **norms**: what `inspect` finds, by kind, and how many of them were checked where the traced model
  calls them.
- **ranges**: layers whose outputs are bounded for all inputs, and those that are not covered, each
  with its reason.
- **output / bound**: the largest output of a bounded layer over its bound, in {passes} forward
  passes with random gains and all linear weights {large:.0f} times as large. Above 1 the bound
  would be false.
- **fold**, **fold --rms**: how many norms had their mean and their gain folded; the certificate's
  rewrite difference.
- **capture**: norms whose inputs and outputs were recorded, and attention layers whose queries and
  keys were.
- **swap**: norms that became modules of `normscope.nn` in one group, which computes the same
  function; how far the outputs are from those of the original, relative to the largest.

All reasons are in [results/architectures.json](results/architectures.json); those for what failed
or was not understood are below the table.

"""


def main(arguments: list[str]) -> int:
    from architectures import ARCHITECTURES

    if arguments[:1] == ["--row"]:
        print(json.dumps(row_of(arguments[1])))
        return 0
    asked = [argument for argument in arguments if argument != "--page"]
    if unknown := set(asked) - set(ARCHITECTURES):
        print(f"architectures must be among {', '.join(ARCHITECTURES)}, got {', '.join(unknown)}", file=sys.stderr)
        return 2
    kept = RESULTS / "architectures.json"
    if "--page" not in arguments:
        DONE.mkdir(parents=True, exist_ok=True)
        for name in asked or ARCHITECTURES:
            run(name, again=bool(asked))
        rows = [json.loads((DONE / f"{name}.json").read_text(encoding="utf-8"))
                for name in ARCHITECTURES if (DONE / f"{name}.json").exists()]  # fmt: skip
        kept.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(kept.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


def run(name: str, *, again: bool) -> None:
    """One row in a process of its own; one line about it."""
    file = DONE / f"{name}.json"
    if file.exists() and not again and not failures(json.loads(file.read_text(encoding="utf-8"))):
        return
    command, start = [sys.executable, __file__, "--row", name], time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        row = {"architecture": name, "failed": f"not done in {SECONDS} seconds"}
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"ended with {error.returncode}"]
        row = {"architecture": name, "failed": lines[-1][:300]}
    file.write_text(json.dumps(row), encoding="utf-8")
    words = "; ".join(f"{part}: {reason}" for part, reason in failures(row).items())
    print(f"{name}: {time.monotonic() - start:.0f} s{'; ' if words else ''}{words}", flush=True)


def failures(row: dict) -> dict[str, str]:
    """By the part: why it failed."""
    parts = {part: result["failed"] for part, result in row.items() if isinstance(result, dict) and "failed" in result}
    return parts | ({"all": row["failed"]} if "failed" in row else {})


def row_of(architecture: str) -> dict:
    """What became of one architecture."""
    import transformers

    from architectures import ARCHITECTURES, random_model

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    model = random_model(architecture)
    row: dict = {
        "architecture": architecture,
        "model": ARCHITECTURES[architecture][0],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "model"
        model.save_pretrained(stored)
        parts = {
            "inspect": lambda: inspected(stored),
            "ranges": lambda: bounded(stored),
            "soundness": lambda: soundness(architecture),
            "fold": lambda: folded(stored, Path(folder) / "folded"),
            "fold_rms": lambda: folded(stored, Path(folder) / "rms", rms=True),
            "capture": lambda: captured(model),
            "swap": lambda: swapped(model),
        }
        for part, work in parts.items():
            start = time.monotonic()
            try:
                row[part] = work()
            except Exception as error:  # the row says so
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
                row[part] = {"failed": said.replace(folder, "FOLDER")}
            row["seconds"][part] = round(time.monotonic() - start, 1)
    return row


def inspected(folder: Path) -> dict:
    from normscope import inspect

    found = inspect(folder)
    return {
        "kinds": counted(norm.kind for norm in found.norms),
        "unknown": counted(general(norm.found.problem) for norm in found.norms if norm.kind == "unknown"),
        "unchecked": counted(general(norm.found.unchecked) for norm in found.norms if norm.found.unchecked is not None),
        "gated": counted(str(norm.found.gate) for norm in found.norms if norm.found.gate is not None),
        "functions": sum(norm.found.function is not None for norm in found.norms),
        "untraced": found.untraced,
        "placement": found.placement,
        "qk_norm": found.qk_norm,
        "connected": sum(norm.reads is not None for norm in found.norms),
    }


def bounded(folder: Path) -> dict:
    from normscope import ranges

    found = ranges(folder)
    return {
        "bounded": sum(layer.bounded for layer in found.layers),
        "unbounded": sum(not layer.bounded for layer in found.layers),
        "not_covered": counted(general(missed.reason) for missed in found.not_covered),
        "holds": found.holds,
    }


def soundness(architecture: str) -> dict:
    """The largest |output| / bound of all bounded layers, over forward passes of models with large weights."""
    import torch
    from transformers.pytorch_utils import Conv1D

    from architectures import random_model
    from normscope import ranges
    from normscope.models.example_inputs import example_inputs

    linear = (torch.nn.Linear, Conv1D)
    shares: list[float] = []
    layers: set[str] = set()
    not_finite = outputs = 0
    for seed in SEEDS:
        model = random_model(architecture, seed=seed)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, linear):
                    module.weight *= LARGE
        bounds = bounds_of(ranges(model))
        torch.manual_seed(seed)
        example = example_inputs(model)
        passes = [{name: redrawn(name, value, factor) for name, value in example.items()} for factor in FACTORS]
        for name, made in chain.from_iterable(outputs_of(model, bounds, inputs) for inputs in passes):
            rows = made.reshape(-1, made.shape[-1]).double()
            finite = rows.isfinite().all(dim=1)
            not_finite += int((~finite).sum())
            outputs += rows[finite].numel()
            layers.add(name)
            shares += [share(rows[finite], *bounds[name])] if finite.any() else []
    return {"largest": max(shares, default=0.0), "layers": len(layers), "outputs": outputs, "not_finite": not_finite}


def bounds_of(found) -> dict:
    """By layer: the lowest and highest value of each output; only layers that are bounded in all their calls.

    Products in modules that do more, such as routers, go by the name of their matrix, and no hook sees them.
    """
    import torch

    partly = {missed.layer for missed in found.not_covered}
    bounds: dict = {}
    for layer in found.layers:
        if layer.bounded and layer.weight and layer.layer not in partly and layer.layer != layer.weight:
            lows, highs = layer.lows, layer.highs
            if lows is None:  # one output
                lows, highs = [layer.low], [layer.high]
            low, high = (torch.tensor(values, dtype=torch.float64) for values in (lows, highs))
            before = bounds.get(layer.layer, (low, high))  # by another norm, which the layer reads too
            bounds[layer.layer] = (torch.minimum(low, before[0]), torch.maximum(high, before[1]))
    return bounds


def redrawn(name: str, value, factor: float):
    """Other random values for an example input; masks and shapes stay."""
    import torch

    if value.is_floating_point():
        return factor * torch.randn_like(value)
    return value.flatten()[torch.randperm(value.numel())].reshape(value.shape) if name.endswith("ids") else value


def outputs_of(model, names, inputs) -> list:
    """Every output of some layers in one forward pass, each with the layer's name."""
    import torch

    seen: list = []

    def watch(name: str):
        def note(module, given, made) -> None:
            if isinstance(made, torch.Tensor):
                seen.append((name, made.clone()))  # the model may add to it in place

        return model.get_submodule(name).register_forward_hook(note)

    hooks = [watch(name) for name in names]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return seen


def share(rows, low, high) -> float:
    """The largest |output| / bound, and, where the interval is no sliver far from 0, of its half beside the middle."""
    import torch

    middle, half, bound = (low + high) / 2, (high - low) / 2, torch.maximum(low.abs(), high.abs())
    tiny = torch.finfo(bound.dtype).tiny
    of_half = torch.where(half > bound / 1000, (rows - middle).abs() / half.clamp_min(tiny), 0.0)
    return float(torch.maximum(rows.abs() / bound.clamp_min(tiny), of_half).max())


def folded(folder: Path, out: Path, *, rms: bool = False) -> dict:
    from normscope import fold

    folding = fold(folder, out=out, rms=rms)
    kept: Counter = Counter()
    for verdict in folding.norms:
        for part, decision in (("mean", verdict.centring), ("affine", verdict.affine)):
            if decision.what in ("kept", "after look-up"):
                kept[f"{part}: {general(decision.reason)}"] += 1
    centring = [verdict.centring.what for verdict in folding.norms]
    return {
        "norms": len(folding.norms),
        "subtract_means": sum(what != "nothing to fold" for what in centring),
        "centred": centring.count("folded"),
        "after_look_up": centring.count("after look-up"),
        "affine": sum(verdict.affine.what == "folded" for verdict in folding.norms),
        "replaced": len(folding.replaced),
        "kept": dict(kept),
        "not_run": len(folding.not_run),
        "rewrite_difference": folding.certificate.rewrite_difference,
        "written_difference": folding.certificate.written_difference,
        "holds": folding.holds,
    }


def captured(model) -> dict:
    import torch

    from normscope import capture, find
    from normscope.models.example_inputs import example_inputs

    inputs = example_inputs(model)
    with capture(model) as seen, torch.no_grad():
        model(**inputs)
    recorded = [activations for activations in seen.norms.values() if activations.input is not None]
    known = sum(found.norm is not None for found in find(model).values())
    try:
        with capture(model, norms=False, heads=True) as attention, torch.no_grad():
            model(**inputs)
        heads, reason = len(attention.heads), None
    except RuntimeError as error:
        heads, reason = None, general(" ".join(str(error).split()))[:300]
    return {"norms": len(recorded), "of": known, "attention_layers": heads, "attention_refused": reason}


def swapped(model) -> dict:
    import torch

    from normscope import swap
    from normscope.models.example_inputs import example_inputs
    from normscope.models.float64_run import difference, floats

    swapping, inputs = swap(model, groups=1, only="*"), example_inputs(model)
    with torch.no_grad():
        before, after = (floats(each(**inputs)) for each in (model, swapping.module))
    return {
        "swapped": len(swapping.swapped),
        "kept": counted(general(left.reason) for left in swapping.kept),
        "difference": difference(after, before),
    }


def counted(things) -> dict[str, int]:
    return dict(Counter(map(str, things)))


def general(reason) -> str:
    """A reason without numbers of layers, names of nodes and measured differences: layers that are alike share it."""
    text = re.sub(r" \(\w+\)", "", re.sub(r"\.\d+\b", ".N", str(reason)))
    return re.sub(r"\d(\.N|\.\d+)?e[+-]\d+", "…", text)


def page(rows: list[dict]) -> str:
    from architectures import ARCHITECTURES

    lines = [
        "| model | norms | ranges: bounded / not covered | output / bound | fold | fold --rms | capture | swap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['architecture']} | failed |  |  |  |  |  |  |")
            notes.append(f"- **{row['architecture']}**: {row['failed']}")
            continue
        cells = [row["model"], *(cell(part, row[part]) for part in CELLS)]
        lines.append(f"| {' | '.join(cells)} |")
        if said := remarks(row):
            notes.append(f"- **{row['model']}**: {'; '.join(said)}")
    head = HEAD.format(passes=len(SEEDS) * len(FACTORS), large=LARGE)
    below = "\n".join(["## What was not understood, kept or refused", "", *notes]) if notes else ""
    missing = sorted(set(ARCHITECTURES) - {row["architecture"] for row in rows})
    listed = fill(f"Not run yet, and to be run by the same command: {', '.join(missing)}.", 100, break_on_hyphens=False)
    left = f"{listed}\n\n" if missing else ""
    return f"{head}{left}{chr(10).join(lines)}\n\n{below}\n"


def cell(part: str, result: dict) -> str:
    return "failed" if "failed" in result else CELLS[part](result)


def norms_cell(result: dict) -> str:
    kinds, total = result["kinds"], sum(result["kinds"].values())
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    return f"{named}; {total - sum(result['unchecked'].values())} checked"


def folding_cell(result: dict) -> str:
    later = f" (+{result['after_look_up']} after look-up)" if result["after_look_up"] else ""
    centred = f"{result['centred']}{later} of {result['subtract_means']} means, " if result["subtract_means"] else ""
    held = f"{result['rewrite_difference']:.0e}" if result["holds"] else "NOT the same"
    return f"{centred}{result['affine']} of {result['norms']} gains; {held}"


def capture_cell(result: dict) -> str:
    heads = result["attention_layers"]
    return f"{result['norms']} of {result['of']}, {'attention refused' if heads is None else f'{heads} layers'}"


CELLS = {
    "inspect": norms_cell,
    "ranges": lambda result: f"{result['bounded']} / {sum(result['not_covered'].values())}",
    "soundness": lambda result: f"{result['largest']:.4f}" if result["layers"] else "–",
    "fold": folding_cell,
    "fold_rms": folding_cell,
    "capture": capture_cell,
    "swap": lambda result: (
        f"{result['swapped']} of {result['swapped'] + sum(result['kept'].values())}; {result['difference']:.0e}"
    ),
}


def remarks(row: dict) -> list[str]:
    said = [f"{part} failed: {reason}" for part, reason in failures(row).items()]
    for what in ("unknown", "unchecked", "gated"):
        said += [f"{count} × {what}: {reason}" for reason, count in row["inspect"].get(what, {}).items()]
    said += [f"{count} × kept by swap: {reason}" for reason, count in row["swap"].get("kept", {}).items()]
    if reason := row["capture"].get("attention_refused"):
        said.append(f"queries and keys: {reason}")
    return said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
