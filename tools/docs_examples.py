"""Examples in docstrings as code: Markdown would take their prompts for quotations. Named in mkdocs.yml."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n?(?:(?P=indent)\S.*\n?|(?P=indent) +\S.*\n?)*", flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Puts a fence around every example: from its first prompt to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


def _fenced(example: re.Match[str]) -> str:
    indent, text = example["indent"], example[0].rstrip("\n")
    return f"{indent}```pycon\n{text}\n{indent}```\n"
