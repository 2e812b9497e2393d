"""What all runners of the folding part share: a model from a folder, the same inputs, the same measurements.

Runs in the environment of any peer: it needs torch, transformers and safetensors, not normscope. A runner calls `main`
with a function that folds the model of a folder and gives a function without arguments, which gives the folded model
and its forward pass. Only the first is timed.
"""

import json
import logging
import os
import platform
import sys
import time
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import version
from io import StringIO
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers
from safetensors.torch import load_file


def main(fold, packages, listed):
    """Fold the named models of a folder; one JSON object on the last line: versions, and a row for each model.

    `listed` has the architectures that the peer knows by name, as far as it says so; None if it has no such list.
    """
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_warning()
    folder, *names = (argument for argument in sys.argv[1:] if not argument.startswith("--"))
    imported = time.process_time()
    rows = {name: row_of(Path(folder) / name, fold, listed) for name in names}
    versions = {package: version(package) for package in ("torch", "transformers", *packages)}
    known = None if listed is None else len(set(listed))
    found = {"python": platform.python_version(), "versions": versions, "import_cpu_seconds": imported}
    print(json.dumps(found | {"architectures_listed": known, "models": rows}))


def row_of(folder, fold, listed):
    """What became of one model; an exception is kept with its message."""
    about = {"architecture": architecture(folder)}
    about["listed"] = None if listed is None else about["architecture"] in listed
    original, inputs = loaded(folder), load_file(folder / "inputs.safetensors")
    before, tied_before, norms = logits_of(original, inputs), tied(original), gains(original)
    if any(map(gain_is_one, norms.values())):
        raise ValueError(f"{folder.name}: a norm has gain 1 before anything is folded")
    table = tied_before is not None and original.get_input_embeddings().weight.detach().clone()
    said = StringIO()
    handler = logging.StreamHandler(said)
    loggers = listening(handler)
    begin = time.process_time()
    try:
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: said.write(f"{message}\n")
            finish = fold(folder)
            seconds = time.process_time() - begin
    except Exception as error:  # a peer may stop with anything: what it said is the result
        where = traceback.extract_tb(error.__traceback__)[-1]
        stopped = f"{type(error).__name__}: {error}"
        place = f"{Path(where.filename).name}, {where.name}"
        return about | {"stopped": stopped, "place": place, "said": lines(said, folder)}
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    model, call = finish()
    after_norms = list(gains(model).values())
    with torch.no_grad():
        after = call(**inputs).logits
    return about | {
        "norms": len(norms),
        "folded": sum(map(gain_is_one, after_norms)),
        "biases_left": sum(gain_is_one(module) and not bias_is_zero(module) for module in after_norms),
        "difference": difference(before, after),
        "difference_with_own_table": with_own_table(model, table, lambda: difference(before, call(**inputs).logits)),
        "float64_difference": difference(logits_of(original.double(), doubled(inputs)), before),
        "agreement": (before.argmax(-1) == after.argmax(-1)).double().mean().item(),
        "positions": before[..., 0].numel(),
        "tied_before": tied_before,
        "tied_after": tied(model),
        "cpu_seconds": seconds,
        "said": lines(said, folder),
    }


def listening(handler):
    """Every logger that exists writes to the handler too, unless what it logs reaches one above it."""
    named = (logging.getLogger(name) for name in list(logging.Logger.manager.loggerDict))
    loggers = [logging.getLogger(), *(logger for logger in named if not logger.propagate)]
    for logger in loggers:
        logger.addHandler(handler)
    return loggers


def loaded(folder):
    """The model in float32, in plain operations, which all peers can watch and float64 can run."""
    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    return getattr(transformers, architecture(folder)).from_pretrained(folder, dtype=torch.float32, **plain).eval()


def architecture(folder):
    return json.loads((folder / "config.json").read_text())["architectures"][0]


def power_of_two(model):
    return model.config.hidden_size.bit_count() == 1


def logits_of(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def doubled(inputs):
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


def difference(before, after):
    """The largest difference of log-odds, relative: a constant added to all logits of a position changes nothing."""
    before, after = (each.double() - each.double().mean(-1, keepdim=True) for each in (before, after))
    return ((before - after).abs().max() / before.abs().max()).item()


def with_own_table(model, table, measured):
    """What is measured if the token table is the original's; None if it is that already, or there is none."""
    own = model.get_input_embeddings().weight if torch.is_tensor(table) else None
    if own is None or torch.equal(own, table):
        return None
    with torch.no_grad():
        changed = own.clone()
        own.copy_(table)
        found = measured()
        own.copy_(changed)
    return found


def gains(model):
    """Norms with a gain, by name: modules called so, with a vector."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__.lower().endswith("norm") and getattr(module, "weight", None) is not None
    }


def gain_is_one(module):
    """Whether the gain is 1: stored as 0 where 1 is added."""
    return bool((module.weight == (0.0 if "Gemma" in type(module).__name__ else 1.0)).all())


def bias_is_zero(module):
    bias = getattr(module, "bias", None)
    return bias is None or bool((bias == 0).all())


def tied(model):
    """Whether head and token table are one tensor; None without a table or a head."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = [getattr(each, "weight", None) for each in (table, head)]
    if any(weight is None or weight.ndim != 2 for weight in weights) or weights[0].shape != weights[1].shape:
        return None
    return weights[0].data_ptr() == weights[1].data_ptr()


def lines(said, folder):
    """What was printed, logged or warned about, without progress bars and the name of the folder."""
    text = said.getvalue().replace(str(folder), folder.name)
    kept = [line.rpartition("\r")[2].strip() for line in text.splitlines()]
    return list(dict.fromkeys(line for line in kept if line and "%|" not in line and "it/s" not in line))
