"""Certificates in a file, to be checked again without the solver.

An .npz file of plain arrays: the keys (their bias, and the ellipsoid of reachable queries: its semi-axes as columns and
its center) with their SHA-256, the mask, and the certificates as `Certificates` holds them.
"""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.checks import Floats, as_floats, first_line
from normscope.files import npz_arrays, require_writable, write_whole
from normscope.separation.certificates import Certificates, Reach
from normscope.separation.checking import first_fault
from normscope.separation.reach_checking import first_reach_fault
from normscope.separation.selectable import Selectable

FORMAT = "normscope certificates 1"
FLOATS = ("queries", "margins", "weights", "residuals")
REACH = ("axes", "center", "coordinates")
INTS = ("query_keys", "weight_keys", "starts", "indices")


def save_certificates(result: Selectable, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write the keys and all their certificates to a file ending in .npz; an existing one is replaced only by force."""
    target = Path(path)
    require_writable(target, force=force, endings=(".npz",))
    write_whole(certificate_bytes(result), target)


def certificate_bytes(result: Selectable) -> bytes:
    """What a file of certificates holds."""
    arrays: dict[str, NDArray[Any]] = {
        "format": np.array(FORMAT),
        "sha256": np.array(keys_digest(result.keys, result.bias, result.reach)),
        "keys": result.keys,
        "mask": result.mask,
        "degenerate": result.degenerate,
        **{name: getattr(result.certificates, name) for name in FLOATS + INTS},
    }
    if result.bias is not None:
        arrays["bias"] = result.bias
    if result.reach is not None and result.certificates.coordinates is not None:
        arrays["axes"], arrays["center"] = result.reach
        arrays["coordinates"] = result.certificates.coordinates
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def verify_certificates(path: str | os.PathLike[str], keys: Any = None) -> tuple[bool, str]:
    """Whether a file of certificates proves what it says, and of these keys if they are given; and why, or why not."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return False, f"{path} can't be read: {first_line(error)}"
    return verify_bytes(content, str(path), keys)


def verify_bytes(content: bytes, name: str, keys: Any = None) -> tuple[bool, str]:
    """The same for what a file of that name holds."""
    try:
        arrays = npz_arrays(content, name)
    except ValueError as error:
        return False, str(error)
    fault = _form_fault(arrays)
    if fault is not None:
        return False, fault
    stored, bias = arrays["keys"], arrays.get("bias")
    reach = (arrays["axes"], arrays["center"]) if "axes" in arrays else None
    if str(arrays["sha256"]) != keys_digest(stored, bias, reach):
        return False, "the keys in the file are not those that were saved: their SHA-256 differs"
    if keys is not None and keys_digest(as_floats(keys, "keys"), bias, reach) != keys_digest(stored, bias, reach):
        return False, "the certificates are for other keys: their SHA-256 differs"
    certificates = Certificates(
        arrays["mask"].shape, **{name: arrays[name] for name in FLOATS + INTS}, coordinates=arrays.get("coordinates")
    )
    verdicts = (arrays["mask"], arrays["degenerate"], certificates)
    fault = first_fault(stored, bias, *verdicts) if reach is None else first_reach_fault(stored, bias, reach, *verdicts)
    if fault is not None:
        return False, fault
    wins, loses = len(certificates.query_keys), len(certificates.weight_keys)
    rest = arrays["mask"].size - wins - loses
    by = "" if reach is None else " by reachable queries"
    return True, f"{wins} keys shown selectable{by}, {loses} unselectable" + (f", {rest} left open" if rest else "")


def keys_digest(keys: Floats, bias: Floats | None, reach: Reach | None = None) -> str:
    """SHA-256 of the keys' shape and values, as little-endian float64, of their bias and of reachable queries."""
    parts = (keys, bias) if reach is None else (keys, bias, *reach)
    digest = hashlib.sha256(repr((keys.shape, *(part is not None for part in parts[1:]))).encode())
    for part in parts:
        if part is not None:
            digest.update(np.ascontiguousarray(part, "<f8").tobytes())
    return digest.hexdigest()


def _form_fault(arrays: dict[str, NDArray[Any]]) -> str | None:
    """What keeps the arrays from being read as certificates."""
    if str(arrays.get("format")) != FORMAT:
        return f"the file must say {FORMAT!r}, got {str(arrays.get('format'))!r}"
    expected = {"keys": "f", "mask": "b", "degenerate": "b", "sha256": "U"}
    expected |= dict.fromkeys(FLOATS, "f") | dict.fromkeys(INTS, "i") | ({"bias": "f"} if "bias" in arrays else {})
    expected |= dict.fromkeys(REACH, "f") if "axes" in arrays else {}
    for name, kind in expected.items():
        if name not in arrays or arrays[name].dtype.kind != kind:
            return f"the file must hold an array {name!r} of kind {kind!r}"
    keys = arrays["keys"]
    if keys.ndim < 2 or 0 in keys.shape or not np.isfinite(keys).all():
        return f"keys must be finite and of shape (..., n, d), got shape {keys.shape}"
    if "bias" in arrays and (arrays["bias"].shape != keys.shape[:-1] or not np.isfinite(arrays["bias"]).all()):
        return f"bias must be finite, one entry per key, got shape {arrays['bias'].shape}"
    return _reach_fault(arrays, keys.shape[-1]) if "axes" in arrays else None


def _reach_fault(arrays: dict[str, NDArray[Any]], channels: int) -> str | None:
    """What keeps axes, center and coordinates from being read as reachable queries."""
    axes, center = arrays["axes"], arrays["center"]
    if axes.ndim != 2 or len(axes) != channels or center.shape != (channels,):
        return f"axes and center must have {channels} rows, got shapes {axes.shape} and {center.shape}"
    if not all(np.isfinite(arrays[name]).all() for name in REACH):
        return "axes, center and coordinates must be finite"
    return None
