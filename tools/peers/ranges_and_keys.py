"""The parts of docs/peers.md on ranges and on keys, and what all parts are written with."""

from collections.abc import Iterable, Iterator
from statistics import median
from textwrap import fill
from typing import Any

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
- Small radii: at 0.01, CROWN is within a factor of {close} of what is attained, for blocks too, in
  milliseconds. For a layer in a box of radius 0.01 or 0.1 it is tighter than normscope, whose ball
  around the box costs a factor of {around}. For blocks at 0.01 the bound for all inputs says nothing
  about the neighbourhood.
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
COMMITS = {"auto_LiRPA": "a050a3d"}  # what the figures were made with; pip does not say for a folder
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

Of the keys judged differently, {others} are not shown by a query: the tool calls them argmaxable, and
normscope has weights that prove that no query selects them. Of {refused} keys that are called
unargmaxable because the licence refused the program, {wrong} are
not. From 2,000 constraints on, a verdict of this tool needs a full licence. Where the keys have
small scale, the whole call stops at its own check of the query (`AssertionError`); other verdicts
are then not given."""
NO_UNARGMAXABLE = "unargmaxable itself is not on PyPI, and no Python that has it was named: it is left out."


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
    boxes = [
        row for row in rows if row["model"].startswith("LayerNorm") and row["box"] and row["relative"] in (0.01, 0.1)
    ]
    ibp = [row["methods"]["IBP"] for row in rows if not row["box"]]
    crown = [row["methods"][name] for row in rows for name in names if "CROWN" in name]
    peer = found["peers"][1]
    return RANGES.format(
        seed=found["seed"],
        starts=found["starts"],
        steps=found["steps"],
        lirpa=peer["versions"]["auto_LiRPA"],
        commit=commit_of("auto_LiRPA", peer),
        torch=peer["versions"]["torch"],
        table=table(["model", "inputs", "radius", "attained", *names], lines),
        held="yes" if not any(row["methods"]["normscope"]["passed"] for row in rows) else "NO",
        exact=f"{max(abs(each['ratio'] - 1) for each in layers):.0e}",
        balls=len(ibp),
        zero=sum(each["width"] == 0 for each in ibp),
        wrong=sum(each["passed"] > 0 for each in ibp),
        crown="yes" if not any(each.get("passed") for each in crown) else "NO",
        close=f"{max(row['methods']['CROWN']['ratio'] for row in rows if row['relative'] == 0.01):.2f}",
        around=f"{max(row['methods']['normscope']['ratio'] for row in boxes):.2f}",
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
        commit=commit_of("unargmaxable", found),
        numpy=versions["numpy"],
        gurobipy=versions["gurobipy"],
        table=table(heads, lines),
        others=sum(row["differ"] - row["shown"] for row in found["rows"]),
        refused=f"{refused:,}",
        wrong=f"{wrong:,}",
    )


def commit_of(name: str, peer: dict[str, Any]) -> str:
    return str(peer["commit"] or COMMITS.get(name, "unknown"))[:7]


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
