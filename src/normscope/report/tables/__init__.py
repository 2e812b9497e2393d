"""Results as tables that fit 100 columns, a file for each kind of result, which registers its table when imported."""

from normscope.report.tables import (  # noqa: F401
    benchmarks,
    inspection,
    key_benchmark,
    keys,
    ranges,
    separability,
    vocab,
)
from normscope.report.tables.shared import duration, escape, tables

__all__ = ["duration", "escape", "tables"]
