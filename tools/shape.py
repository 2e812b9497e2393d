"""The shape of the package in numbers, for docs/architecture.md.

    python tools/shape.py                     # of this checkout
    python tools/shape.py ../other/checkout   # of another one

Counts public names, files and lines per folder, modules of the package that a few lines of Python load, and
files reachable by imports, also by those inside functions, from the entry file of a study.
"""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
SOURCE = ROOT / "src"
BEGINNINGS = {
    name: f"normscope.{path}"
    for name, path in (
        ("inspect", "studies.inspect"),
        ("keys", "studies.keys"),
        ("fold", "rewrite.fold"),
    )
}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, known: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        found |= {name for name in names if name in known}
    return found


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def main() -> None:
    paths = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in paths.items()}
    rooms = Counter(room_of(name) for name in paths)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def printed(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        return done.stdout.strip()

    print("public names:", printed("import normscope; print(len(normscope.__all__) - 1)"))
    print("files:", len(paths), " lines:", sum(lines.values()))
    for package in ("normscope", "normscope_lab"):
        inside = [name for name in paths if name.split(".")[0] == package]
        print(f"  {package}: {len(inside)} files, {sum(lines[name] for name in inside)} lines")
    for room, count in sorted(rooms.items()):
        print(f"  {room}: {count} files, {sum(lines[name] for name in paths if room_of(name) == room)} lines")
    loaded = "import sys, normscope as ns; ns.Norm; print(sum(n.startswith('normscope') for n in sys.modules))"
    print("modules loaded by ns.Norm:", printed(loaded))
    graph = {name: imports_of(path, set(paths)) for name, path in paths.items()}
    for question, start in BEGINNINGS.items():
        files = sorted(reachable(start, graph) - {"normscope"})
        print(f"reachable from {question}: {len(files)} files")


def room_of(name: str) -> str:
    package, *parts = name.split(".")
    return f"{package}.{parts[0]}" if parts else package


if __name__ == "__main__":
    main()
