"""auto_LiRPA: IBP, CROWN and α-CROWN with default options, and two of them with help.

With help means: a linear layer that is the identity comes first, since IBP takes a ball for a point unless a linear
layer reads it; CROWN's bounds of inner values are cut to IBP's, so that a variance can't be negative; all neurons of
the layers between are bounded; and α-CROWN takes up to 100 iterations in place of 20.

Wrapping the model is not timed.
"""

import contextlib
import math
import sys

import torch
from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm
from auto_LiRPA.operators.gelu import GELU
from range_models import main, measured, model_of
from torch import nn

HELP = {
    "compare_crown_with_ibp": True,
    "sparse_intermediate_bounds": False,
    "optimize_bound_args": {"iteration": 100},
}
METHODS = {  # name: method, options, whether the identity comes first
    "IBP": ("IBP", {}, False),
    "CROWN": ("CROWN", {}, False),
    "α-CROWN": ("alpha-CROWN", {}, False),
    "IBP, helped": ("IBP", {}, True),
    "α-CROWN, helped": ("alpha-CROWN", HELP, True),
}


def bounds(case):
    with contextlib.redirect_stdout(sys.stderr):  # α-CROWN says where it stops early
        return {name: one(case, *settings) for name, settings in METHODS.items()}


def one(case, method, options, identity_first):
    model, x = model_of(case, gelu=GELU), case["x"]
    if identity_first:
        same = nn.Linear(x.shape[-1], x.shape[-1], bias=False).requires_grad_(False)
        same.weight.data = torch.eye(x.shape[-1])
        model = nn.Sequential(same, model)
    inputs = BoundedTensor(x, PerturbationLpNorm(norm=math.inf if case["box"] else 2, eps=case["radius"]))
    wrapped = BoundedModule(model, torch.empty_like(x), bound_opts=dict(options))
    return measured(lambda: [each.detach() for each in wrapped.compute_bounds(x=(inputs,), method=method)])


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    first = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    state = {"x": torch.tensor([[0.0, 1.0, 3.0]]), "state": first.state_dict(), "kind": "relu", "sizes": (3, 2, 2)}
    bounds(state | {"box": True, "radius": 0.1})  # compiled
    main(bounds, ["auto_LiRPA"])
