"""normscope: `Norm.around` and `Norm.ellipsoid` for a layer behind a norm, `ranges` with tight bounds for blocks.

The ball is exact for a layer. A box is treated as the ball that holds it. `ranges` has one bound for all inputs, which
holds in every ball and box too; it is computed once for each model.
"""

import math

import numpy as np
from range_models import main, measured, model_of

import normscope as ns

ABOUT_BLOCKS = {}  # model of a case: its bounds


def bounds(case):
    if case["kind"] == "layer":
        return {"normscope": measured(lambda: layer_bounds(case))}
    if case["model"] not in ABOUT_BLOCKS:
        ABOUT_BLOCKS[case["model"]] = measured(lambda: block_bounds(case))
    return {"normscope": ABOUT_BLOCKS[case["model"]]}


def layer_bounds(case):
    norm_layer, linear = model_of(case)
    norm = ns.Norm(gain=norm_layer.weight.numpy(), bias=norm_layer.bias.numpy(), eps=norm_layer.eps)
    readers, added = linear.weight.numpy(), linear.bias.numpy()
    if case["relative"] is None:
        reached = norm.ellipsoid
    else:
        reached = norm.around(case["x"][0].numpy(), case["radius"] * (math.sqrt(norm.size) if case["box"] else 1))
    return added - reached.support(-readers), added + reached.support(readers)


def block_bounds(case):
    last = ns.ranges(model_of(case), inputs=case["x"] + 1.0, tight="all").layers[-1]
    tokens = case["x"].numel() // case["x"].shape[-1]
    return np.tile(last.lows, tokens), np.tile(last.highs, tokens)


if __name__ == "__main__":
    ns.Norm(gain=np.ones(3)).around(np.arange(3.0), 0.1).support(np.eye(3))  # compiled
    main(bounds, ["normscope"])
