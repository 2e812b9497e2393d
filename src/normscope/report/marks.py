"""What a panel of the report is, and the marks that the page can draw: data only, no colours, no HTML.

A role chooses the look of a mark, never its author: "limit" is proved for all inputs (a dark line, outline or bracket),
"seen" is what the text showed (blue, filled), "example" is not tight (magenta, dashed), "soft" is a quiet reference.
Series that only need to be drawn are packed: shares as one byte on a log scale, others as float32 or 16-bit integers.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

Role = Literal["limit", "seen", "example", "soft"]
DECADES = 9  # of a share in one byte: 0, or from 10⁻⁹ to 1 in steps of 8%
Packed = dict[str, str]


@dataclass(frozen=True)
class Line:
    """A level that is compared with, across the drawing."""

    at: float
    label: str
    role: Role = "limit"


@dataclass(frozen=True)
class Series:
    """Values of a lane, one for each column, or several; None where a column has none."""

    label: str
    role: Role
    values: tuple[float | tuple[float, ...] | None, ...] | Packed
    shape: Literal["dots", "rings", "line", "bars"] = "dots"  # bars: lowest, middle and highest of each column


@dataclass(frozen=True)
class Lane:
    """Values by column: by norm (then it shares the columns of the map), by block, by channel."""

    mark: ClassVar[str] = "lane"
    title: str
    series: tuple[Series, ...]
    columns: tuple[str, ...] | int  # their names; or how many there are, by number: fewer values then stand for runs
    by: str = "norm"  # what a column is
    unit: str = ""
    log: bool = True
    upside_down: bool = False  # whether small values are at the top
    lines: tuple[Line, ...] = ()
    named: tuple[tuple[int, str], ...] = ()  # places in the first series with a label beside their value


@dataclass(frozen=True)
class Shares:
    """The reach of every axis, and the shares that outputs spend on it."""

    mark: ClassVar[str] = "shares"
    reach: Packed
    labels: tuple[str, ...]  # of the axes that are named
    named: tuple[int, ...]  # which these are
    median: Packed | None = None
    high: Packed | None = None  # 95%
    largest: Packed | None = None
    even: float | None = None  # share of an axis if all were used alike
    axes: int = 0  # how many there are; series are thinned if they have fewer entries


@dataclass(frozen=True)
class Strip:
    """Values along one axis: dots, or ticks for the others with one of them, its dot and its range."""

    mark: ClassVar[str] = "strip"
    label: str  # of the axis
    low: float
    high: float
    dots: Packed | None = None
    ticks: tuple[float, ...] = ()
    dot: float | None = None
    bar: tuple[float, float] | None = None
    percent: bool = False
    first: str = ""  # what stands at the lower end, in place of its number
    last: str = ""


@dataclass(frozen=True)
class Row:
    """A row of dots and ranges, on the scale of the mark."""

    label: str
    limit: float | None = None  # a bracket there
    seen: float | None = None  # a bar up to there
    at: float | None = None  # a ring there
    text: str = ""  # beside it
    more: str = ""
    tight: bool = True  # whether the limit is
    norm: str | None = None  # that is shown when the row is chosen


@dataclass(frozen=True)
class DotsAndRange:
    """Rows with a limit and what was seen of it, all on one scale."""

    mark: ClassVar[str] = "ranges"
    rows: tuple[Row, ...]
    low: float
    high: float
    axis: str  # label of the scale
    log: bool = False
    percent: bool = False
    lines: tuple[Line, ...] = ()
    first: int = 12  # rows that are shown at once
    headings: tuple[str, str] = ("", "")  # of the two texts


@dataclass(frozen=True)
class PlaneAxis:
    """An axis of a plane."""

    label: str
    length: float
    shown: str


@dataclass(frozen=True)
class Pair:
    """Two axes, and a sentence on how many points are further out than evenly spread ones."""

    name: str
    axes: tuple[PlaneAxis, PlaneAxis]
    note: str = ""
    labels: tuple[tuple[int, str], ...] = ()  # points with a label


@dataclass(frozen=True)
class Plane:
    """Points in planes of two axes: their true distance from the center, and their shadow."""

    mark: ClassVar[str] = "plane"
    pairs: tuple[Pair, ...]
    points: Packed | None = None  # (n, 2·pairs), in units of the axes
    distances: Packed | None = None  # to the surface
    count: int = 0
    even: float | None = None  # radius that holds 95% of points that are spread evenly over the surface


@dataclass(frozen=True)
class Grid:
    """Counts by row and column."""

    mark: ClassVar[str] = "grid"
    counts: tuple[tuple[int | None, ...], ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_name: str
    column_name: str
    what: str  # is counted


@dataclass(frozen=True)
class Framed:
    """A token, framed, between what stands before and after it."""

    token: str
    before: str = ""
    after: str = ""
    note: str = ""


@dataclass(frozen=True)
class Tokens:
    """Tokens, in their text where it is known."""

    mark: ClassVar[str] = "text"
    items: tuple[Framed, ...]
    first: int = 40
    nothing: str = "None."


@dataclass(frozen=True)
class Cell:
    """A verdict on one norm."""

    norm: str
    state: Literal["yes", "no", "later", "nothing"]
    reason: str


@dataclass(frozen=True)
class Verdicts:
    """A row of verdicts for each step."""

    mark: ClassVar[str] = "verdicts"
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    words: tuple[tuple[str, str], ...]  # what the states mean: state, word


@dataclass(frozen=True)
class DataTable:
    """A table that sorts and filters; brief columns first, all on request."""

    mark: ClassVar[str] = "table"
    headings: tuple[tuple[str, str, bool, bool], ...]  # heading, meaning, numeric, brief
    rows: tuple[tuple[tuple[str, float | str | None], ...], ...]  # text, sort key
    search: str = ""  # label of the search field; empty: none
    first: int = 200  # rows in view before the table scrolls
    links: bool = False  # whether the first column names norms


Mark = Lane | Shares | Strip | DotsAndRange | Plane | Grid | Tokens | Verdicts | DataTable


@dataclass(frozen=True)
class Panel:
    """One answer: a heading that states the result, a sentence on what one sees, drawings, paper and formula."""

    id: str
    section: str  # where it stands: map, norm, ranges, heads, vocabulary, folding, norms; another: a section of its own
    title: str  # a sentence that could be false
    see: str = ""
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    paper: str = ""  # a key of PAPERS; empty: normscope's own
    formula: str = ""
    command: str = ""  # that computes what is missing, or more
    norm: str | None = None  # the norm that it is about, in section norm
    wide: bool = True  # whether it needs the whole width


PAPERS = {
    "riechers": "After Riechers, Geometry and Dynamics of LayerNorm, 2024.",
    "brody": "After Brody, Alon and Yahav, On the Expressivity Role of LayerNorm in Transformers’ Attention, 2023.",
    "ni": "After Ni et al., On the Nonlinearity of Layer Normalization, 2024.",
}


def packed_shares(values: ArrayLike) -> Packed:
    """Numbers from 0 to 1, one byte each.

    >>> packed_shares([0.0, 1e-9, 1.0])
    {'log': 'AAH/'}
    """
    x = np.asarray(values, float)
    with np.errstate(divide="ignore"):
        steps = 1 + np.round(254 * (np.log10(np.clip(x, 10.0**-DECADES, 1.0)) + DECADES) / DECADES)
    return {"log": _text(np.where(x > 0, steps, 0).astype("u1"))}


def packed_floats(values: ArrayLike) -> Packed:
    """Numbers of any size as float32; what it can't hold becomes its largest number."""
    most = float(np.finfo(np.float32).max)
    return {"f32": _text(np.clip(np.asarray(values, float), -most, most).astype("<f4"))}


def packed_units(values: ArrayLike) -> Packed:
    """Numbers from −1 to 1 in 16 bits."""
    return {"i16": _text(np.round(32767 * np.clip(np.asarray(values, float), -1, 1)).astype("<i2"))}


def plain(value: Any) -> Any:
    """A mark or a panel in JSON types; a mark has its name, and numbers that are not finite become None."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {"mark": value.mark} if hasattr(value, "mark") else {}
        return named | {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(array.tobytes()).decode()
