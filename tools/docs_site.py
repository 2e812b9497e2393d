"""What mkdocs can't know by itself: pages made from the code, pages that stand elsewhere, and a tolerant navigation.

    make docs        # or: python -m mkdocs build --strict

mkdocs calls the functions on_… of this file (`hooks` in mkdocs.yml).
"""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

ELSEWHERE = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}  # page: file beside docs
UNSORTED = "More"
ROOMS = {  # where a public name is implemented: under which heading it is described
    "norm": "A norm, and the set of its outputs",
    "geometry": "A norm, and the set of its outputs",
    "studies": "Questions about a model",
    "check_model": "Questions about a model",
    "report_file": "Questions about a model",
    "models": "Norms and activations of a model",
    "separation": "Questions about vectors",
    "rewrite": "Rewrites",
}
LINK = re.compile(r"\]\((\.\./|docs/)?([A-Za-z_./-]+\.md)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    """Leave out pages that do not exist, and add those that no one has sorted."""
    there = {path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")}
    there |= set(generated())
    config.nav = kept(config.nav, there)
    missing = sorted(there - set(listed(config.nav)))
    if missing:
        config.nav.append({UNSORTED: missing})
    return config


def kept(nav: list[Any], there: set[str]) -> list[Any]:
    """The entries of a navigation whose pages exist, and sections that are not empty.

    >>> kept([{"A": "a.md"}, {"B": [{"C": "c.md"}]}, {"D": [{"E": "e.md"}]}], {"a.md", "e.md"})
    [{'A': 'a.md'}, {'D': [{'E': 'e.md'}]}]
    """
    entries = []
    for entry in nav:
        ((title, inner),) = entry.items()
        if isinstance(inner, list):
            inner = kept(inner, there)
        elif inner not in there:
            continue
        if inner:
            entries.append({title: inner})
    return entries


def listed(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for inner in entry.values():
            yield from listed(inner) if isinstance(inner, list) else [inner]


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, make in generated().items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files beside docs, and examples as what they are: a session with prompts."""
    markdown = LINK.sub(_on_the_site, markdown)
    return re.sub(r"^```python\n>>>", "```pycon\n>>>", markdown, flags=re.MULTILINE)


def on_post_page(output: str, **_: Any) -> str:
    """The search gets a name for screen readers, which the theme does not give it."""
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')


def _on_the_site(link: re.Match[str]) -> str:
    """A link of a page in docs, or of a file beside it, as a link of the site."""
    pages = {file: page for page, file in ELSEWHERE.items()}
    before, target, anchor = link[1] or "", link[2], link[3] or ""
    if target in pages:
        return f"]({pages[target]}{anchor})"
    return f"]({'' if before == 'docs/' else before}{target}{anchor})"


def generated() -> dict[str, Any]:
    """The pages that are made while the site is built, each with the function that makes it."""
    pages: dict[str, Any] = {
        "reference/commands.md": commands_page,
        "reference/python.md": python_page,
        "reference/results.md": results_page,
    }
    for page, file in ELSEWHERE.items():
        pages[page] = (ROOT / file).read_text
    return pages


def commands_page() -> str:
    """Every command with its arguments and options, from the functions that parse them."""
    import typer

    from normscope.cli.app import app

    command = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Made from the command line itself: `normscope COMMAND --help` says the same.",
        "[Which question, which command](../questions.md) is the shorter way in.",
        "",
        "Options of `normscope` itself stand before the command:",
        "",
        *_parameters(command),
    ]
    return "\n".join([*lines, *_subcommands(command, "normscope", 2)]) + "\n"


def _subcommands(group: Any, path: str, level: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        yield from ("", f"{'#' * level} {path} {name}", "", str(command.help or "").strip(), "")
        if hasattr(command, "commands"):
            yield from _subcommands(command, f"{path} {name}", level + 1)
        else:
            arguments = [each for each in command.params if not each.opts[0].startswith("-")]
            named = [each.name.upper() if each.required else f"[{each.name.upper()}]" for each in arguments]
            yield from (f"    {' '.join([path, name, *named, '[OPTIONS]'])}", "", *_parameters(command))


def _parameters(command: Any) -> Iterator[str]:
    yield from ("| argument or option | meaning |", "|---|---|")
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        given = each.opts[0].startswith("-")
        name = ", ".join(f"`{opt}`" for opt in each.opts) if given else f"`{each.name.upper()}`"
        meaning = str(each.help or "").replace("|", "\\|")
        choices = each.type_descriptor.annotation
        if isinstance(choices, type) and hasattr(choices, "__members__"):
            meaning += f" One of: {', '.join(str(choice.value) for choice in choices.__members__.values())}."
        if each.default not in (None, False, (), []) and each.show_default and not callable(each.default):
            meaning += f" Default: {getattr(each.default, 'value', each.default)}."
        yield f"| {name} | {meaning} |"


def python_page() -> str:
    """The public names, grouped by where they are implemented; mkdocstrings fills in their docstrings."""
    import normscope

    lines = ["# Python", "", "`import normscope as ns` gives all of these. Made from the docstrings."]
    groups: dict[str, list[str]] = {heading: [] for heading in ROOMS.values()}
    homes = {name: str(getattr(normscope, name).__module__).split(".")[1] for name in _plain_names(normscope)}
    for name, room in homes.items():
        groups.setdefault(ROOMS.get(room, "Files, results and the demo model"), []).append(f"normscope.{name}")
    groups["A norm, and the set of its outputs"] += [
        "normscope.geometry.EllipsoidSum",
        "normscope.geometry.Neighbourhood",
    ]
    for heading, names in groups.items():
        if names:
            lines += ["", f"## {heading}"] + [line for name in names for line in ("", f"::: {name}")]
    for module, what in (
        ("capacity", "bending and memorising"),
        ("nn", "to train with"),
        ("errors", "what can go wrong"),
    ):
        names = _plain_names(import_module(f"normscope.{module}"))
        lines += ["", f"## ns.{module}: {what}"] + [
            line for name in names for line in ("", f"::: normscope.{module}.{name}")
        ]
    return "\n".join(lines) + "\n"


def _plain_names(module: Any) -> list[str]:
    """The public classes and functions of a module."""
    from types import ModuleType

    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    values = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return [
        name
        for name, value in values.items()
        if not isinstance(value, ModuleType) and str(getattr(value, "__module__", "")).startswith("normscope")
    ]


def results_page() -> str:
    """Every type of result with its tables: heading and meaning of each column, as results describe themselves."""
    from normscope.results import names
    from normscope.results.describe import Table, annotated, columns_of
    from normscope.results.result import Result

    lines = [
        "# Results",
        "",
        "What questions return, made from the types. A column is a field of a row; its name in Python and JSON stands",
        "last. The terminal shows the columns in bold, `--all`, `--csv` and the JSON show all.",
        "[How results are used](../questions.md#results).",
    ]
    for kind in names():
        module = import_module(f"normscope.results.{kind}")
        types = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Result)]
        for each in (value for value in types if value.__module__ == module.__name__):
            lines += ["", f"## {each.__name__}", "", str(each.__doc__).strip()]
            for field, table, rows in annotated(each, Table):
                title = re.sub(r"\{0\.(\w+)[^}]*\}", r"*\1*", table.title)
                lines += ["", f"`{field}`: {title}", "", "| column | meaning | field |", "|---|---|---|"]
                for path, column, _ in columns_of(get_args(rows)[0]):
                    cells = (f"**{column.heading}**" if column.brief else column.heading, column.meaning)
                    lines.append(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} | `{'.'.join(path)}` |")
    return "\n".join(lines) + "\n"
