"""Tables of results that do not describe themselves yet."""

from normscope.report.tables import keys  # noqa: F401
from normscope.report.tables.shared import duration, escape, tables

__all__ = ["duration", "escape", "tables"]
