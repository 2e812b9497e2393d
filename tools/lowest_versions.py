"""The lowest version of every dependency that pyproject.toml allows, as constraints for pip.

    python tools/lowest_versions.py > lowest.txt        # make test-oldest runs the tests with them

torch is left out: constraints.txt pins the one build that is tested.
"""

import re
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for requirement in sorted({*project["dependencies"], *extras["test"], *extras["gguf"], *extras["lab"]}):
        found = re.fullmatch(r"([\w-]+)>=([\w.]+),<[\w.]+", requirement)
        if found is None:
            raise SystemExit(f"{requirement!r} must be written as name>=lowest,<next")
        if found[1] != "torch":
            print(f"{found[1]}=={found[2]}")


if __name__ == "__main__":
    main()
