"""Results as tables that fit 100 columns, a file for each kind of result."""

from normscope.report.tables import benchmarks, inspection, key_benchmark, keys, ranges
from normscope.report.tables.shared import duration, escape, tables

__all__ = ["benchmarks", "duration", "escape", "inspection", "key_benchmark", "keys", "ranges", "tables"]
