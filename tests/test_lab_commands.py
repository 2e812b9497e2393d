"""The second package: normscope does not know it, finds its commands by entry point, and works without it."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
FILES = sorted((SOURCE / "normscope").rglob("*.py"))
LAYERS = """
from normscope.results.layer_ranges import LayerRanges, Limit, TensorRange
row = TensorRange("head", "output", 2, -1.0, 1.0, 0, 1.0, None, "intervals", "excluded")
result = LayerRanges("a model", None, Limit("float16", 65504.0, 1, 1, 0, 0, 0, 0), (row,), (), ())
"""


def run(code, **environment):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_normscope_never_imports_the_lab():
    assert len(FILES) > 100
    assert [path for path in FILES if any(name.startswith("normscope_lab") for name in imported_by(path))] == []


def test_showing_a_result_loads_nothing_of_the_lab():
    shown = "print(result); result._repr_html_(); result.to_dict(); result.json_schema(); result.to_bytes()"
    loaded = "import sys; print([name for name in sys.modules if name.startswith('normscope_lab')], file=sys.stderr)"
    done = run(f"{LAYERS}{shown}\n{loaded}")
    assert "head" in done.stdout
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("command", [[], ["reproduce"], ["bench"], ["bench", "keys"]], ids=" ".join)
def test_help_has_the_commands_of_the_lab_and_loads_nothing_heavy(command):
    code = (
        f"import sys; sys.argv = ['normscope', *{command!r}, '--help']\n"
        "from normscope.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = ('torch', 'numba', 'scipy', 'matplotlib', 'normscope_lab.engine', 'normscope_lab.bench')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = run(code)
    assert done.stderr == "[]\n"
    assert "Usage: normscope" in done.stdout
    if not command:
        assert "reproduce" in done.stdout
        assert "bench" in done.stdout


def test_commands_that_can_not_be_loaded_are_named_in_one_line_and_the_rest_works(tmp_path):
    package = tmp_path / "broken-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text("[normscope.commands]\nbroken = broken_plugin:register\n", "utf-8")
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('first line\\nsecond line')", encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = run(
        "import sys; sys.argv = ['normscope', '--version']\nfrom normscope.cli import main; main()", PYTHONPATH=path
    )
    assert done.stdout.strip()
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "normscope: commands of broken (broken_plugin:register) can't be loaded: RuntimeError: first"
    )
