"""Examples in docstrings as code: Markdown would take their prompts for quotations. Named in mkdocs.yml."""

import re
from typing import Any

import griffe

SECTION = re.compile(r"^(Parameters|Returns|Yields|Raises|Attributes)\n-{3,}$", flags=re.MULTILINE)
EXAMPLE = re.compile(r"^>>> .*\n?(?:.*\S.*\n?)*", flags=re.MULTILINE)  # up to the next empty line


class Examples(griffe.Extension):
    """Marks every example: with a heading where it follows a list of parameters, with a fence elsewhere."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = marked(obj.docstring.value)


def marked(text: str) -> str:
    r"""A docstring with its examples marked.

    >>> marked("It adds.\n\n>>> 1 + 1\n2\n\nThat is all.")
    'It adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThat is all.'
    >>> marked("It adds.\n\nParameters\n----------\na\n    One.\n\n>>> 1 + 1\n2")
    'It adds.\n\nParameters\n----------\na\n    One.\n\nExamples\n--------\n>>> 1 + 1\n2'
    """
    section = SECTION.search(text)
    start = section.start() if section else len(text)
    prose = EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```\n", text[:start])
    return (prose if section else prose.rstrip()) + re.sub(
        r"^>>> ", "Examples\n--------\n>>> ", text[start:], count=1, flags=re.MULTILINE
    )
