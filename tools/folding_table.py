"""The tables of docs/folding.md: every architecture, folded by the same call, with what was kept and why.

    python tools/folding_table.py            # a minute; rewrites docs/folding.md and docs/results/folding.json
    python tools/folding_table.py --rewrites # minutes: the table of --rescale and --rotate, docs/results/rewrites.json
    python tools/folding_table.py --speed    # only the table of docs/results/fold.json, from `normscope bench fold`

The models are tiny and random (tests/folding_models.py): two layers, 16 channels, random gains and biases. Each is
folded, saved, loaded again and compared; the code that folds them knows no architecture.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
RESULTS, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "folding.md"
TABLE = "<!-- table: python tools/folding_table.py -->", "<!-- end of table -->"
REWRITES = "<!-- rewrites: python tools/folding_table.py --rewrites -->", "<!-- end of rewrites -->"
HUGE = 2.0**18  # what tables and convolutions are multiplied by, so that there is something to rescale
SPEED = "<!-- speed: python tools/folding_table.py --speed -->", "<!-- end of speed -->"


def main() -> None:
    from folding_models import ARCHITECTURES, OTHERS, REQUIRED

    if "--speed" in sys.argv[1:]:
        put(speed_table(json.loads((RESULTS / "fold.json").read_text(encoding="utf-8"))), *SPEED)
        return
    if "--rewrites" in sys.argv[1:]:
        rows = [rewrites_of(architecture, ARCHITECTURES[architecture][0]) for architecture in REQUIRED + OTHERS]
        (RESULTS / "rewrites.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        put(rewrites_table(rows), *REWRITES)
        return
    rows = [row_of(architecture, ARCHITECTURES[architecture][0]) for architecture in REQUIRED + OTHERS]
    (RESULTS / "folding.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    put(table(rows), *TABLE)


def put(lines: str, begin: str, end: str) -> None:
    """Put a table into the document, between two comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text(f"{before}{begin}\n{lines}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def row_of(architecture, name):
    """What became of one architecture."""
    from folding_models import folding_model
    from normscope import fold

    with tempfile.TemporaryDirectory() as folder:
        folding = fold(folding_model(architecture), out=Path(folder) / "folded")
    kept: dict[str, list[str]] = {}
    for verdict in folding.norms:
        for part, decision in (("mean", verdict.centring), ("affine", verdict.affine)):
            if decision.what in ("kept", "after look-up"):
                kept.setdefault(f"{part}: {general(decision.reason)}", []).append(verdict.norm)
    centring = [verdict.centring.what for verdict in folding.norms]
    return {
        "model": name,
        "norms": len(folding.norms),
        "subtract_means": sum(what != "nothing to fold" for what in centring),
        "centred": centring.count("folded"),
        "after_look_up": centring.count("after look-up"),
        "affine": sum(verdict.affine.what == "folded" for verdict in folding.norms),
        "kept": {reason: len(norms) for reason, norms in kept.items()},
        "rewrite_difference": folding.certificate.rewrite_difference,
        "written_difference": folding.certificate.written_difference,
        "rounding_difference": folding.certificate.rounding_difference,
        "float32_difference": folding.certificate.difference,
        "original_error": folding.certificate.original_error,
        "argmax_agreement": folding.certificate.argmax_agreement,
        "holds": folding.holds,
    }


def rewrites_of(architecture, name):
    """What became of the streams of one architecture: with huge tables rescaled, as it is rotated."""
    import torch

    from folding_models import folding_model
    from normscope import fold

    huge = folding_model(architecture)
    with torch.no_grad():
        for module in huge.modules():
            if isinstance(module, torch.nn.Embedding | torch.nn.Conv2d):
                module.weight.mul_(HUGE)
    row = {"model": name}
    plans = {"rescale": (huge, {"rescale": "float16"}), "rotate": (folding_model(architecture), {"rotate": "hadamard"})}
    for what, (model, options) in plans.items():
        folding = None
        try:
            folding = fold(model, **options, untie=what == "rotate")
            untied = bool(folding.untied)
        except Exception as error:  # a tie that can't be undone
            if what == "rescale":
                raise
            untied = f"not untied: {error}"
            folding = fold(model, **options)
        row[what] = {
            "untied": untied,
            "streams": [
                {
                    "stream": verdict.stream,
                    "what": verdict.what,
                    "how": general(verdict.how),
                    "exponent": verdict.exponent,
                }
                for verdict in folding.streams
            ],
            "rewrite_difference": folding.certificate.rewrite_difference,
            "float32_difference": folding.certificate.difference,
            "holds": folding.holds,
        }
    print(json.dumps(row)[:300], file=sys.stderr, flush=True)
    return row


def rewrites_table(rows) -> str:
    lines = [
        "| model | `--rescale float16` | float64 | float32 | `--rotate hadamard` | float64 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["model"]]
        for what in ("rescale", "rotate"):
            found = row[what]
            cells += [streams_in_words(found), f"{found['rewrite_difference']:.0e}"]
            cells += [f"{found['float32_difference']:.0e}"] if what == "rescale" else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def streams_in_words(found) -> str:
    """What became of streams, those with the same outcome together."""
    said: dict[str, int] = {}
    for stream in found["streams"]:
        words = f"{stream['what']}: {stream['how']}" if stream["what"] == "kept as it is" else stream["what"]
        words += f", 2^{stream['exponent']}" if stream["what"] == "rescaled" else ""
        said[words] = said.get(words, 0) + 1
    more = ["untied"] if found["untied"] is True else []
    more += [] if found["holds"] else ["**refused**: in float32, rounding costs more than ten times as much"]
    return "; ".join([f"{count} {words}" for words, count in said.items()] + more)


def general(reason: str) -> str:
    """A reason without the number of the layer and the name of the node: layers that are alike have the same."""
    return re.sub(r" \(\w+\)", "", re.sub(r"\.\d+\b", ".N", reason))


def table(rows) -> str:
    lines = [
        "| model | norms | centred | gain 1 | rewrite, before rounding | written file (rounding alone) | "
        "both in float32 (original's own error) | kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        later = f" (+{row['after_look_up']} after look-up)" if row["after_look_up"] else ""
        centred = f"{row['centred']}{later}" if row["subtract_means"] else "–"
        kept = "; ".join(f"{count} × {reason}" for reason, count in row["kept"].items()) or "nothing"
        apart = f"{row['float32_difference']:.0e} ({row['original_error']:.0e})"
        written = f"{row['written_difference']:.0e} ({row['rounding_difference']:.0e})"
        exact = f"{row['rewrite_difference']:.0e}"
        cells = (row["model"], row["norms"], centred, row["affine"], exact, written, apart, kept)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def speed_table(run) -> str:
    lines = [
        "| | batch × tokens | original | folded | `--rms`, torch's rms_norm | `--rms`, fused kernels |",
        "|---|---|---|---|---|---|",
    ]
    measured: dict[tuple, dict] = {}
    for row in run["passes"]:
        measured.setdefault((row["what"], row["mode"], row["batch"], row["tokens"]), {})[row["variant"]] = row
    for (what, mode, batch, tokens), rows in sorted(measured.items()):
        seconds = rows["original"]["seconds"]
        time = f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
        speeds = [f"{rows[variant]['speed']:.2f}" for variant in ("folded", "rms, torch", "rms, fused")]
        lines.append(f"| {' | '.join([f'{what}, {mode}', f'{batch} × {tokens}', time, *speeds])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
