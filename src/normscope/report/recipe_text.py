"""A recipe on a terminal: the file itself, so that it can be redirected to one."""

from rich.console import Console
from rich.text import Text

from normscope.report.terminal import printable
from normscope.results.quantizer_recipe import QuantizerRecipe


def show(result: QuantizerRecipe, console: Console) -> None:
    """The recipe, in lines that are never broken."""
    for line in result.recipe.splitlines():
        console.print(Text(printable(line)), soft_wrap=True)
