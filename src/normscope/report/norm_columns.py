"""Results as tables of plain HTML, as a notebook shows them; the columns of norms are those of the page too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from normscope.studies.inspection import Inspection, Landing, NormGeometry, Spread

Value = str | int | float | None

NOTEBOOK_HEADINGS = (
    "name",
    "kind",
    "size",
    "dim",
    "zero",
    "negative",
    "longest",
    "median",
    "shortest",
    "anisotropy",
    "participation",
)
READERS_SHOWN = 3


@dataclass(frozen=True)
class Column:
    """A figure or word that is shown of every norm."""

    heading: str
    meaning: str
    value: Callable[[NormGeometry], Value]
    numeric: bool = True


def norms_html(inspection: Inspection) -> str:
    """A table of the norms, every string from the model escaped.

    >>> print(norms_html(Inspection("<b>", None, None, False, None, 0, ()))[:34])
    <table><caption>Norms of &lt;b&gt;
    """
    columns = [column for column in columns_of(inspection) if column.heading in NOTEBOOK_HEADINGS]
    headings = [(column.heading, column.meaning) for column in columns]
    rows = [[column.value(norm) for column in columns] for norm in inspection.norms]
    return _table(f"Norms of {inspection.model}", headings, rows)


def _table(caption: str, headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[Value]]) -> str:
    head = "".join(f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    start = f"<table><caption>{escape(caption)}</caption>"
    return f"{start}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def columns_of(inspection: Inspection) -> list[Column]:
    """The columns that describe the norms; where a text was run, also where its inputs land."""
    landed = any(norm.landing is not None for norm in inspection.norms)
    return GEOMETRY + LANDING if landed else GEOMETRY


def shown(value: Value) -> str:
    """A cell as a reader sees it.

    >>> shown(None), shown(1e-05), shown(768), shown(2.718281828)
    ('–', '1e-05', '768', '2.718')
    """
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def short_names(names: tuple[str, ...] | None) -> str | None:
    """The last part of each module's name, the first few of many.

    >>> short_names(("h.0.attn.q", "h.0.attn.k", "h.0.attn.v", "h.0.mlp"))
    'q, k, v, +1'
    """
    if not names:
        return None
    last = [name.rpartition(".")[2] for name in names]
    more = [f"+{len(last) - READERS_SHOWN}"] if len(last) > READERS_SHOWN else []
    return ", ".join(last[:READERS_SHOWN] + more)


def _landing(figure: Callable[[Landing], float | None]) -> Callable[[NormGeometry], Value]:
    return lambda norm: None if norm.landing is None else figure(norm.landing)


def _median(figure: Callable[[Landing], Spread | None]) -> Callable[[NormGeometry], Value]:
    def value(landing: Landing) -> float | None:
        spread = figure(landing)
        return None if spread is None else spread.median

    return _landing(value)


def _unexplained(landing: Landing, fit: str) -> float | None:
    """In per cent."""
    known = landing.affine_fit
    return 100.0 * known.unexplained if known is not None and known.fit == fit else None


GEOMETRY = [
    Column("name", "module path, as in the checkpoint", lambda norm: norm.name, numeric=False),
    Column("kind", "which member of the family it is", lambda norm: norm.kind, numeric=False),
    Column("size", "channels", lambda norm: norm.size),
    Column("groups", "groups of channels that are normalized apart", lambda norm: norm.groups),
    Column("eps", "what keeps the divisor from zero", lambda norm: norm.eps),
    Column("gain is", "how the gain is stored: w or 1+w", lambda norm: norm.gain_convention, numeric=False),
    Column("dim", "dimension of the set that the outputs fill", lambda norm: norm.dimension),
    Column(
        "dead",
        "gains that are zero, exactly or within float32 rounding of the largest: dim and axes are those of the others",
        lambda norm: None if norm.dead_gains is None else len(norm.dead_gains),
    ),
    Column("near zero", "gains below 0.001 of the median |gain|, dead ones aside", lambda norm: norm.near_zero_gains),
    Column("negative", "gains below zero", lambda norm: norm.negative_gains),
    Column("longest", "longest semi-axis, in units of the output", lambda norm: norm.axis_max),
    Column("median", "median semi-axis, in units of the output", lambda norm: norm.axis_median),
    Column("shortest", "shortest semi-axis, in units of the output", lambda norm: norm.axis_min),
    Column("anisotropy", "longest over shortest semi-axis", lambda norm: norm.anisotropy),
    Column("participation", "how many axes carry the spread: (Σℓ²)²/Σℓ⁴", lambda norm: norm.participation_ratio),
    Column("range low", "no output of any channel is below this", lambda norm: norm.range_low),
    Column("range high", "no output of any channel is above this", lambda norm: norm.range_high),
    Column("read by", "modules that read its output", lambda norm: short_names(norm.read_by), numeric=False),
]

LANDING = [
    Column(
        "nearness",
        "where the inputs land, 1 is on the surface (median)",
        _median(lambda landing: landing.nearness),
    ),
    Column(
        "along ones",
        "share of |x|² along the ones vector (median)",
        _median(lambda landing: landing.ones_share),
    ),
    Column("|mean|/σ", "|mean|/σ of the input (median)", _median(lambda landing: landing.mean_over_sigma)),
    Column("|mean|/σ max", "|mean|/σ of the input (largest)", _landing(lambda landing: landing.mean_over_sigma_max)),
    Column(
        "dead variance",
        "variance of the input along the dead direction over its mean variance per channel",
        _landing(lambda landing: landing.dead_variance),
    ),
    Column(
        "LN–RMS angle",
        "degrees between the input and its projection (median)",
        _median(lambda landing: landing.rms_angle),
    ),
    Column(
        "not affine %",
        "share of the output's variance on held-out inputs that the best affine map of the input leaves unexplained",
        _landing(lambda landing: _unexplained(landing, "full")),
    ),
    Column(
        "frozen scale %",
        "share left unexplained by the norm with one number in place of its divisor, where a full fit was not made",
        _landing(lambda landing: _unexplained(landing, "frozen scale")),
    ),
    Column(
        "H",
        "how much it bends at its inputs, in their units: squared size of the second derivative (median)",
        _median(lambda landing: landing.nonlinearity),
    ),
    Column(
        "H in groups",
        "by what factor H would grow in the number of groups that brings most, with the same weights (median)",
        _landing(lambda landing: max((entry.factor.median for entry in landing.group_factors), default=None)),
    ),
]
