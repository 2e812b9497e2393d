"""The tables of docs/recipes.md: llm-compressor's own mappings held to the graph, and our recipes run by it.

    python tools/recipes.py --python ENVIRONMENT/bin/python    # minutes; writes docs/results/recipes.json, the page
    python tools/recipes.py --table                            # only the page, from docs/results/recipes.json

ENVIRONMENT has llmcompressor 0.14, which needs another transformers than ours. The models are tiny and random
(tests/architectures.py) and are exchanged as folders, recipes as files. There, llm-compressor writes down the mappings
that it keeps for the class of each model, and runs SmoothQuant, AWQ and SpinQuant (its R1) in float64 twice: with
these, and with our recipe.

Two steps of AWQ are replaced. It pins memory, which torch refuses without an accelerator and which changes no number:
that is left out. And it takes the best of 20 factors after rounding, among them 1, which would show nothing: here it
takes √mean|x| for every mapping. Nothing is rounded when logits are compared.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
RESULTS, PAGE = ROOT / "docs" / "results" / "recipes.json", ROOT / "docs" / "recipes.md"
CHECKED = "<!-- checked: python tools/recipes.py --table -->", "<!-- end of checked -->"
RUN = "<!-- run: python tools/recipes.py --table -->", "<!-- end of run -->"
MODELS = (
    "llama", "gemma2", "gemma3_text", "qwen3", "granite", "bloom", "cohere2", "mixtral", "qwen3_moe", "deepseek_v3",
    "qwen3_next", "olmo3", "exaone4",
)  # fmt: skip
KINDS = {"smoothquant": "SmoothQuantModifier", "awq": "AWQModifier", "spinquant": "SpinQuantModifier"}
NAMES = {"smoothquant": "SmoothQuant", "awq": "AWQ", "spinquant": "SpinQuant R1"}
TOKENS, SEED = (4, 12), 0
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
ROUNDED = {"config_groups": {"all": {"targets": ["Linear"], "weights": WEIGHTS}}, "ignore": ["lm_head"]}  # AWQ needs it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="Python of an environment with llmcompressor 0.14.")
    parser.add_argument("--table", action="store_true", help="Only write the page.")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # a folder of models, in that environment
    given = parser.parse_args()
    if given.inside is not None:
        inside(given.inside)
        return
    if not given.table:
        if given.python is None:
            parser.error("--python must name a Python with llmcompressor 0.14")
        RESULTS.write_text(json.dumps(measured(given.python), indent=1) + "\n", encoding="utf-8")
    run = json.loads(RESULTS.read_text(encoding="utf-8"))
    put(checked_table(run), *CHECKED)
    put(run_table(run), *RUN)


def measured(python: str) -> dict:
    """Everything that the page shows."""
    import torch
    import transformers

    from architectures import random_model
    from normscope.rewrite.recipe import recipe

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in MODELS:
            random_model(name).save_pretrained(folder / name)
            (folder / f"{name}.yaml").write_text(recipe(folder / name, dtype="float32").recipe, encoding="utf-8")
        asked = [python, __file__, "--inside", str(folder)]
        subprocess.run(asked, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        theirs = json.loads((folder / "theirs.json").read_text(encoding="utf-8"))
        rows = [row_of(name, folder, theirs["models"][name]) for name in MODELS]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"versions": versions, "their_versions": theirs["versions"], "models": rows}


def row_of(name: str, folder: Path, there: dict) -> dict:
    """One model: verdicts on their mappings, what our recipe has, and what happened there."""
    from architectures import ARCHITECTURES
    from normscope.rewrite.recipe import check_recipe, recipe

    kept = ("modifier", "source", "readers", "sets", "verdict", "change", "reason")
    files = [folder / f"{name}.{kind}.yaml" for kind in KINDS]
    verdicts = [verdict for file in files for verdict in check_recipe(folder / name, file).mappings]
    own = recipe(folder / name).mappings
    return {
        "model": name,
        "class": ARCHITECTURES[name][0],
        "checked": [{key: getattr(verdict, key) for key in kept} for verdict in verdicts],
        "ours": {modifier: sum(each.modifier == modifier for each in own) for modifier in KINDS.values()},
        "largest_change_of_ours": max(each.change for each in own),
        **there,
    }


def inside(folder: Path) -> None:
    """In the other environment: mappings of llm-compressor as recipes, and all modifiers run on every model."""
    from importlib.metadata import version

    import yaml
    from llmcompressor.modifiers.transform.awq.dynamic_mappings import get_layer_mappings_from_model as awq
    from llmcompressor.modifiers.transform.smoothquant.dynamic_mappings import get_layer_mappings_from_model as smooth

    prepare_awq()
    found = {}
    for name in MODELS:
        model = loaded(folder / name)
        settings = {
            "smoothquant": {"mappings": [[list(each.balance_layers), each.smooth_layers] for each in smooth(model)]},
            "awq": {"mappings": [given_of(each) for each in awq(model)]},
            "spinquant": rotation_of(model),
        }
        run = {"theirs": {}, "ours": {}}
        found[name] = {"run": run, "kept_for_its_class": kept_for(type(model).__name__)}
        for kind, modifier in KINDS.items():
            content = {f"{kind}_stage": {f"{kind}_modifiers": {modifier: settings[kind]}}}
            file = folder / f"{name}.{kind}.yaml"
            file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
            run["theirs"][kind] = changed_by(folder / name, content, kind)
            ours = yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
            if f"{kind}_stage" in ours:
                run["ours"][kind] = changed_by(folder / name, ours, kind)
    versions = {
        package: version(package) for package in ("llmcompressor", "compressed-tensors", "transformers", "torch")
    }
    (folder / "theirs.json").write_text(json.dumps({"versions": versions, "models": found}), encoding="utf-8")


def prepare_awq() -> None:
    """Let AWQ run without an accelerator, and take one factor for each channel that is not 1."""
    from llmcompressor.modifiers.transform import AWQModifier
    from llmcompressor.pipelines.cache import IntermediatesCache

    IntermediatesCache.pin_memory = lambda *_: None
    AWQModifier._get_grid_search_params = lambda _: [(0.5, False)]  # the power of mean|x|; not divided by weights


def kept_for(name: str) -> dict[str, bool]:
    """Whether llm-compressor keeps mappings for a class; where not, it takes its defaults."""
    from llmcompressor.modifiers.transform.awq import dynamic_mappings as awq
    from llmcompressor.modifiers.transform.smoothquant import dynamic_mappings as smooth
    from llmcompressor.modifiers.transform.spinquant.mappings import SPINQUANT_MAPPING_REGISTRY

    return {
        "SmoothQuantModifier": name in smooth.SMOOTHQUANT_DYNAMIC_MAPPING_REGISTRY | smooth.MAPPINGS_REGISTRY,
        "AWQModifier": name in awq.AWQ_DYNAMIC_MAPPING_REGISTRY | awq.AWQ_MAPPING_REGISTRY,
        "SpinQuantModifier": name in SPINQUANT_MAPPING_REGISTRY,
    }


def pairs(mapping, *names):
    return {name: getattr(mapping, name) for name in names}


def given_of(mapping):
    """The settings of a mapping of AWQ that are given."""
    return {name: value for name, value in vars(mapping).items() if value is not None}


def rotation_of(model):
    """What SpinQuant does with R1 and without mappings of a recipe, as settings of a recipe."""
    from llmcompressor.modifiers.transform import SpinQuantModifier
    from llmcompressor.modifiers.transform.spinquant.mappings import infer_mapping_from_model
    from llmcompressor.modifiers.transform.spinquant.norm_mappings import infer_norm_mapping_from_model

    modifier = SpinQuantModifier(rotations=["R1"])
    modifier.mappings = infer_mapping_from_model(model)
    applied = [pairs(each, "targets", "location", "inverse") for each in modifier._create_r1_scheme().apply]
    return {
        "norm_mappings": [pairs(each, "norm", "linears") for each in infer_norm_mapping_from_model(model)],
        "mappings": modifier.mappings.model_dump(exclude_none=True),
        "transform_config": {"config_groups": {"R1": {"type": "hadamard", "apply": applied}}},
    }


def loaded(folder: Path):
    """A model in float64, with its experts as llm-compressor holds them."""
    import torch
    import transformers
    from llmcompressor.modeling.moe.linearize import linearize_moe

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    linearize_moe(model)
    return model


def changed_by(folder: Path, recipe: dict, kind: str):
    """Change of the logits after a stage of a recipe, over the largest, and the number of new tensors; or an error."""
    import torch
    import yaml
    from compressed_tensors.quantization import disable_quantization
    from datasets import Dataset
    from llmcompressor import oneshot
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    ids = torch.randint(3, 50, TOKENS, generator=torch.Generator().manual_seed(SEED))
    data = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()})
    stage = recipe[f"{kind}_stage"]
    stage |= {"rounding_modifiers": {"QuantizationModifier": ROUNDED}} if kind == "awq" else {}
    model = loaded(folder)
    state = {name: value.clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        before = model(ids).logits
        try:
            oneshot(
                model=model,
                dataset=data,
                recipe=yaml.safe_dump({f"{kind}_stage": stage}, sort_keys=False),
                stage=kind,
                pipeline="basic",
                processor=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="a"),
                num_calibration_samples=TOKENS[0],
            )
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error.__cause__ or error}".splitlines()[0][:300]}
        after = model.apply(disable_quantization)(ids).logits
    changed = sum(not torch.equal(value, model.get_parameter(name)) for name, value in state.items())
    return {"change": float((after - before).abs().max() / before.abs().max()), "tensors_changed": changed}


def put(lines: str, begin: str, end: str) -> None:
    """Put a table into the document, between two comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text(f"{before}{begin}\n{lines}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def checked_table(run) -> str:
    """Every mapping of SmoothQuant and AWQ that is not confirmed, and those of SpinQuant for classes that it keeps."""
    lines = ["| class | modifier | kept for it | from → to | verdict | why |", "|---|---|---|---|---|---|"]
    for model in run["models"]:
        for row in model["checked"]:
            kept = model["kept_for_its_class"][row["modifier"]]
            if row["verdict"] in ("confirmed", "skipped") or (row["modifier"] == KINDS["spinquant"] and not kept):
                continue
            to = ", ".join(f"`{reader}`" for reader in row["readers"]) or "–"
            size = "" if row["change"] is None else f", by {row['change']:.2g}"
            reason = (row["reason"] or "").replace("|", "\\|")
            cells = (model["class"], row["modifier"].removesuffix("Modifier"), "yes" if kept else "no")
            lines.append(f"| {' | '.join(cells)} | `{row['source']}` → {to} | {row['verdict']}{size} | {reason} |")
    return "\n".join(lines)


def run_table(run) -> str:
    columns = [f"{name}: theirs | ours" for name in NAMES.values()]
    lines = [f"| class | confirmed, of theirs | {' | '.join(columns)} | our mappings |", "|---" * (3 + 2 * 3) + "|"]
    for model in run["models"]:
        confirmed = sum(row["verdict"] == "confirmed" for row in model["checked"])
        runs = [outcome(model["run"][whose].get(kind)) for kind in KINDS for whose in ("theirs", "ours")]
        cells = (model["class"], f"{confirmed} of {len(model['checked'])}", *runs, sum(model["ours"].values()))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def outcome(run) -> str:
    if run is None:
        return "left out"
    return f"{run['change']:.0e}" if "change" in run else "stops with an error"


if __name__ == "__main__":
    main()
