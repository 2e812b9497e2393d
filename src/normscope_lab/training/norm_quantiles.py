"""Where real inputs land in the ellipsoid of a norm: quantiles over tokens, for every norm of a model.

    radius = r/√(r² + 1),    r = |steps before scaling|/√(N·eps)

so that 0.99 of the way to the surface is r = 7.02.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from normscope.checks import Floats
from normscope.data import demo_model, sample_text
from normscope.errors import InputError
from normscope.models.capture import capture
from normscope.models.find import find
from normscope.models.subject import Subject
from normscope.norm import Norm
from normscope_lab.engine.tidy_rows import Row

DEMO = "demo"
NEAR = 0.99  # of the way from the centre to the surface
QUANTILES = {"least": 0.0, "q01": 0.01, "q25": 0.25, "median": 0.5, "q75": 0.75, "q99": 0.99, "largest": 1.0}


def model_path(name: str) -> Path:
    """The demo model, a path, or the model in an installed package: its folder `model`, or its .gguf file."""
    if name == DEMO:
        return demo_model()
    if Path(name).exists():
        return Path(name)
    spec = find_spec(name) if name.isidentifier() else None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = [Path(folder) / "model", *sorted(Path(folder).glob("*.gguf"))]
        if any(each.exists() for each in found):
            return next(each for each in found if each.exists())
    raise InputError(f"models must be {DEMO}, paths or installed packages that hold a model, got {name}")


def norm_rows(path: Path) -> list[Row]:
    """One row for each norm of a model that ran on the sample text."""
    subject = Subject(path, text=sample_text(), dtype="float64")
    model = subject.module
    inventory = find(model)
    with capture(model, norms=inventory) as captured, torch.no_grad():
        for batch in subject.batches():
            model(**batch)
    rows: list[Row] = []
    for name, found in inventory.items():
        seen = captured.norms.get(found.path or "")
        if seen is None or seen.input is None or seen.output is None or found.norm is None or found.function:
            continue
        inputs, outputs = (values.double().numpy().reshape(-1, found.norm.size) for values in (seen.input, seen.output))
        rows.append({"norm": name, "place": len(rows), **norm_row(found.norm, inputs, outputs)})
    return rows


def norm_row(norm: Norm, inputs: Floats, outputs: Floats) -> Row:
    """Quantiles of the radius and of r, the axes, and how far outputs are off the hyperplane."""
    ellipsoid = norm.ellipsoid
    given = norm.project(inputs) if norm.projects else inputs
    root = np.sqrt(norm.eps) if norm.eps else np.finfo(float).tiny
    ratio = np.sqrt((given**2).mean(axis=-1)) / root
    dead, away = ellipsoid.dead_direction, outputs - ellipsoid.center
    across = np.zeros(len(away)) if dead is None else away @ dead
    off = np.abs(across) / np.linalg.norm(away, axis=1)
    inside = outputs if dead is None else outputs - across[:, None] * dead  # off its flat, a radius is infinite
    radius, exact = ellipsoid.radius(inside), ellipsoid.radius(norm(inputs))
    lengths = ellipsoid.lengths[ellipsoid.lengths > 0]
    row: Row = {
        "tokens": len(outputs),
        "near": float((radius >= NEAR).mean()),
        "off_plane": float(off.max()),
        "rounding": float(
            np.abs(radius - exact).max()
        ),  # many models compute their norms in float32 whatever they run in
    }
    for title, values in (("radius", radius), ("ratio", ratio)):
        row |= {f"{title}_{name}": float(np.quantile(values, level)) for name, level in QUANTILES.items()}
    along = None if dead is None else float(np.abs(dead.sum()) / np.sqrt(len(dead)))
    return row | {
        "dimension": ellipsoid.dimension,
        "longest_axis": float(lengths.max()),
        "shortest_axis": float(lengths.min()),
        "effective_axes": float(lengths.sum() ** 2 / (lengths**2).sum()),
        "dead_along_ones": along,  # cosine of the angle between the dead direction and (1, …, 1)
    }
