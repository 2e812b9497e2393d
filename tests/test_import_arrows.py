"""The table of rooms in docs/architecture.md is what the imports of both packages do."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import normscope

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
EVERYWHERE = {"errors", "checks", "progress", "files", "compiled"}
LAZY = {("norm", "geometry"), ("results", "report")}  # imported when a method is called, never when a file is loaded
NO_ROOMS = {"__init__", "__main__"}


def documented():
    """Room → what it may import, from the table."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", text, flags=re.MULTILINE)
    return {room: set(re.findall(r"\w+", allowed)) for room, allowed in rows}


def files():
    for path in sorted(SOURCE.rglob("*.py")):
        package, *parts = path.relative_to(SOURCE).with_suffix("").parts
        room = parts[0] if package == "normscope" else package
        if room not in NO_ROOMS:
            yield path, room


def imported(nodes):
    """Rooms that these statements import."""
    for node in nodes:
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names if node.module == "normscope")]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        for name in names:
            package, *parts = name.split(".")
            if package == "normscope_lab":
                yield package
            elif package == "normscope" and parts and not parts[0].startswith("__"):
                yield parts[0]


def test_imports_follow_the_arrows():
    rooms, wrong = documented(), []
    for path, room in files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        allowed = rooms[room] | EVERYWHERE | {room}
        loaded, called = set(imported(tree.body)), set(imported(ast.walk(tree)))
        lazy = {other for other in called - loaded if (room, other) in LAZY}
        wrong += [f"{path.relative_to(SOURCE)} imports {other}" for other in called - allowed - lazy]
    assert wrong == []


def test_every_room_is_in_the_table_and_no_two_import_each_other():
    rooms = documented()
    assert {room for _, room in files()} == set(rooms)
    order: list[str] = []
    while len(order) < len(rooms):
        ready = [room for room in rooms if room not in order and rooms[room] - EVERYWHERE <= set(order)]
        assert ready, f"a circle among {set(rooms) - set(order)}"
        order += ready


def test_no_file_name_stands_in_two_rooms():
    places: dict[str, list[str]] = {}
    for path, room in files():
        if path.stem not in NO_ROOMS and path.parent.name != "panels":
            places.setdefault(path.stem, []).append(room)
    pairs = {("results", "rules")}  # a file of rules, as one of panels, has the name of the type that it is about
    assert {name: rooms for name, rooms in places.items() if len(rooms) > 1 and tuple(rooms) not in pairs} == {}


def test_every_file_that_the_page_names_is_there():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w/]+\.py", page))
    known = {
        path.relative_to(ROOT).as_posix() for top in ("src", "tests", "tools") for path in (ROOT / top).rglob("*.py")
    }
    assert [name for name in sorted(named) if not any(f"/{path}".endswith(f"/{name}") for path in known)] == []


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_normscope_loads_nothing_but_the_standard_library():
    code = "import sys, normscope; print(*(m for m in ('numpy', 'scipy', 'torch', 'numba') if m in sys.modules))"
    assert run(code).strip() == ""


def test_public_names_are_there_and_others_are_not():
    assert len(normscope.__all__) <= 26
    for name in normscope.__all__:
        assert getattr(normscope, name) is not None
        assert name in dir(normscope)
    with pytest.raises(AttributeError, match="no attribute 'Nrom'"):
        normscope.Nrom  # noqa: B018


def test_every_public_name_has_an_entry_in_the_table_of_questions():
    page = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    missing = [name for name in normscope.__all__ if name != "__version__" and f"`ns.{name}" not in page]
    assert missing == []
