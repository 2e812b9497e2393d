"""Tables of results that do not describe themselves yet."""

from normscope.report.tables import folding, inspection, memorize, separability, shatter, vocab  # noqa: F401
from normscope.report.tables.shared import duration, escape, tables
from normscope_lab.tables import (  # noqa: F401
    benchmarks,
    fold_benchmark,
    key_benchmark,
    lng_benchmark,
    memorize_benchmark,
    reproduction,
)

__all__ = ["duration", "escape", "tables"]
