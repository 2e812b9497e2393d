"""The index of many reports: one HTML file that needs no network, with a link to each report beside it."""

from collections.abc import Sequence
from importlib.resources import files
from urllib.parse import quote

from normscope.report.page_words import visible
from normscope.results.model_list import ModelRow


def index_page(models: Sequence[ModelRow]) -> str:
    """The page, to be written as UTF-8 into the folder of the reports. Names are untrusted, and escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("normscope", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["seen"] = visible
    environment.filters["link"] = quote
    failed = sum(row.error is not None for row in models)
    return environment.get_template("reports_index.html.jinja").render(
        models=models,
        failed=failed,
        style=(files("normscope") / "report" / "page.css").read_text(encoding="utf-8"),
    )
