"""What a paper reports, what was measured here, and whether the claim holds."""

from rich.console import RenderableType

from normscope.report.tables.shared import duration, new_table, tables
from normscope_lab.engine.runs import Reproduction


@tables.register
def _(result: Reproduction) -> list[RenderableType]:
    caption = (
        f"{result.source}; preset {result.preset}, seeds {len(result.seeds)}, {duration(result.seconds)} of CPU time"
    )
    table = new_table(result.what, f"{caption}; in {result.folder}", "claim", "the paper", "ours", "verdict")
    for finding in result.findings:
        table.add_row(finding.claim, finding.paper, finding.ours, f"{finding.verdict}: {finding.decided_by}")
    differences = dict.fromkeys(finding.differences for finding in result.findings if finding.differences)
    return [table, *(f"different here: {difference}" for difference in differences)]
