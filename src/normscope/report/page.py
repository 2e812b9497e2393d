"""An inspection as one HTML file that needs no network: words, a table that sorts, and figures.

Names from a checkpoint are untrusted text. They are escaped where they become HTML, where they become JSON inside
a script element, and where plotly would read markup in them.
"""

import json
from importlib.resources import files
from typing import Any

import numpy as np

from normscope.checks import Floats
from normscope.report.norm_figures import depth_figures, digits_of, finite, patterns
from normscope.report.pictures import outline
from normscope.results.describe import Shown, tables_of
from normscope.results.inspection import Channel, Inspection, Landing, NormGeometry
from normscope.rules.inspection import KINDS, headline
from normscope.rules.norm_kinds import UNBOUNDED

SAME_SCALE_UP_TO = 12.0  # longest over third axis; beyond it, true proportions would show a needle
NAMED = 16  # dead channels listed


def render(inspection: Inspection) -> str:
    """The whole page, to be written to a file as UTF-8; its table has the columns that the result describes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    shown = next(tables_of(inspection, brief=False))
    depth = depth_figures(inspection.norms)
    data = {"depth": depth, "chosen": patterns(), "norms": [_details(norm) for norm in inspection.norms]}
    environment = Environment(
        loader=PackageLoader("normscope", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("page.html.jinja").render(
        inspection=inspection,
        headline=headline(inspection),
        highlights=inspection.remarks(),
        columns=list(zip(shown.columns, shown.numeric, strict=True)),
        rows=_rows(shown),
        depth=list(depth),
        data=script_json(data),
        plotly=get_plotlyjs(),
        style=_part("page.css"),
        script=_part("page.js"),
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate in a name can't be encoded


def script_json(value: Any) -> str:
    r"""JSON that is safe inside a script element, with any strings in it; NaN and infinity become null.

    >>> script_json({"</script>": float("inf")})
    '{"\\u003c/script\\u003e":null}'
    """
    text = json.dumps(finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _rows(shown: Shown) -> list[list[tuple[str, str | None]]]:
    """The text of every cell, and its sort key: None where there is no value."""

    def sorts_by(value: Any, numeric: bool, cell: str) -> str | None:
        if value is None or value == ():
            return None
        return str(float(value)) if numeric else cell

    return [
        [(cell, sorts_by(value, numeric, cell)) for value, numeric, cell in zip(row, shown.numeric, cells, strict=True)]
        for row, cells in zip(shown.values, shown.cells, strict=True)
    ]


def _details(norm: NormGeometry) -> dict[str, Any]:
    """What the page shows about the selected norm."""
    details: dict[str, Any] = {"name": norm.name, "facts": _facts(norm), "note": _note(norm)}
    details |= {"longest": None, "labels": None, "points": None, "proportional": True, "lengths": None, "gains": None}
    lengths = _lengths(norm)
    if _why_no_ellipsoid(norm) is None:
        longest = [float(length) for length in lengths[:3]]
        details["longest"] = digits_of(longest)
        details["labels"] = [f"{length:.4g}" for length in longest]
        details["proportional"] = longest[0] <= SAME_SCALE_UP_TO * longest[2]
        if norm.landing is not None and norm.landing.points is not None:
            details["points"] = [digits_of(coordinate) for coordinate in norm.landing.points.T]
    if len(lengths):
        ranks = np.linspace(1, len(lengths), len(outline(lengths))).round()
        details["lengths"] = [ranks.astype(int).tolist(), digits_of(outline(lengths))]
    if norm.found.gain is not None:
        gains = outline(np.sort(norm.found.gain))
        details["gains"] = [digits_of(np.linspace(0, 100, len(gains))), digits_of(gains)]
    return details


def _lengths(norm: NormGeometry) -> Floats:
    """All semi-axes in descending order; none where the set has none, or where they were not kept."""
    return np.zeros(0) if norm.axes is None or norm.axes.lengths is None else norm.axes.lengths


def _why_no_ellipsoid(norm: NormGeometry) -> str | None:
    """Why there is no picture in three axes; None where there is one."""
    if norm.kind == "unknown":
        reason = norm.found.problem or "no reason given"
        return f"There is no ellipsoid to show: the layer fits no member of the family ({reason})."
    if norm.kind in UNBOUNDED:
        return f"There is no ellipsoid to show: {KINDS[norm.kind]} does not scale, so its outputs are unbounded."
    if norm.dimension is not None and norm.dimension < 3:
        return f"There is no picture in three axes: the outputs fill a set of dimension {norm.dimension}."
    return None if len(_lengths(norm)) >= 3 else "There is no ellipsoid to show: its longest axes are not known."


def _note(norm: NormGeometry) -> str | None:
    """The sentence beside the picture, or in its place."""
    missing = _why_no_ellipsoid(norm)
    if missing:
        return missing
    sentences = []
    if norm.found.groups is not None and norm.found.groups > 1:
        sentences.append(
            f"The outputs fill a product of {norm.found.groups} ellipsoids, one per group. The surface is the "
            "ellipsoid with these semi-axes, which lies inside it: outputs may lie outside the surface, up to the box "
            "around it."
        )
    ratio = float(_lengths(norm)[0] / _lengths(norm)[2])
    if ratio > SAME_SCALE_UP_TO:
        sentences.append(f"The axes are not to the same scale: the first is {ratio:.3g} times the third.")
    return " ".join(sentences) or None


def _facts(norm: NormGeometry) -> list[tuple[str, str]]:
    """Labels and values in words; what is not known says so."""
    found = norm.found
    unknown = "not known from weights alone"
    facts = [
        ("kind", KINDS[norm.kind]),
        ("bias", {True: "yes", False: "no", None: "not known"}[found.has_bias]),
        ("reads", _names(norm.reads, unknown)),
        ("read by", _names(norm.read_by, unknown)),
        ("channels of the longest axis", _channels(norm.axes.longest_channels if norm.axes else None)),
        ("channels of the dead direction", _channels(norm.gains.dead_direction if norm.gains else None)),
    ]
    if found.assumed:
        facts.append(("assumed, not observed", ", ".join(found.assumed)))
    for label, value in (
        ("problem", found.problem),
        ("gate", found.gate),
        ("called at", found.function),
        ("not checked inside the model", found.unchecked),
        ("name in the checkpoint", found.stored_as),
    ):
        if value:
            facts.append((label, str(value)))
    if norm.gains and norm.gains.dead:
        named = ", ".join(map(str, norm.gains.dead[:NAMED]))
        more = f" and {norm.gains.zero - NAMED} more" if norm.gains.zero > NAMED else ""
        facts.append(("dead channels", f"{named}{more}: {norm.dimension} live dimensions"))
    if norm.landing is not None:
        facts.append(("inputs", f"{norm.landing.inputs:,}"))
        facts.append(("not explained by an affine map", _fit(norm.landing)))
        facts.append(("H in g groups over H as it is", _factors(norm.landing)))
    return facts


def _names(names: tuple[str, ...] | None, unknown: str) -> str:
    return unknown if names is None else ", ".join(names) or "nothing"


def _fit(landing: Landing) -> str:
    fit = landing.affine_fit
    if fit is None:
        return "not measured"
    way = "the best affine map" if fit.fit == "full" else "its scale frozen"
    share = f"{100 * fit.unexplained:.3g}%"
    return f"{share} of the variance of {fit.held_out:,} held-out outputs ({way}, from {fit.fitted:,})"


def _factors(landing: Landing) -> str:
    """Medians over the inputs, for every admissible number of groups."""
    return ", ".join(f"{entry.groups}: {entry.factor.median:.3g}×" for entry in landing.group_factors) or "no other g"


def _channels(channels: tuple[Channel, ...] | None) -> str:
    return ", ".join(f"{entry.channel} ({entry.weight:+.3f})" for entry in channels or ()) or "none"


def _part(name: str) -> str:
    return files("normscope.report").joinpath(name).read_text(encoding="utf-8")
