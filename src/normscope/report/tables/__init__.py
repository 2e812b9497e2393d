"""Results as tables that fit 100 columns, a file for each kind of result, which registers its table when imported."""

from normscope.report.tables import (  # noqa: F401
    benchmarks,
    fold_benchmark,
    folding,
    inspection,
    key_benchmark,
    keys,
    lng,
    memorize,
    memorize_benchmark,
    ranges,
    reproduction,
    separability,
    shatter,
    vocab,
)
from normscope.report.tables.shared import duration, escape, tables

__all__ = ["duration", "escape", "tables"]
