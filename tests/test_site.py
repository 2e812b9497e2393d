"""The documentation as a site: built without a warning, from the disk, without the network, with a search that works.

Examples in README.md and docs are run by pytest itself (--doctest-glob).
"""

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
TUTORIALS = ("ellipsoid", "attention", "nonlinearity")
GUIDES = ("interpret", "deploy", "train", "convert", "teach")
MARKDOWN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tool(name):
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does: a warning is an error."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs: make docs installs it")
    place = tmp_path_factory.mktemp("site")
    # Not --quiet: warnings that are not logged are not counted, and the build passes.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "INFO" in built.stderr
    assert "WARNING" not in built.stderr
    return place


class Links(HTMLParser):
    """What a page loads, where it leads to, and the places in it that can be led to."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.led_to, self.places = [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a":
            self.led_to += [given["href"]] if "href" in given else []
        else:
            self.loaded += [given[name] for name in ("src", "href") if given.get(name)]


def test_every_page_is_listed_and_every_link_of_the_site_leads_somewhere(site):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) >= 36
    followed = 0
    for page, links in pages.items():
        for link in links.loaded + links.led_to:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.exists(), f"{page.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].places, f"{page.name}: {link}"
            followed += 1
    assert followed > 1000
    navigation = (site / "index.html").read_text(encoding="utf-8")
    hrefs = {urlsplit(link).path for link in Links(site / "index.html").led_to}
    assert {page.relative_to(site).as_posix() for page in pages} - {"index.html"} <= hrefs
    assert "Which question, which command" in navigation


def test_no_page_loads_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        outside = [each for each in Links(page).loaded if urlsplit(each).scheme or each.startswith("//")]
        assert outside == [], page


def test_the_search_works_from_the_disk_without_a_request(site, browser):
    page = browser.open(site / "index.html")
    page.click("input.md-search__input")
    page.run(
        "(e => { e.value = 'dead direction'; e.dispatchEvent(new Event('keyup', {bubbles: true})) })"
        "(document.querySelector('input.md-search__input'))"
    )
    page.wait("document.querySelectorAll('.md-search-result__item').length > 2", seconds=30)
    found = page.run("[...document.querySelectorAll('a.md-search-result__link')].map(e => e.getAttribute('href'))")
    assert any("ellipsoid.html" in link for link in found)
    assert page.messages == []
    assert page.requests
    assert all(request.startswith("file://") for request in page.requests)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", ["index", "tutorials/attention", "reference/commands"])
def test_pages_can_be_read_by_everybody(site, browser, page, dark):
    serious = browser.open(site / f"{page}.html", dark=dark).serious()
    # The theme gives code that scrolls the focus where there is a mouse: not in a headless browser.
    assert [each for each in serious if not each.startswith("scrollable-region-focusable")] == []


def test_the_reference_has_every_public_name_every_command_and_every_result(site):
    import typer

    import normscope
    from normscope.cli.app import app
    from normscope.results import names

    python = Links(site / "reference" / "python.html").places
    modules = {"capacity", "errors", "nn", "results", "__version__"}
    assert {f"normscope.{name}" for name in normscope.__all__ if name not in modules} <= python
    assert {f"normscope.{room}" for room in ("capacity.memorize", "nn.Norm", "errors.InputError")} <= python
    assert "<blockquote" not in (site / "reference" / "python.html").read_text(encoding="utf-8")  # examples are code
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    for name, command in typer.main.get_command(app).commands.items():
        assert f"normscope {name}" in commands
        for parameter in command.params:
            assert parameter.opts[0] in commands or parameter.name.upper() in commands
    results = Links(site / "reference" / "results.html").places
    assert {kind.replace("_", "") for kind in names()} <= results


@pytest.mark.parametrize("page", [*(f"tutorials/{name}" for name in TUTORIALS), *(f"guides/{name}" for name in GUIDES)])
def test_tutorials_and_guides_have_examples_that_run(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^>>> ", text, flags=re.MULTILINE)) >= 5
    if page.startswith("tutorials"):
        first, second = text.split("\n\n")[1:3]
        assert "?" in first
        assert second.startswith("![")
        assert "## Where the paper says it" in text


@pytest.mark.parametrize("file", MARKDOWN, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_links_between_files_lead_to_files(file):
    for link in re.findall(r"\]\(\s*([^)\s]+)\)", file.read_text(encoding="utf-8")):
        if not urlsplit(link).scheme and not link.startswith("#"):
            assert (file.parent / urlsplit(link).path).exists(), link


def test_pages_that_do_not_exist_are_left_out_of_the_navigation_and_unsorted_ones_are_added(tmp_path):
    from types import SimpleNamespace

    docs_site = tool("docs_site")
    for name in ("known.md", "new.md"):
        (tmp_path / name).write_text("# Page\n", encoding="utf-8")
    nav = [{"Known": "known.md"}, {"Later": [{"Missing": "missing.md"}]}]
    nav += [{"Made": [{name: name} for name in docs_site.generated()]}]
    config = docs_site.on_config(SimpleNamespace(docs_dir=str(tmp_path), nav=nav))
    assert doctest.testmod(docs_site) == (0, 1)
    assert config.nav == [{"Known": "known.md"}, nav[2], {"More": ["new.md"]}]


def test_examples_in_docstrings_become_code():
    pytest.importorskip("griffe", reason="the site needs the extra docs: make docs installs it")
    assert doctest.testmod(tool("docs_examples")) == (0, 2)


def found_by_check(*findings, clear=()):
    return {
        "findings": [
            {"rule": "NS102", "title": title, "severity": level, "sure": "heuristic"} for level, title in findings
        ],
        "clear": [{"rule": rule, "evidence": f"{rule} is clear"} for rule in clear],
    }


def test_the_verdict_of_the_gallery_is_the_first_finding_and_the_best_guarantee():
    gallery = tool("gallery")
    found = found_by_check(("error", "first"), ("note", "second"), ("note", "third"), clear=("NS301", "NS204", "NS203"))
    assert gallery.verdict(found) == {
        "worst": "NS102 first (heuristic)",
        "guarantee": "NS203 is clear",
        "findings": {"error": 1, "warning": 0, "note": 2},
    }
    assert gallery.verdict(found_by_check()) == {
        "worst": None,
        "guarantee": None,
        "findings": {"error": 0, "warning": 0, "note": 0},
    }


def test_the_list_of_the_gallery_escapes_what_models_are_called():
    gallery = tool("gallery")
    row = {
        "name": "a",
        "what": "<script>",
        "norms": 3,
        "cpu_seconds": 1.0,
        "problem": None,
        "package": None,
        "path": "",
    }
    page = gallery.index([row | gallery.verdict(found_by_check(("note", "x | <b>")))])
    assert "<script>" not in page
    assert "<b>" not in page
    assert '<a href="a.html">a</a>' in page
    assert "x \\| &lt;b&gt;" in gallery.page([row | gallery.verdict(found_by_check(("note", "x | <b>")))])


def test_the_page_of_the_gallery_is_what_the_tool_writes_from_its_run():
    rows = json.loads((ROOT / "docs" / "results" / "gallery.json").read_text(encoding="utf-8"))
    gallery = tool("gallery")
    assert [row["name"] for row in rows] == [model.name for model in gallery.MODELS]
    assert (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8") == gallery.page(rows)
