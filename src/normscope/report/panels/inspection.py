"""Panels of an inspection: lanes below the map, the panels of every norm, and the table of all."""

from collections.abc import Iterator

from normscope.report.marks import DataTable, Lane, Line, Panel, Series
from normscope.report.norm_panels import norm_panels
from normscope.results.describe import tables_of
from normscope.results.inspection import Inspection, NormGeometry
from normscope.rules.prose import count

FLOAT16 = 65504.0
BRIEF = ("norm", "kind", "longest axis", "shortest axis", "axes used", "largest input", "step for 10°")


def panels(result: Inspection) -> Iterator[Panel]:
    """Lanes, then the panels of each norm in the order of the model, then the table."""
    names = tuple(norm.name for norm in result.norms)
    for lane, panel in ((_largest, "largest"), (_axes_used, "axes"), (_semi_axes, "lengths"), (_steps, "steps")):
        drawn = lane(result, names)
        if drawn is not None:
            yield Panel(panel, "map", drawn.title, marks=(drawn,))
    steps = tuple(norm.landing.step.median for norm in result.norms if norm.landing and norm.landing.step)
    for norm in result.norms:
        yield from norm_panels(norm, steps)
    yield _table(result)


def _largest(result: Inspection, names: tuple[str, ...]) -> Lane | None:
    found = [norm.landing.largest for norm in result.norms if norm.landing and norm.landing.largest]
    if not found:
        return None
    near = max(map(float, found)) > FLOAT16 / 100
    return Lane(
        "Largest value in the stream, before each norm",
        (
            Series("largest", "seen", tuple(_of(norm, "largest") for norm in result.norms), "line"),
            Series("median", "soft", tuple(_of(norm, "typical") for norm in result.norms), "line"),
        ),
        names,
        lines=(Line(FLOAT16, "end of float16, 65,504"),) if near else (),
    )


def _axes_used(result: Inspection, names: tuple[str, ...]) -> Lane | None:
    values = tuple(_of(norm, "axes_used") for norm in result.norms)
    sizes = {norm.dimension for norm in result.norms if norm.dimension}
    if not any(values):
        return None
    lines = tuple(Line(float(size), f"{size:,} axes") for size in sizes) if len(sizes) == 1 else ()
    return Lane("Axes that a median token uses", (Series("axes used", "seen", values),), names, lines=lines)


def _semi_axes(result: Inspection, names: tuple[str, ...]) -> Lane | None:
    bars = tuple(
        None if norm.axes is None else (norm.axes.shortest, norm.axes.median, norm.axes.longest)
        for norm in result.norms
    )
    if not any(bars):
        return None
    title = "Semi-axes of the outputs: shortest, median, longest"
    return Lane(title, (Series("semi-axes", "limit", bars, "bars"),), names)


def _steps(result: Inspection, names: tuple[str, ...]) -> Lane | None:
    values = tuple(_of(norm, "step") for norm in result.norms)
    if not any(values):
        return None
    return Lane("Length of an input change that rotates the output by 10°", (Series("step", "seen", values),), names)


def _of(norm: NormGeometry, figure: str) -> float | None:
    value = None if norm.landing is None else getattr(norm.landing, figure)
    return None if value is None else float(value)


def _table(result: Inspection) -> Panel:
    shown = next(tables_of(result, brief=False))
    order = sorted(range(len(shown.columns)), key=lambda at: _rank(shown.columns[at].heading))
    columns = [(shown.columns[at], shown.numeric[at]) for at in order]
    headings = tuple((column.heading, column.meaning, numeric, column.heading in BRIEF) for column, numeric in columns)
    rows = tuple(
        tuple((cells[at], _key(values[at], shown.numeric[at], cells[at])) for at in order)
        for values, cells in zip(shown.values, shown.cells, strict=True)
    )
    return Panel(
        "norms",
        "norms",
        f"All {count(len(result.norms), 'norm')}" if len(result.norms) != 1 else "The one norm",
        "A heading sorts, a name shows the norm above.",
        (DataTable(headings, rows, search="Names that contain", links=True),),
    )


def _rank(heading: str) -> int:
    return BRIEF.index(heading) if heading in BRIEF else len(BRIEF)


def _key(value: object, numeric: bool, cell: str) -> float | str | None:
    if value is None or value == ():
        return None
    return float(value) if numeric else cell  # type: ignore[arg-type]
