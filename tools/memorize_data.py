"""Real samples memorised, for docs/memorize.md: prints JSON.

    python tools/memorize_data.py CIFAR10.npz > docs/results/memorize-data.json

scikit-learn's bundled data with their own labels, and 1,000 images of CIFAR-10 (x_train of the .npz) with random
labels.
"""

import json
import sys

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

from normscope import capacity


def main(cifar: str) -> None:
    with np.load(cifar, allow_pickle=False) as arrays:
        images = arrays["x_train"][:1000].reshape(1000, -1).astype(float)
    tasks = {
        "iris": load_iris(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "CIFAR-10 images, random labels": (images, np.random.default_rng(0).integers(0, 2, 1000)),
        "digits": load_digits(return_X_y=True),
    }
    rows = []
    for name, (samples, labels) in tasks.items():
        net = capacity.memorize(samples, labels)
        rows.append(
            {
                "data": name,
                "samples": len(labels),
                "channels": samples.shape[1],
                "classes": len(net.classes),
                "method": net.method,
                "depth": net.depth,
                "paper_bound": net.paper_depth,
                "certified": net.certified,
                "float_right": net.float_right,
                "seconds": net.seconds,
            }
        )
        print(name, repr(net), file=sys.stderr)
    print(json.dumps({"schema_version": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
