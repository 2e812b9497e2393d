"""The table of rooms in docs/architecture.md is what the imports do."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "normscope"
LAZY_WAYS_BACK = {("norm", "geometry"), ("studies", "report"), ("rewrite", "report")}


def rooms_of_the_document():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", text, flags=re.MULTILINE)
    return {room: set(re.findall(r"\w+", allowed)) for room, allowed in rows}


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(tree, at_load_only):
    """Rooms that a file imports: anywhere, or only when it is loaded (not inside functions or for type checkers)."""
    nodes = ast.walk(tree) if not at_load_only else iter(tree.body)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("normscope."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("normscope."))


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) not in ("__init__", "__main__")]


def test_every_room_is_in_the_document():
    assert {room_of(path) for path in FILES} == set(rooms_of_the_document())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path):
    rooms, room = rooms_of_the_document(), room_of(path)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    allowed = rooms[room] | {room}
    assert set(imported_rooms(tree, at_load_only=True)) <= allowed
    assert {(room, other) for other in set(imported_rooms(tree, at_load_only=False)) - allowed} <= LAZY_WAYS_BACK


def test_no_two_rooms_import_each_other():
    rooms = rooms_of_the_document()
    order: list[str] = []
    while len(order) < len(rooms):
        ready = [room for room in rooms if room not in order and rooms[room] <= set(order)]
        assert ready, f"a circle among {set(rooms) - set(order)}"
        order += ready


def cpu_seconds(code):
    timed = f"import time; start = time.process_time(); {code}; print(time.process_time() - start)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)


def test_importing_normscope_is_quick_and_loads_nothing_heavy():
    code = "import sys, normscope; print(*(m for m in ('numpy', 'scipy', 'torch', 'numba') if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
    assert cpu_seconds("import normscope") < cpu_seconds("import torch") / 3


def test_public_names_are_there_and_others_are_not():
    import normscope

    for name in normscope.__all__:
        assert getattr(normscope, name) is not None
        assert name in dir(normscope)
    with pytest.raises(AttributeError, match="no attribute 'Nrom'"):
        normscope.Nrom  # noqa: B018
