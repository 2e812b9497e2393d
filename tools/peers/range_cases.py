"""Ranges: models, inputs and sets of inputs for all peers; attacks on them; what the attacks say about claimed bounds.

Gains are 1 + 0.1·normal, biases of norms normal, of layers 0.1·normal, weights normal over √(inputs of the layer),
inputs normal, eps 1e-5, all from one seed and in float64. Radii are relative to |Πx|; boxes have the side for which the
ball around them has that radius. "All inputs" is a ball or box of radius 1000 around 0: it has every direction, and the
norm ignores lengths but for eps.
"""

import math

import numpy as np
import torch
from range_models import model_of, untrained

SEED = 0
RADII = (0.01, 0.1, 0.5)
ALL = 1000.0
STARTS, STEPS = 3, 60  # of an attack on one end of one output
ROUNDING = 1e-9  # relative to the output: less does not count as passing a bound
MODELS = {  # name: kind, (channels, outputs, neurons or heads), shape of an input
    "LayerNorm → Linear, 64": ("layer", (64, 64, 0), (1, 64)),
    "LayerNorm → Linear, 768": ("layer", (768, 64, 0), (1, 768)),
    "MLP, ReLU": ("relu", (64, 64, 256), (1, 64)),
    "MLP, GELU": ("gelu", (64, 64, 256), (1, 64)),
    "attention": ("attention", (16, 16, 2), (1, 3, 16)),
}


def cases(models=MODELS, seed=SEED):
    """Every model with balls, boxes and all inputs."""
    made = []
    for name, (kind, sizes, shape) in models.items():
        chance = torch.Generator().manual_seed(seed)
        about = {"model": name, "kind": kind, "sizes": sizes, "state": weights(kind, sizes, chance)}
        x = torch.randn(shape, generator=chance, dtype=torch.float64)
        length = float((x - x.mean(-1, keepdim=True)).norm())
        for box in (False, True):
            for relative in (*RADII, None):
                radius = ALL if relative is None else relative * length / (math.sqrt(x.numel()) if box else 1.0)
                centre = torch.zeros_like(x) if relative is None else x
                made.append(about | {"x": centre, "box": box, "relative": relative, "radius": radius})
    return made


def weights(kind, sizes, chance):
    """Random parameters of a model, by name."""
    state = {}
    for name, value in untrained(kind, sizes).state_dict().items():
        normal = torch.randn(value.shape, generator=chance, dtype=torch.float64)
        of_norm = name.startswith(("0.", "norm."))
        if name.endswith("bias"):
            state[name] = normal if of_norm else 0.1 * normal
        else:
            state[name] = 1 + 0.1 * normal if of_norm else normal / math.sqrt(value.shape[1])
    return state


def attacked(case, seed=SEED):
    """The lowest and the highest value of every output that ascent finds, from random inputs in the set."""
    model, x, radius = model_of(case), case["x"], case["radius"]
    chance = torch.Generator().manual_seed(seed)
    outputs = model(x).numel()
    which = torch.arange(outputs).repeat(STARTS)[:, None]
    ends = []

    def random():
        return torch.randn((len(which), *x.shape[1:]), generator=chance, dtype=torch.float64)

    for sign in (-1.0, 1.0):

        def value(moves, sign=sign):
            return sign * model(x + moves).flatten(1).gather(1, which)[:, 0]

        moves = inside(radius * random(), radius, case["box"])
        best = value(moves)
        for step in range(STEPS):
            leaf = moves.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(value(leaf).sum(), leaf)
            uphill, sideways = (radius * direction(each, case["box"]) for each in (slope, random()))
            length = 0.85**step
            for tried in (uphill, moves + length * uphill, moves + length * sideways):
                kept = inside(tried, radius, case["box"])
                found = value(kept)
                better = found > best
                moves[better], best[better] = kept[better], found[better]
        ends.append(sign * best.reshape(STARTS, outputs).amax(0))
    return ends[0].numpy(), ends[1].numpy()


def direction(rows, box):
    """What moves farthest along each row within a set of radius 1."""
    if box:
        return rows.sign()
    return rows / rows.flatten(1).norm(dim=1).clamp_min(1e-300).reshape(-1, *[1] * (rows.dim() - 1))


def inside(moves, radius, box):
    """The nearest moves within the radius."""
    if box:
        return moves.clamp(-radius, radius)
    lengths = moves.flatten(1).norm(dim=1).reshape(-1, *[1] * (moves.dim() - 1))
    return moves / (lengths / radius).clamp_min(1.0)


def judged(row, attack):
    """Claimed bounds beside what was attained: mean width, how many times the attained one, outputs passed."""
    if "stopped" in row:
        return row
    (lows, highs), (lowest, highest) = (np.array([row[end] for end in ("lows", "highs")]), attack)
    slack = ROUNDING * np.maximum(np.abs(lowest), np.abs(highest))
    known = ~np.isnan(lows) & ~np.isnan(highs)
    passed = (lowest < lows - slack) | (highest > highs + slack)
    width = float((highs - lows)[known].mean()) if known.any() else None
    return {
        "width": width,
        "ratio": width and width / float((highest - lowest)[known].mean()),
        "without": int((~known).sum()),
        "passed": int(passed[known].sum()),
        "cpu_seconds": row["cpu_seconds"],
    }


def rows_of(made, found):
    """A row for each case, with all methods of all peers."""
    rows = []
    for number, case in enumerate(made):
        attack = attacked(case)
        row = {key: case[key] for key in ("model", "box", "relative", "radius")}
        row |= {"outputs": len(attack[0]), "attained": float((attack[1] - attack[0]).mean())}
        methods = {name: judged(each, attack) for peer in found for name, each in peer["rows"][number].items()}
        rows.append(row | {"methods": methods})
    return rows
