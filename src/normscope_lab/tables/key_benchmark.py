"""What `normscope bench keys` and `normscope bench keys-agreement` found."""

from rich.console import RenderableType
from rich.text import Text

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.bench.key_alternatives import Alternative
from normscope_lab.bench.keys_agreement import KeysAgreement
from normscope_lab.bench.keys_bench import JobTiming, KeysBenchmark, SetTiming

SPEED_CAPTION = (
    "CPU time, one thread, in turn; ours with certificates and their check; published: reflections, then Gurobi, "
    "with the programs timed of those needed; HiGHS: a program for every key, with how many were timed"
)
AGREEMENT_CAPTION = "degenerate keys are not compared; open: HiGHS found no optimum"


@tables.register
def _(result: KeysBenchmark) -> list[RenderableType]:
    table = new_table("Which keys can win", SPEED_CAPTION, "keys")
    headings = ("n × d", "lose", "normscope", "published", "ratio", "timed", "HiGHS", "ratio", "timed")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in result.sets:
        table.add_row(row.kind, f"{row.keys} × {row.channels}", *_cells(row))
    table.add_row("heads", f"{result.heads.sets} sets", *_cells(result.heads))
    table.add_row("the grid", f"{result.grid.sets} sets", *_cells(result.grid))
    timings: list[SetTiming | JobTiming] = [*result.sets, result.heads, result.grid]
    asked = [way for timing in timings for way in (timing.published, timing.highs) if way is not None]
    held = "Every certificate held." if all(timing.certificates_hold for timing in timings) else "A CHECK FAILED."
    differ = sum(way.disagreements for way in asked)
    failed = sum(way.failures for way in asked)
    return [table, Text(f"• {held} Verdicts that differ from ours: {differ}; programs without an answer: {failed}.")]


@tables.register
def _(result: KeysAgreement) -> list[RenderableType]:
    table = new_table("Verdicts against linear programs", AGREEMENT_CAPTION, "keys", "bias")
    for heading in ("sets", "keys", "win", "degenerate", "open", "differ"):
        table.add_column(heading, justify="right")
    for row in result.kinds:
        counts = (row.sets, row.keys, row.selectable, row.degenerate, row.unanswered, row.disagreements)
        table.add_row(row.kind, "yes" if row.bias else "no", *map(str, counts))
    held = "every certificate held" if result.certificates_hold else "A CHECK FAILED"
    words = f"• {result.compared} keys compared, {len(result.disagreements)} judged differently; {held}."
    places = [
        f"• set {one.number}, key {', '.join(map(str, one.place))}: we say {'wins' if one.selectable else 'loses'}, "
        f"the program prefers it by {one.preference:.3g}"
        for one in result.disagreements
    ]
    return [table, *map(Text, [words, *places])]


def ratio(value: float) -> str:
    """How many times, to two digits below ten and to whole numbers above.

    >>> ratio(0.715), ratio(8.35), ratio(1634.2)
    ('0.71×', '8.3×', '1634×')
    """
    return f"{value:.2g}×" if value < 10 else f"{value:.0f}×"


def _cells(timing: SetTiming | JobTiming) -> list[str]:
    published, highs = timing.published, timing.highs
    return [
        str(timing.keys - timing.selectable),
        duration(timing.normscope_seconds),
        *(
            ("–", "–", "–")
            if published is None
            else (*_time_and_ratio(published), f"{published.programs_timed}/{published.programs}")
        ),
        *_time_and_ratio(highs),
        str(highs.programs_timed),
    ]


def _time_and_ratio(way: Alternative) -> tuple[str, str]:
    return duration(way.seconds), ratio(way.ratio)
