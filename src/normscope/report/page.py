"""The report: findings first, then the panels that results describe, as one HTML file that needs no network.

Names and tokens come from a checkpoint and a text, and are untrusted. They are escaped where they become HTML, set as
text by the script, and escaped in the JSON that it reads.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from normscope.report.finding_blocks import not_run, together
from normscope.report.marks import PAPERS, DataTable, Panel, plain
from normscope.report.page_words import (
    model_facts,
    model_lead,
    model_title,
    norm_facts,
    norm_sentence,
    verdict_on,
    visible,
)
from normscope.report.places import split, stacks_of
from normscope.report.playground import playground_parts
from normscope.results.describe import tables_of
from normscope.results.finding_list import MARKS, Finding, FindingList
from normscope.results.inspection import Inspection, NormGeometry
from normscope.results.result import Result, named
from normscope.rules.prose import count

SCRIPTS = ("marks.js", "pictures.js", "page.js")
MOST_PAINTED = 1 / 3  # of the norms, by one finding
LANES = {  # findings with a small drawing, by name
    "massive-activation": "largest",
    "sharp-turns": "steps",
    "narrow-norm": "lengths",
    "uneven-axes": "lengths",
}
SECTIONS: dict[str, tuple[str, str, str]] = {  # label in the bar, heading, introduction
    "map": ("Map", "The model, from left to right", ""),
    "norm": ("Norm", "One norm", ""),
    "ranges": ("Ranges", "How far can it go, and how far did it?", ""),
    "heads": (
        "Heads",
        "Which tokens can a head look at?",
        "A head scores keys by a product with its query. A key inside the convex hull of the others never has the "
        "highest score, whatever the query: it is lost.",
    ),
    "vocabulary": ("Vocabulary", "Which tokens can win?", ""),
    "folding": ("Folding", "What can go without changing the function?", ""),
    "norms": ("All norms", "All norms", ""),
}
WHAT = {  # kinds of results: the section that shows it, and what it is about
    "inspection": ("norm", "the geometry of norms"),
    "layer_ranges": ("ranges", "how far every tensor can go"),
    "spike_list": ("ranges", "channels that one token can make large"),
    "key_selection": ("heads", "which keys no query can select"),
    "token_verdicts": ("vocabulary", "which tokens can win"),
    "folding": ("folding", "what can be folded"),
}


@dataclass(frozen=True)
class Absent:
    """A part of the report that was not computed."""

    kind: str
    reason: str
    command: str | None = None

    @property
    def what(self) -> str:
        return WHAT.get(self.kind, ("", self.kind.replace("_", " ")))[1]


@dataclass(frozen=True)
class _Section:
    id: str
    label: str
    title: str
    intro: str
    panels: tuple[Panel, ...]
    missing: tuple[Absent, ...]


def render(
    results: Iterable[Result],
    *,
    model: str,
    findings: FindingList | None = None,
    missing: Sequence[Absent] = (),
    made: Sequence[str] = (),
    with_names: Callable[[str], str] = str,
) -> str:
    """The whole page, to be written to a file as UTF-8.

    `results` are drawn by the panels that their types describe, or as tables; `missing` and `made` are said.
    `with_names` puts the names of the model and the text into a command.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    drawn = list(results)
    panels = [replace(panel, command=with_names(panel.command)) for result in drawn for panel in panels_of(result)]
    inspection = next((result for result in drawn if isinstance(result, Inspection)), None)
    found = findings.findings if findings is not None else ()
    body = _sections(panels, missing, inspection)
    data = _data(panels, inspection, found, [section.id for section in body])
    environment = Environment(
        loader=PackageLoader("normscope", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["seen"] = visible
    environment.filters["sentence"] = _sentence
    page = environment.get_template("page.html.jinja").render(
        title=model_title(model),
        lead=model_lead(drawn, inspection, found),
        facts=model_facts(model, inspection),
        verdict=verdict_on(findings),
        findings=found,
        marks=MARKS,
        sure=lambda finding: (
            f"{finding.sure[0].upper()}{finding.sure[1:]}"
            + (": exact numbers, judged by a threshold" if finding.sure == "heuristic" else "")
        ),
        links=[_link(finding, body, inspection.norms if inspection is not None else ()) for finding in found],
        clear=findings.clear if findings is not None else (),
        unchecked=together(findings.unchecked) if findings is not None else {},
        not_run=not_run(findings) if findings is not None else "",
        sections=[("findings", "Findings"), *((each.id, each.label) for each in body), ("made", "How it was made")],
        body=body,
        papers=PAPERS,
        made=made,
        missing=missing,
        data=script_json(data),
        style=_part("page.css"),
        script="\n".join(map(_part, SCRIPTS)),
        playground=playground_parts(),
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate in a name can't be encoded


def panels_of(result: Result) -> list[Panel]:
    """The panels that the type of a result describes; its tables, if it describes none."""
    module = f"normscope.report.panels.{result.kind}"
    if result.panels_by is not None:
        return list(named(result.panels_by)(result))
    if find_spec(module) is not None:
        return list(import_module(module).panels(result))
    return list(_table_panels(result))


def _table_panels(result: Result) -> Iterable[Panel]:
    for place, shown in enumerate(tables_of(result, brief=False)):
        if not shown.values:
            continue
        headings = tuple(
            (column.heading, column.meaning, numeric, column.brief)
            for column, numeric in zip(shown.columns, shown.numeric, strict=True)
        )
        rows = tuple(
            tuple(
                (cell, None if value is None else float(value) if numeric else cell)
                for cell, value, numeric in zip(cells, values, shown.numeric, strict=True)
            )
            for cells, values in zip(shown.cells, shown.values, strict=True)
        )
        remarks = tuple(result.remarks()) if not place else ()
        yield Panel(
            f"{result.kind}-{place}", result.kind, shown.title, marks=(DataTable(headings, rows),), notes=remarks
        )


def script_json(value: Any) -> str:
    r"""JSON that is safe inside a script element, with any strings in it; NaN and infinity become null.

    >>> script_json({"</script>": float("inf")})
    '{"\\u003c/script\\u003e":null}'
    """
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _sections(panels: Sequence[Panel], missing: Sequence[Absent], inspection: Inspection | None) -> list[_Section]:
    """Sections in the order of the page, those of new kinds of results before the table of norms."""
    own = dict.fromkeys(panel.section for panel in panels if panel.section not in SECTIONS)
    made = []
    for id_ in (*list(SECTIONS)[:-1], *own, "norms"):
        mine = tuple(panel for panel in panels if panel.section == id_ and id_ not in ("map", "norm"))
        absent = tuple(each for each in missing if WHAT.get(each.kind, ("",))[0] == id_)
        label, title, intro = SECTIONS.get(id_, ("", "", ""))
        if id_ == "map":
            if inspection is None or len(inspection.norms) < 2:
                continue
            intro = (
                f"{count(len(inspection.norms), 'norm')} in the order of the model. Colour and shape show the worst "
                "finding that starts in the norm or in what reads it; choose one to see it. What is below shares the "
                "columns."
            )
        elif id_ == "norm":
            if not absent and (inspection is None or not inspection.norms):
                continue
        elif not mine and not absent:
            continue
        if id_ in own:
            label, title = id_.replace("_", " ").capitalize(), mine[0].title
        if id_ == "norms" and mine:
            title = mine[0].title
        made.append(_Section(id_, label, title, intro, mine, absent))
    return made


def _data(
    panels: Sequence[Panel], inspection: Inspection | None, findings: Sequence[Finding], sections: Sequence[str]
) -> dict[str, Any]:
    """What the script draws."""
    norms = inspection.norms if inspection is not None else ()
    number_of = {norm.name: at for at, norm in enumerate(norms)}
    of_norm: dict[str, list[Any]] = {norm.name: [] for norm in norms}
    for panel in panels:
        if panel.section == "norm" and panel.norm in of_norm:
            of_norm[panel.norm].append(
                {"id": panel.id, "title": visible(panel.title), "see": visible(panel.see), "marks": panel.marks}
                | {"notes": [visible(note) for note in panel.notes], "paper": PAPERS.get(panel.paper, panel.paper)}
                | {"formula": panel.formula, "command": panel.command, "wide": panel.wide}
            )
    return {
        "sections": list(sections),
        "stacks": stacks_of(inspection) if inspection is not None else [],
        "lanes": {panel.id: panel.marks for panel in panels if panel.section == "map"},
        "panels": {
            f"{panel.section}/{panel.id}": panel.marks for panel in panels if panel.section not in ("map", "norm")
        },
        "findings": [
            {
                "rule": finding.rule,
                "label": _label(finding, findings),
                "severity": finding.severity,
                "title": visible(finding.title),
                "sites": _sites(finding, number_of, norms),
                "norms": _holds(finding, number_of) or _numbers(finding.sites, number_of, norms),
                "lane": LANES.get(finding.name),
            }
            for finding in findings
        ],
        "norms": [
            {"name": norm.name, "says": norm_sentence(norm), "facts": norm_facts(norm), "panels": of_norm[norm.name]}
            for norm in norms
        ],
    }


def _label(finding: Finding, findings: Sequence[Finding]) -> str:
    """Its name on the map; with a question mark if the same rule found something that it is surer of."""
    surer = any(each.rule == finding.rule and each.sure != "heuristic" for each in findings)
    return f"{finding.name}?" if surer and finding.sure == "heuristic" else finding.name


def _sites(finding: Finding, number_of: Mapping[str, int], norms: Sequence[NormGeometry]) -> list[int]:
    """Where a finding happens; nowhere in particular if that is nearly everywhere, as it would paint the whole map."""
    found = _numbers(finding.sites, number_of, norms)
    return [] if len(norms) > 3 and len(found) > MOST_PAINTED * len(norms) else found


def _holds(finding: Finding, number_of: Mapping[str, int]) -> list[int]:
    """The norms of which a finding holds; not those before a module that causes it."""
    return sorted({number_of[name] for name in (*finding.norms, *finding.sites) if name in number_of})


def _numbers(names: Sequence[str], number_of: Mapping[str, int], norms: Sequence[NormGeometry]) -> list[int]:
    """Norms by number; in place of another module, the norm before it in its block."""
    found = {number_of[name] if name in number_of else _norm_before(name, norms) for name in names}
    return sorted(at for at in found if at is not None)


def _norm_before(module: str, norms: Sequence[NormGeometry]) -> int | None:
    """The norm that a module reads, or that its part of the block reads; the last norm of its block otherwise."""
    readers = [at for at, norm in enumerate(norms) if module in (norm.read_by or ())]
    parts = split(module)
    if readers or parts is None:
        return readers[0] if readers else None
    block = [at for at, norm in enumerate(norms) if (split(norm.name) or ("", -1, ""))[:2] == parts[:2]]
    part = f"{module[: len(module) - len(parts[2])]}{parts[2].split('.')[0]}"
    near = [at for at in block if any(f"{each}.".startswith(f"{part}.") for each in norms[at].read_by or ())]
    return next(reversed(near or block), None)


def _link(finding: Finding, body: Sequence[_Section], norms: Sequence[NormGeometry]) -> str:
    """The fragment that shows the evidence."""
    panels = {panel.id: section.id for section in body for panel in section.panels}
    at = finding.panel if finding.panel in {section.id for section in body} else panels.get(finding.panel, "findings")
    if finding.panel in panels and finding.panel not in {section.id for section in body}:
        at = f"{panels[finding.panel]}-{finding.panel}"
    number_of = {norm.name: place for place, norm in enumerate(norms)}
    sites = _numbers([name for name in finding.sites if name in number_of], number_of, norms)
    sites = sites or _holds(finding, number_of) or _numbers(finding.sites, number_of, norms)
    if not sites or at not in ("norm", "norms"):
        return f"#at={at}"
    name = norms[sites[0]].name.encode("utf-8", "replace").decode("utf-8")
    return f"#norm={quote(name, safe='')}&at={at}"


def _sentence(text: str) -> str:
    """A reason as a sentence."""
    return text and f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _part(name: str) -> str:
    return files("normscope.report").joinpath(name).read_text(encoding="utf-8")
