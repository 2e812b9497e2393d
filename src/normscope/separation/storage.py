"""Certificates in a file, to be checked again without solving anything.

An .npz file of plain arrays: the keys (their bias, and the ellipsoid of reachable queries: its semi-axes as columns and
its center) with their SHA-256, and the certificates: a query for each key that can win, or its coordinates in the
ellipsoid, and weights for each that cannot. Verdicts, margins and residuals follow from these and are not stored.
"""

import hashlib
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscope.certificates.check_reachable_keys import check_certificates
from normscope.certificates.key_certificates import Certificates, Reach
from normscope.checks import Floats, as_floats, first_line, quoted
from normscope.errors import InputError
from normscope.files import npz_arrays, require_writable, write_whole
from normscope.separation.selectable import Selectable

FORMAT = "normscope certificates 2"
KINDS = {"format": "U", "sha256": "U", "keys": "f", "weights": "f"}
KINDS |= dict.fromkeys(("query_keys", "weight_keys", "starts", "indices"), "i")
ANY_QUERY = {"queries": "f"}
REACH = {"axes": "f", "center": "f", "coordinates": "f"}


def save_certificates(result: Selectable, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write the keys and all their certificates to a file ending in .npz; an existing one is replaced only by force."""
    target = Path(path)
    require_writable(target, force=force, endings=(".npz",))
    write_whole(certificate_bytes(result), target)


def certificate_bytes(result: Selectable) -> bytes:
    """What a file of certificates holds."""
    certificates = result.certificates
    arrays: dict[str, NDArray[Any]] = {
        "format": np.array(FORMAT),
        "sha256": np.array(keys_digest(result.keys, result.bias, result.reach)),
        "keys": result.keys,
        **{name: getattr(certificates, name) for name in KINDS if hasattr(certificates, name)},
    }
    if result.bias is not None:
        arrays["bias"] = result.bias
    if result.reach is None or certificates.coordinates is None:
        arrays["queries"] = certificates.queries
    else:
        arrays["axes"], arrays["center"] = result.reach
        arrays["coordinates"] = certificates.coordinates
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


class Proven(NamedTuple):
    """How many keys of a file are shown to be what."""

    selectable: int
    unselectable: int
    near_ties: int
    open: int

    def in_words(self, by: str = "") -> str:
        """
        >>> Proven(3, 1, 2, 0).in_words()
        '3 keys shown selectable, 1 unselectable, 2 near ties (means of others up to rounding)'
        """
        words = f"{self.selectable:,} keys shown selectable{by}, {self.unselectable:,} unselectable"
        words += f", {self.near_ties:,} near ties (means of others up to rounding)" if self.near_ties else ""
        return words + (f", {self.open:,} left open" if self.open else "")


class NotProvenError(InputError):
    """A file does not prove what it says; the message is why."""


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
        proven, reachable = proven_in(content, name, keys)
    except NotProvenError as error:
        return False, str(error)
    return True, proven.in_words(" by reachable queries" if reachable else "")


def proven_in(content: bytes, name: str, keys: Any = None) -> tuple[Proven, bool]:
    """What a file proves, if it proves all that it says, and whether that is about reachable queries."""
    try:
        arrays = npz_arrays(content, name)
    except ValueError as error:
        raise NotProvenError(str(error)) from None
    _require_form(arrays)
    stored, bias = arrays["keys"], arrays.get("bias")
    reach = (arrays["axes"], arrays["center"]) if "axes" in arrays else None
    digest = keys_digest(stored, bias, reach)
    if str(arrays["sha256"]) != digest:
        raise NotProvenError("the keys in the file are not those that were saved: their SHA-256 differs")
    if keys is not None and keys_digest(as_floats(keys, "keys"), bias, reach) != digest:
        raise NotProvenError("the certificates are for other keys: their SHA-256 differs")
    query_keys, weight_keys = arrays["query_keys"], arrays["weight_keys"]
    coordinates = arrays.get("coordinates")
    certificates = Certificates(
        shape=stored.shape[:-1],
        query_keys=query_keys,
        queries=np.zeros((query_keys.size, stored.shape[-1])) if reach else arrays["queries"],
        margins=np.zeros(query_keys.shape),
        residuals=np.zeros(weight_keys.shape),
        coordinates=coordinates,
        **{name: arrays[name] for name in ("weight_keys", "starts", "indices", "weights")},
    )
    found = check_certificates(stored, bias, reach, certificates)
    if found.fault is not None:
        raise NotProvenError(found.fault)
    near, wins, loses = int(found.near_ties.sum()), len(query_keys), len(weight_keys)
    return Proven(wins, loses - near, near, stored[..., 0].size - wins - loses), reach is not None


def keys_digest(keys: Floats, bias: Floats | None, reach: Reach | None = None) -> str:
    """SHA-256 of the keys' shape and values, as little-endian float64, of their bias and of reachable queries."""
    parts = (keys, bias) if reach is None else (keys, bias, *reach)
    digest = hashlib.sha256(repr((keys.shape, *(part is not None for part in parts[1:]))).encode())
    for part in parts:
        if part is not None:
            digest.update(np.ascontiguousarray(part, "<f8").tobytes())
    return digest.hexdigest()


def _require_form(arrays: dict[str, NDArray[Any]]) -> None:
    """Refuse arrays that can't be read as certificates, and any that would not be looked at."""
    if str(arrays.get("format")) != FORMAT:
        raise NotProvenError(f"the file must say {FORMAT!r}, got {quoted(str(arrays.get('format')))}")
    kinds = KINDS | (REACH if "axes" in arrays else ANY_QUERY) | ({"bias": "f"} if "bias" in arrays else {})
    for name, kind in kinds.items():
        if name not in arrays or arrays[name].dtype.kind != kind:
            raise NotProvenError(f"the file must hold an array {name!r} of kind {kind!r}")
        if kind == "f" and not (arrays[name].dtype == np.float64 and np.isfinite(arrays[name]).all()):
            raise NotProvenError(f"{name} must be finite numbers of double precision, got {arrays[name].dtype}")
    others = sorted(arrays.keys() - kinds.keys())
    if others:
        raise NotProvenError(f"the file must hold nothing that proves nothing, got an array {quoted(others[0])}")
    keys = arrays["keys"]
    if keys.ndim < 2 or 0 in keys.shape:
        raise NotProvenError(f"keys must be of shape (..., n, d), got shape {keys.shape}")
    if "bias" in arrays and arrays["bias"].shape != keys.shape[:-1]:
        raise NotProvenError(f"bias must have one entry per key, got shape {arrays['bias'].shape}")
    if "axes" in arrays:
        axes, center, channels = arrays["axes"], arrays["center"], keys.shape[-1]
        if axes.ndim != 2 or len(axes) != channels or center.shape != (channels,) or not axes.shape[1]:
            raise NotProvenError(
                f"axes and center must have {channels} rows, got shapes {axes.shape} and {center.shape}"
            )
