"""docs/reproductions.md from folders of finished runs.

    python tools/reproductions.py RUN... docs        # RUN: a folder that `normscope reproduce` wrote

The files of each run (config.json, findings.json, results.csv, pictures) are copied to docs/results/reproductions, and
the page is written from all runs there. Without a RUN, only the page is written again.
"""

import json
import shutil
import sys
from pathlib import Path

KEPT = ("config.json", "findings.json", "results.csv", "*.png")
LARGEST = 2_000_000  # bytes of a results file that is kept in the repository
HEAD = """# Reproductions

Experiments of three papers, each run by one command, beside the published figures. Table 3 of
Brody et al. and the convolutional networks of Ni et al. are left out.

    normscope reproduce --list
    normscope reproduce majority                          # preset quick: minutes (vit, translation: an hour)
    normscope reproduce vit --data FOLDER --preset paper  # as near to the published scale as is known here
    normscope reproduce majority --set steps=9000 -o majority-long        # other settings: --set NAME=VALUE

A run writes its configuration, rows, findings and pictures to a folder (`-o`, by default
`reproductions/NAME-PRESET`). An interrupted run is resumed by the same command: every cell (a
choice of settings with a seed) that takes long saves its state after each epoch, and the result is
the same as without the interruption. Cells run in parallel processes of one thread (`--workers`);
progress and the time left are shown. If `--data` is missing, the message says what it must hold:
CIFAR-10 and MNIST as .npz or as they are published (pickles are read, not executed), parallel text,
text files, labelled sentences. `pip install ".[lab]"` installs what is needed beyond the package. A
wrong NAME after `--set` lists the settings; `--seeds` is the number of seeds.

This page is made from the files in `docs/results/reproductions` by `python tools/reproductions.py
docs`: nothing in it is typed in. The last column says how each claim is decided; "not shown" means
that the test could not decide. Differences from the published data and scale are printed with each
run. The settings of `vit`, `translation` and `random-labels` stand in for unpublished ones, with
`--preset paper` too.

| run | preset | source | verdicts | CPU time |
|---|---|---|---|---|
"""


def main(*paths: str) -> None:
    if not paths:
        raise SystemExit(__doc__)
    *runs, docs = map(Path, paths)
    kept = docs / "results" / "reproductions"
    for run in runs:
        keep(run, kept)
    (docs / "reproductions.md").write_text(page(kept), encoding="utf-8")


def keep(run: Path, kept: Path) -> None:
    """Copy a finished run to where the page is made from."""
    if not (run / "findings.json").exists():
        raise SystemExit(f"{run} holds no finished run")
    target = kept / run.resolve().name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for pattern in KEPT:
        for file in run.glob(pattern):
            if file.stat().st_size <= LARGEST:
                shutil.copy(file, target / file.name)
            else:
                print(f"{file} has more than {LARGEST:,} bytes and is not kept")


def page(kept: Path) -> str:
    """The page on all runs that are kept."""
    summary, parts = [], []
    for folder in sorted(path.parent for path in kept.glob("*/findings.json")):
        found = json.loads((folder / "findings.json").read_text("utf-8"))
        config = json.loads((folder / "config.json").read_text("utf-8"))
        verdicts = [finding["verdict"] for finding in found["findings"]]
        name, preset = folder.name, found["preset"]
        shown = ", ".join(f"{kind}: {verdicts.count(kind)}" for kind in dict.fromkeys(verdicts))
        summary.append(f"| [{name}](#{name}) | {preset} | {found['source']} | {shown} | {minutes(found['seconds'])} |")
        parts.append(section(folder, found, config))
    return HEAD + "\n".join(summary) + "\n" + "".join(parts)


def section(folder: Path, found: dict, config: dict) -> str:
    """One run: what was run, its table, its pictures."""
    lines = ["", f"## {folder.name}", "", f"{found['what']}. {found['source']}.", ""]
    seeds = len(found["seeds"])
    there = f" (there: `{config['command_then']}`)" if "command_then" in config else ""  # renamed since
    later = [f", judged again at {commit[:12]}" for commit in config.get("continued_at", [])[-1:]]
    lines += [
        f"    {config['command']}",
        "",
        f"Commit {(config['commit'] or 'unknown')[:12]}{there}{''.join(later)}, torch {config['versions']['torch']}; "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}, {minutes(found['seconds'])} of CPU time.",
        "",
        "| claim | the paper | ours | verdict |",
        "|---|---|---|---|",
    ]
    for finding in found["findings"]:
        verdict = f"**{finding['verdict']}**: {finding['decided_by']}"
        cells = " | ".join(finding[part].replace("|", "\\|") for part in ("claim", "paper", "ours"))
        lines.append(f"| {cells} | {verdict} |")
    differences = dict.fromkeys(finding["differences"] for finding in found["findings"] if finding["differences"])
    lines += [line for text in differences for line in ("", f"Different here: {text}.")]
    for picture in found["pictures"]:
        if (folder / picture).exists():
            lines += ["", f"![{found['what']}](results/reproductions/{folder.name}/{picture})"]
    lines += [line for page in found["pages"] for line in ("", f"The run also writes `{page}`, which can be turned.")]
    return "\n".join([*lines, ""])


def minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    main(*sys.argv[1:])
