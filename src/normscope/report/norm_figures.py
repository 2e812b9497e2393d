"""The figures of an inspection's page in plotly's format: across depth, and of the selected norm.

Those of the selected norm are one pattern each (the ellipsoid as a unit ball with its three axes), which the page
scales to the selected norm: so the file holds a surface once, not once per norm.
"""

from collections.abc import Callable, Sequence
from html import escape
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from normscope.results.inspection import Landing, NormGeometry
from normscope.results.rows import Spread
from normscope.rules.norm_inputs import RISKY_MEAN

Figure = dict[str, Any]
Trace = dict[str, Any]
Band = tuple[float | None, float | None, float | None]  # low, middle, high

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#44bb99")
SURFACE, AXES, POINTS = "#4477aa", "#ee6677", "#ccbb44"
OTHERS = "other norms"


def depth_figures(norms: Sequence[NormGeometry]) -> dict[str, Figure]:
    """The figures across depth by name; one that would have nothing to show is left out."""
    figures = {
        "axes": _across_depth(
            norms,
            lambda norm: (
                (None, None, None) if norm.axes is None else (norm.axes.shortest, norm.axes.median, norm.axes.longest)
            ),
            title="Semi-axes across depth",
            band="median, between shortest and longest",
            unit="length (units of the output)",
            log=True,
        ),
        "gains": _across_depth(
            norms,
            _gain_band,
            title="Gains across depth",
            band="median, with 5% to 95% of the channels",
            unit="gain",
        ),
        "participation": _across_depth(
            norms,
            _effective_band,
            title="Effective axes across depth",
            band="how many axes carry the spread: effective axes over dimensions",
            unit="share of the axes (%)",
        ),
        "nearness": _across_depth(
            norms,
            _landing_band(lambda landing: landing.nearness),
            title="Where inputs land, across depth",
            band="median, with 5% to 95% of the inputs",
            unit="closeness to surface (1 is on it)",
        ),
        "means": _across_depth(
            norms,
            _landing_band(lambda landing: landing.mean_over_sigma),
            title="|mean|/σ of the inputs across depth",
            band="median, with 5% to 95% of the inputs; above 30 is a risk in half precision",
            unit="|mean|/σ",
            log=True,
            risk=RISKY_MEAN,
        ),
        "affine": _across_depth(
            norms,
            _affine_band,
            title="What no affine map explains, across depth",
            band="share of the output's variance on held-out inputs; with a frozen scale where no full fit was made",
            unit="unexplained (%)",
        ),
        "bending": _across_depth(
            norms,
            _landing_band(lambda landing: landing.nonlinearity),
            title="How much norms bend at their inputs, across depth",
            band="median, with 5% to 95% of the inputs",
            unit="H, in units of the inputs (∝ 1/σ⁴)",
            log=True,
        ),
    }
    return {name: figure for name, figure in figures.items() if figure["data"]}


def _gain_band(norm: NormGeometry) -> Band:
    if norm.found.gain is None:
        return None, None, None
    low, middle, high = np.quantile(norm.found.gain, [0.05, 0.5, 0.95])
    return float(low), float(middle), float(high)


def _landing_band(figure: Callable[[Landing], Spread | None]) -> Callable[[NormGeometry], Band]:
    def band(norm: NormGeometry) -> Band:
        spread = None if norm.landing is None else figure(norm.landing)
        return (None, None, None) if spread is None else (spread.low, spread.median, spread.high)

    return band


def _affine_band(norm: NormGeometry) -> Band:
    fit = None if norm.landing is None else norm.landing.affine_fit
    return None, None if fit is None else 100.0 * fit.unexplained, None


def _effective_band(norm: NormGeometry) -> Band:
    share = 100.0 * norm.axes.effective / norm.dimension if norm.axes and norm.dimension else None
    return None, share, None


def _across_depth(
    norms: Sequence[NormGeometry],
    band_of: Callable[[NormGeometry], Band],
    *,
    title: str,
    band: str,
    unit: str,
    log: bool = False,
    risk: float | None = None,
) -> Figure:
    """A line with its band for each family of norms; a family of one is a point with a bar."""
    bands = [finite(band_of(norm)) for norm in norms]
    traces: list[Trace] = []
    for colour, (label, members) in zip(COLOURS, _families(norms).items(), strict=False):
        known = [index for index in members if bands[index][1] is not None]
        if known:
            texts = [_hover(norms[index].name, bands[index]) for index in known]
            low, middle, high = ([digits(bands[index][i]) for index in known] for i in range(3))
            traces += _family_traces(label, colour, known, texts, (low, middle, high))
    shapes = [] if risk is None else [_level(risk)]
    layout = {
        "title": {"text": f"{title}<br><sup>{band}</sup>"},
        "xaxis": {"title": {"text": "norm, in the order of the model"}},
        "yaxis": {"title": {"text": unit}, "type": "log" if log else "linear"},
        "legend": {"orientation": "h", "y": -0.3, "yanchor": "top"},
        "margin": {"l": 64, "r": 16, "t": 64, "b": 60},
        "hovermode": "closest",
        "shapes": shapes,
    }
    return _figure(traces, layout)


def _families(norms: Sequence[NormGeometry]) -> dict[str, list[int]]:
    """Positions of the norms by family, no more families than colours; families of one norm are put together."""
    members: dict[str, list[int]] = {}
    for index, norm in enumerate(norms):
        members.setdefault(family(norm.name), []).append(index)
    largest = sorted((name for name in members if len(members[name]) > 1), key=lambda name: -len(members[name]))
    shown_apart = {name: members[name] for name in members if name in largest[: len(COLOURS) - 1]}
    others = sorted(index for name, indices in members.items() if name not in shown_apart for index in indices)
    return {**shown_apart, OTHERS: others} if others else shown_apart


