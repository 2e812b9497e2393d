"""The networks that the playground creases lines with: src/normscope/report/playground_parts/networks.json.

python tools/playground_networks.py            # writes the file
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from normscope.capacity import memorize

FILE = Path(__file__).parent.parent / "src" / "normscope" / "report" / "playground_parts" / "networks.json"
SETS = {  # labels, and the data type and seed whose network keeps the classes furthest apart on the circle
    "five": ("01010", "float64", 5),
    "nine": ("010101010", "float32", 11),
    "three": ("012012012", "float32", 6),
}


def network(labels: str, dtype: str, seed: int) -> Any:
    return memorize(np.arange(float(len(labels)))[:, None], np.array([*map(int, labels)]), dtype=dtype, seed=seed)


def networks() -> dict[str, dict[str, Any]]:
    found = {}
    for name, (labels, dtype, seed) in SETS.items():
        result = network(labels, dtype, seed)
        assert result.holds
        assert result.method == "search"
        found[name] = {
            "labels": result.label_numbers.tolist(),  # of the points 0, 1, 2, …
            "classes": len(result.classes),
            "eps": result.eps,
            "least": result.least_depth,
            "single": dtype == "float32",  # weights are rounded to this type when they are read
            "layers": [[[float(str(value)) for value in row] for row in layer] for layer in result.layers],
        }
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(networks(), separators=(",", ":"), ensure_ascii=False) + "\n", encoding="utf-8")
