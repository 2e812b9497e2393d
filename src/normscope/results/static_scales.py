"""`normscope.static_scales`: certified scales of 8-bit caches and layer inputs, and what they cost.

    scale = amax / 448        float8_e4m3 holds up to 448; amax bounds the tensor for every input of the model

Names, shapes and type in the file are those that compressed-tensors and llm-compressor write and vLLM loads:

    model.layers.0.self_attn.k_scale              keys as they are cached: after rotary embedding and norms of keys
    model.layers.0.self_attn.v_scale              values
    model.layers.0.self_attn.q_proj.input_scale   what a linear layer reads

Each is float32 of shape (1,), one per tensor. Cache scales belong to the attention module: vLLM maps them to its own
`self_attn.attn.k_scale` (`maybe_remap_kv_scale_name` in its weight_utils.py), from ModelOpt's `k_proj.k_scale` too. It
loads one of the two alone for both keys and values (`BaseKVCacheMethod` in its kv_cache.py), so a layer gets both or
none, and takes a scale of 0 or less for a missing one, so none is.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from normscope.errors import InputError
from normscope.results.describe import Column, Table
from normscope.results.layer_ranges import TYPES, Grade
from normscope.results.result import ENDINGS, Result
from normscope.results.rows import NotCovered

E4M3 = TYPES["float8_e4m3"]
INT8 = 127.0
SMALLEST = 2.0**-126  # a scale whose reciprocal is finite in float32
ROOM = 464.0 / E4M3  # values up to 464 scales are rounded to 448: rounding errors of the model lose nothing there
Of = Literal["keys", "values", "input"]


def scale_of(amax: float, largest: float = E4M3) -> float:
    """The least float32 scale with which nothing up to `amax` passes the largest number, in float32 arithmetic.

    1 for a tensor that is 0 everywhere: any scale is right for it, and 0 could not be divided by.

    >>> scale_of(448.0), scale_of(0.0), scale_of(1.0) * 448 >= 1
    (1.0, 1.0, True)
    """
    if amax == 0.0:
        return 1.0
    scale = np.float32(max(amax / largest, SMALLEST))
    while float(scale) * largest < amax or float(scale * np.float32(largest)) < amax:
        scale = np.nextafter(scale, np.float32(np.inf))
    return float(scale)


@dataclass(frozen=True)
class StaticScale:
    """A scale. What is said of a text is None without one, and where the tensor was not seen while the model ran."""

    name: Annotated[str, Column("scale of", "Its name in the file.")]
    of: Annotated[Of, Column("tensor", "Which tensor it scales.", brief=False)]
    amax: Annotated[float, Column("certified amax", "No entry is larger in absolute value, whatever the input.", ".4g")]
    grade: Annotated[
        Grade, Column("bound is", "exact: approached by an input of the norm; intervals: may be too large.")
    ]
    observed: Annotated[float | None, Column("on the text", "The largest absolute value on the text.", ".4g")] = None
    e4m3: Annotated[
        float | None,
        Column("e4m3 error", "Root mean square error of rounding the text's values to e4m3, relative.", ".2%"),
    ] = None
    e4m3_observed: Annotated[
        float | None, Column("e4m3, text's scale", "The same with the scale that the text's maximum gives.", ".2%")
    ] = None
    int8: Annotated[float | None, Column("int8 error", "The same for int8, with the scale amax / 127.", ".2%")] = None
    int8_observed: Annotated[
        float | None, Column("int8, text's scale", "For int8, with the scale that the text's maximum gives.", ".2%")
    ] = None

    @property
    def scale(
        self,
    ) -> Annotated[float, Column("scale", "What the file has: amax / 448, rounded up.", ".6g", brief=False)]:
        return scale_of(self.amax)

    @property
    def looseness(
        self,
    ) -> Annotated[
        float | None, Column("amax / text", "By how much it is larger than on the text.", ".3g", brief=False)
    ]:
        return self.amax / self.observed if self.observed else None


@dataclass(frozen=True, repr=False)
class StaticScales(Result, kind="static_scales", remarked_by="normscope.rules.static_scales:remarks"):
    """Certified static scales of a model, in the order in which the tensors are computed, and what they cost."""

    model: str
    path: str | None  # of the checkpoint
    scales: Annotated[
        tuple[StaticScale, ...],
        Table("Static scales of {0.model}", empty="No key, value or layer input is bounded.", most=24),
    ]
    left_out: Annotated[tuple[NotCovered, ...], Table("Without a scale", most=12)] = ()
    text: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether no value of the text is cut off by its scale; None where nothing was run."""
        seen = [(row.observed, row.amax) for row in self.scales if row.observed is not None]
        return all(observed <= amax * ROOM for observed, amax in seen) if seen else None

    def scales_file(self) -> bytes:
        """The scales as a safetensors file, float32 of shape (1,): the same bytes for the same scales."""
        size = 4
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        for place, row in enumerate(self.scales):
            header[row.name] = {"dtype": "F32", "shape": [1], "data_offsets": [place * size, (place + 1) * size]}
        if len(header) != len(self.scales) + 1:
            raise InputError("names of scales must be unique and not __metadata__")
        start = json.dumps(header, separators=(",", ":")).encode()
        start += b" " * (-len(start) % 8)
        values = np.array([row.scale for row in self.scales], dtype="<f4")
        return len(start).to_bytes(8, "little") + start + values.tobytes()

    def save_scales(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the scales to a .safetensors file, for a checkpoint; one that exists is replaced only by force."""
        from normscope.files import require_writable, write_atomically

        target = Path(path)
        require_writable(target, force=force, endings=ENDINGS)
        write_atomically(self.scales_file(), target)

    def __repr__(self) -> str:
        counts = [f"{sum(row.of == of for row in self.scales)} of {of}" for of in ("keys", "values")]
        counts.append(f"{sum(row.of == 'input' for row in self.scales)} of layer inputs")
        return f"StaticScales({self.model}: {', '.join(counts)}; {len(self.left_out)} left out)"


def can_be_scaled(amax: float) -> bool:
    """Whether a bound has a scale in float32."""
    return math.isfinite(amax) and amax / INT8 < TYPES["float32"]