def _family_traces(
    label: str, colour: str, x: list[int], texts: list[str], band: tuple[list[Any], list[Any], list[Any]]
) -> list[Trace]:
    low, middle, high = band
    name = escape(label)
    alone = label == OTHERS
    common = {"type": "scatter", "x": x, "text": texts, "hovertemplate": "%{text}<extra></extra>", "legendgroup": name}
    line: Trace = {
        **common,
        "y": middle,
        "name": name,
        "mode": "markers" if alone else "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 6, "symbol": "diamond" if alone else "circle"},
    }
    if None in low or None in high:
        return [line]
    if alone:
        up = [digits(top - mid) for top, mid in zip(high, middle, strict=True)]
        down = [digits(mid - bottom) for mid, bottom in zip(middle, low, strict=True)]
        bar = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1, "width": 3}
        return [{**line, "error_y": {**bar, "color": colour}}]
    edge = {**common, "mode": "lines", "showlegend": False, "line": {"color": colour, "width": 0.6}}
    filled = {"fill": "tonexty", "fillcolor": _transparent(colour, 0.16)}
    return [{**edge, "y": low}, {**edge, "y": high, **filled}, line]


def _hover(name: str, band: Band) -> str:
    low, middle, high = band
    spread = f"<br>from {low:.4g} to {high:.4g}" if low is not None and high is not None else ""
    return f"{escape(name)}<br>{middle:.4g}{spread}"


def _level(y: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"dash": "dot", "width": 1.5, "color": "#cc3311"},
    }


def _transparent(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def patterns() -> dict[str, Figure]:
    """The figures of the selected norm, to be filled in by the page."""
    return {"ellipsoid": _ellipsoid_pattern(), "lengths": _lengths_pattern(), "gains": _gains_pattern()}


def _ellipsoid_pattern() -> Figure:
    """The unit ball, its three axes, and no points yet."""
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 49), np.linspace(0, np.pi, 25))
    ball = (np.cos(around) * np.sin(down), np.sin(around) * np.sin(down), np.cos(down))
    x, y, z = (coordinate.round(4).tolist() for coordinate in ball)
    surface = {
        "type": "surface",
        "name": "surface",
        "x": x,
        "y": y,
        "z": z,
        "colorscale": [[0, SURFACE], [1, SURFACE]],
        "showscale": False,
        "opacity": 0.22,
        "hoverinfo": "skip",
        "showlegend": True,
    }
    axes = {
        "type": "scatter3d",
        "name": "semi-axes, with their lengths",
        "mode": "lines+text",
        "x": [-1, 1, None, 0, 0, None, 0, 0],
        "y": [0, 0, None, -1, 1, None, 0, 0],
        "z": [0, 0, None, 0, 0, None, -1, 1],
        "line": {"color": AXES, "width": 5},
        "textfont": {"color": AXES},
        "hoverinfo": "skip",
    }
    points = {
        "type": "scatter3d",
        "name": "outputs of real inputs",
        "mode": "markers",
        "x": [],
        "y": [],
        "z": [],
        "marker": {"color": POINTS, "size": 2.5},
        "hovertemplate": "%{x:.4g}, %{y:.4g}, %{z:.4g}<extra></extra>",
    }
    scene = {f"{letter}axis": {"title": {"text": f"axis {i}"}} for i, letter in enumerate("xyz", start=1)}
    layout = {
        "title": {
            "text": "Its three longest axes<br>"
            "<sup>seen along three axes of many, points look further inside than they are</sup>"
        },
        "scene": {**scene, "camera": {"eye": {"x": 1.45, "y": 1.45, "z": 0.85}}},
        "legend": {"orientation": "h", "y": 0, "yanchor": "top"},
        "margin": {"l": 0, "r": 0, "t": 64, "b": 32},
    }
    return _figure([surface, axes, points], layout)


def _lengths_pattern() -> Figure:
    return _curve_pattern(
        "Semi-axes", "axis, longest first", {"title": {"text": "length (units of the output)"}, "type": "log"}
    )


def _gains_pattern() -> Figure:
    return _curve_pattern("Gains, sorted", "share of the channels (%)", {"title": {"text": "gain"}})


def _curve_pattern(title: str, along: str, yaxis: dict[str, Any]) -> Figure:
    curve = {"type": "scatter", "mode": "lines+markers", "x": [], "y": [], "name": title.lower(), "marker": {"size": 3}}
    layout = {
        "title": {"text": title},
        "xaxis": {"title": {"text": along}},
        "yaxis": yaxis,
        "margin": {"l": 64, "r": 16, "t": 40, "b": 60},
    }
    return _figure([{**curve, "line": {"color": SURFACE, "width": 2}}], layout)


def _figure(traces: list[Trace], layout: dict[str, Any]) -> Figure:
    """A figure as plain values, checked by plotly against its own schema."""
    import plotly.graph_objects as go

    figure: Figure = go.Figure(data=traces, layout={**layout, "template": "none"}).to_plotly_json()
    del figure["layout"]["template"]  # the page has its own, for light and dark
    return figure


def family(name: str) -> str:
    """The name with its layer numbers left out: the same for the same norm of every layer.

    >>> family("h.11.ln_1")
    'h.*.ln_1'
    """
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def digits_of(values: ArrayLike) -> list[float | None]:
    return [digits(value) for value in np.asarray(values, dtype=float).tolist()]


def digits(value: float | None) -> float | None:
    """Four digits are more than a picture shows, and keep the file small."""
    return float(f"{value:.4g}") if value is not None and isfinite(value) else None


def finite(value: Any) -> Any:
    """Plain values with None in place of every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value
