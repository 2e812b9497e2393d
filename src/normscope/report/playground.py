"""The playground: the steps of a norm in three dimensions, and a line creased by LayerNorms, as one HTML file.

Everything is computed in the browser, by the scripts in `playground_parts`; the networks of the second tab were found
by `normscope.capacity.memorize` (`tools/playground_networks.py`).
"""

import re
from importlib.resources import files
from typing import Any, NamedTuple

SCRIPTS = ("norm.js", "keys.js", "steps.js", "words.js", "creases.js", "link.js", "controls.js", "page.js")
WORD = re.compile(r"[\w$]")
JOINS_NEXT, JOINS_LAST = "{[(,;=?:&|>", "}]).?:&|="  # a line that ends or begins so is not a statement by itself


class PlaygroundParts(NamedTuple):
    """What another page needs to hold the playground: a style, a script, and the element that both are about.

    The style names nothing outside `.ns-playground`, and takes its colours from the variables --paper, --raised,
    --wash, --ink, --soft, --limit, --seen, --warning-fill, --example and --rule, its fonts from --sans and --mono.
    The script defines `normscopePlayground.init(element)`, which brings the element to life and returns an object with
    `state()`, `set(values)`, `open(link)` and `link()`.
    """

    style: str
    body: str
    script: str


def playground_parts(heading: int = 3) -> PlaygroundParts:
    """The playground, to be put into another page where headings of this level come next."""
    body = _rendered("body.html.jinja", h=f"h{heading}", networks=_text("networks.json").strip())
    return PlaygroundParts(_short_css(_text("playground.css")), body, _script(*SCRIPTS))


def playground_html() -> str:
    """The playground as a page of its own, to be written to a file as UTF-8."""
    theme, own = _short_css(_text("theme.css")), _script("own_page.js")
    return _rendered("page.html.jinja", theme=theme, own=own, **playground_parts(heading=2)._asdict())


def short_js(code: str) -> str:
    """JavaScript without comments and without spaces that mean nothing; lines and everything in quotes stay.

    For code without regular expressions and empty statements, where // always begins a comment.

    >>> short_js("const a = `${b + `x  ${ c }`} // y`; // why\\n  return - 1;\\n")
    'const a=`${b+`x  ${c}`} // y`;return-1;'
    """
    kept: list[str] = []
    braces: list[int] = []  # open braces of each piece of code inside a template, from the outside in
    at, quote = 0, ""
    while at < len(code):
        character = code[at]
        if quote:
            if character == "\\":
                kept.append(code[at : at + 2])
                at += 2
                continue
            if quote == "`" and code.startswith("${", at):
                braces.append(0)
                kept.append("${")
                at, quote = at + 2, ""
                continue
            quote = "" if character == quote else quote
        elif code.startswith("//", at):
            at = code.find("\n", at)
            continue
        elif character in "\"'`":
            quote = character
        elif character in " \n":
            end = at + len(code[at:]) - len(code[at:].lstrip(" \n"))
            kept += _gap(code[at:end], kept[-1][-1] if kept else "", code[end : end + 1])
            at = end
            continue
        elif braces and character in "{}":
            if character == "}" and braces[-1] == 0:
                braces.pop()
                quote = "`"
            else:
                braces[-1] += 1 if character == "{" else -1
        if character == "}" and not quote and kept and kept[-1] == ";":
            kept.pop()  # the last statement of a block ends with it
        kept.append(character)
        at += 1
    return "".join(kept)


def _gap(space: str, before: str, after: str) -> str:
    """What must remain of a space between two characters."""
    if "\n" in space:
        return "" if before in JOINS_NEXT or after in JOINS_LAST else "\n"
    both_words = WORD.match(before) and WORD.match(after)
    return " " if both_words or (before in "+-" and before == after) else ""


def _short_css(style: str) -> str:
    plain = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    tight = re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r"\s+", " ", plain))
    return re.sub(r": ", ":", tight).replace(";}", "}").strip()


def _script(*names: str) -> str:
    return '(()=>{"use strict";' + short_js("".join(map(_text, names))) + "})();"


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # All values are parts of this package: nothing comes from a model, so nothing is escaped.
    environment = Environment(
        loader=PackageLoader("normscope", "report/playground_parts"), undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(**values)


def _text(name: str) -> str:
    return files("normscope.report").joinpath("playground_parts", name).read_text(encoding="utf-8")
