"""The published way to find selectable keys: reflections, then a linear program for each key they leave open [1, 2].

A query prefers key i if q·(kⱼ − kᵢ) + bⱼ − bᵢ < 0 for all j ≠ i. One that prefers j instead is reflected at the plane
where i and j score alike,

    q ← q − 2 (q·v + (bᵢ − bⱼ)/|kᵢ − kⱼ|) v,    v = (kᵢ − kⱼ)/|kᵢ − kⱼ|,

from q = kᵢ on, up to 100 times. Where that finds none, Gurobi's barrier looks for the largest ball of such queries,

    max r   with   q·(kⱼ − kᵢ) + r·|kⱼ − kᵢ| ≤ bᵢ − bⱼ  for all j ≠ i,   |q| ≤ 100,   r ≥ 1e-8,

and key i counts as unselectable if there is none. Ours is measured against this, so it is written to be quick: one
Gurobi environment for all keys, no loops over channels. What the original gets wrong it gets wrong, too: keys that
occur twice, keys of small scale, and queries outside the box.

[1] Grivas et al., Low-Rank Softmax Can Have Unargmaxable Classes in Theory but Rarely in Practice, ACL 2022.
[2] Brody et al., On the Expressivity Role of LayerNorm in Transformers' Attention, ACL Findings 2023.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

STEPS = 100
BOX = 100.0
LEAST_RADIUS = 1e-8
LARGEST = 1900  # keys: the licence that comes with gurobipy ends at 2000 variables or constraints


class PublishedProcedure:
    """The procedure for one set of keys (n, d), with bias (n,) if they have one, in the precision they come in.

    >>> procedure = PublishedProcedure([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]])
    >>> [procedure.selects(key) for key in range(4)]
    [True, True, True, False]
    """

    def __init__(self, keys: Any, bias: Any = None) -> None:
        self.keys: NDArray[np.floating[Any]] = np.asarray(keys)
        self.bias: NDArray[np.floating[Any]] | None = None if bias is None else np.asarray(bias)
        count, channels = self.keys.shape
        rank = np.linalg.matrix_rank(self.keys.astype(np.float64))
        if rank != min(count, channels):
            raise InputError(f"the published procedure needs keys of full rank, {min(count, channels)}, got {rank}")
        self.all_win = count < channels + 1

    def selects(self, key: int) -> bool:
        """Whether the procedure calls a key selectable; ArithmeticError where its own check of the query fails."""
        return self.reflections_find(key) or self.program_finds(key)

    def reflections_find(self, key: int) -> bool:
        """Whether reflections find a query that prefers a key."""
        if self.all_win:
            return True
        keys, own = self.keys, self.keys[key]
        query, best = own, self._preferred(own)
        for _ in range(STEPS):
            if best == key:
                break
            difference = own - keys[best]
            with np.errstate(invalid="ignore"):  # of two equal keys the original divides 0 by 0, too
                length = np.sqrt(difference @ difference)
                normal = difference / length
                height = normal @ query
                if self.bias is not None:
                    height += (self.bias[key] - self.bias[best]) / length
                query = query - 2 * height * normal
            best = self._preferred(query)
        return best == key and not (np.abs(query) > BOX).any()

    def program_finds(self, key: int) -> bool:
        """Whether a linear program finds a query that prefers a key."""
        import gurobipy

        others = np.delete(self.keys, key, axis=0) - self.keys[key]
        room = np.zeros(len(others)) if self.bias is None else self.bias[key] - np.delete(self.bias, key)
        with gurobipy.Model(env=_environment()) as model:
            query = model.addMVar(self.keys.shape[1], lb=-BOX, ub=BOX)
            radius = model.addMVar(1, lb=LEAST_RADIUS)
            model.addConstr(others @ query + np.linalg.norm(others, axis=1, keepdims=True) @ radius <= room)
            model.setObjective(radius.sum(), gurobipy.GRB.MAXIMIZE)
            model.optimize()
            if model.Status != gurobipy.GRB.OPTIMAL:
                return False
            best = self._preferred(np.asarray(query.X))
        if best != key:
            raise ArithmeticError(f"the query that was found for key {key} prefers key {best}")
        return True

    def _preferred(self, query: NDArray[np.floating[Any]]) -> int:
        scores = self.keys @ query
        return int(np.argmax(scores if self.bias is None else scores + self.bias))


@cache
def _environment() -> Any:
    import gurobipy

    environment = gurobipy.Env(empty=True)
    settings = {"OutputFlag": 0, "Method": 2, "Threads": 1, "FeasibilityTol": 0.1 * LEAST_RADIUS}
    for name, value in settings.items():
        environment.setParam(name, value)
    environment.start()
    return environment
