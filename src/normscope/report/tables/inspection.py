"""Every norm of a model, and where its inputs land."""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normscope.report.tables.shared import escape, new_table, tables
from normscope.report.words import highlights
from normscope.studies.inspection import Inspection, NormGeometry

GEOMETRY_CAPTION = (
    "dim: dimension of the set that the outputs fill; longest, median, shortest: its semi-axes; "
    "particip.: how many of them carry the spread; zeros, neg: gains; *: assumed from names"
)
LANDING_CAPTION = (
    "medians over all inputs; nearness: 1 is on the surface; along 1: share of |x|² that projection removes; "
    "dead var.: variance along the dead direction over that of a channel; angle: between LayerNorm and RMSNorm"
)
BENDING_CAPTION = (
    "H: squared size of the second derivative at the inputs, 0 where the norm is affine: 5%, median, 95%; "
    "g=…: by what factor H would grow with g groups of channels and the same weights, as in LN-G (medians)"
)
GROUP_COLUMNS = 6


@tables.register
def _(result: Inspection) -> list[RenderableType]:
    geometry = new_table(f"Norms of {result.model}", GEOMETRY_CAPTION, "norm", "kind")
    for heading in ("size", "dim", "zeros", "neg", "longest", "median", "shortest", "particip."):
        geometry.add_column(heading, justify="right")
    for norm in result.norms:
        counts = [norm.size, norm.dimension, norm.zero_gains, norm.negative_gains]
        lengths = [norm.axis_max, norm.axis_median, norm.axis_min, norm.participation_ratio]
        without = "∞" if norm.kind in ("projection", "affine") and norm.dimension else "–"
        geometry.add_row(
            escape(norm.name or "(the model)"),
            norm.kind + (" (gated)" if norm.gate else "") + ("*" if norm.assumed else ""),
            *("–" if count is None else str(count) for count in counts),
            *(without if length is None else f"{length:.4g}" for length in lengths),
        )
    landed = [norm for norm in result.norms if norm.landing is not None]
    words = [Text(f"• {sentence}") for sentence in highlights(result)]
    if not result.norms:
        return [*words]
    return [geometry, *([_landing_table(landed), _bending_table(landed)] if landed else []), *words]


def _landing_table(norms: list[NormGeometry]) -> Table:
    table = new_table("Where the inputs land", LANDING_CAPTION, "norm")
    for heading in ("inputs", "nearness", "along 1", "|mean|/σ", "highest", "dead var.", "angle"):
        table.add_column(heading, justify="right")
    for norm in norms:
        landing = norm.landing
        assert landing is not None
        medians = [
            "–" if spread is None else f"{spread.median:.4g}"
            for spread in (landing.nearness, landing.ones_share, landing.mean_over_sigma)
        ]
        highest = f"{landing.mean_over_sigma_max:.4g}"
        dead = "–" if landing.dead_variance is None else f"{landing.dead_variance:.4g}"
        angle = "–" if landing.rms_angle is None else f"{landing.rms_angle.median:.3g}°"
        table.add_row(escape(norm.name or "(the model)"), str(landing.inputs), *medians, highest, dead, angle)
    return table


def _bending_table(norms: list[NormGeometry]) -> Table:
    table = new_table("How much the norms bend there", BENDING_CAPTION, "norm")
    known = {factor.groups for norm in norms if norm.landing for factor in norm.landing.group_factors}
    shown = _evenly(sorted(known))
    for heading in ("H 5%", "H", "H 95%", *(f"g={groups}" for groups in shown)):
        table.add_column(heading, justify="right")
    for norm in norms:
        landing = norm.landing
        assert landing is not None
        spread = landing.nonlinearity
        bending = (
            ["–"] * 3 if spread is None else [f"{value:.3g}" for value in (spread.low, spread.median, spread.high)]
        )
        factors = {factor.groups: f"{factor.factor.median:.3g}×" for factor in landing.group_factors}
        table.add_row(escape(norm.name or "(the model)"), *bending, *(factors.get(groups, "–") for groups in shown))
    return table


def _evenly(groups: list[int]) -> list[int]:
    """As many as fit, the least and the largest among them.

    >>> _evenly([2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
    [2, 4, 8, 16, 32, 64]
    """
    if len(groups) <= GROUP_COLUMNS:
        return groups
    return [groups[round(place * (len(groups) - 1) / (GROUP_COLUMNS - 1))] for place in range(GROUP_COLUMNS)]
