"""What to know about an inventory before its norms are used."""

from collections.abc import Iterator

from normscope.results.inventory import Inventory


def remarks(result: Inventory) -> Iterator[str]:
    """What of a config.json could not be followed, and why norms were not checked inside the model.

    >>> list(remarks(Inventory("a model", (), untraced="it has no inputs")))
    ['The model was not traced, so calls of functions were not looked for: it has no inputs.']
    """
    yield from result.notes
    if result.untraced is not None:
        yield f"The model was not traced, so calls of functions were not looked for: {result.untraced}."
