"""Checks of the numbers passed to public functions, in one place so that messages read alike."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import InputError

Floats = NDArray[np.float64]
LONGEST = 400  # characters in a message
MOST_BITS = 256  # of the largest whole number written out in full


def as_floats(value: Any, name: str) -> Floats:
    """value as a new or existing float64 array: numbers, arrays of any float dtype, or torch tensors, all finite.

    >>> as_floats([1, 2], "gain")
    array([1., 2.])
    """
    if hasattr(value, "detach"):  # a torch tensor, bfloat16 and device tensors included
        value = value.detach().cpu().double().numpy()  # some devices have no float64
    try:
        array = np.asarray(value)
        if array.dtype.kind in "cmMSU":
            raise TypeError(f"values of dtype {array.dtype}")
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be an array of real numbers, got {type(value).__name__}: {first_line(error)}"
        ) from None
    if np.isfinite(_sum(array)):  # a sum is not finite if a term is not, and one pass is all that it takes
        return array
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise InputError(f"{name} must be finite, got {bad} NaN or infinite of {array.size} values")
    return array


def _sum(array: Floats) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(array.sum())


def as_vectors(value: Any, name: str, size: int) -> Floats:
    """value as float64 of shape (..., size): one vector or any stack of them."""
    array = as_floats(value, name)
    if array.ndim == 0 or array.shape[-1] != size:
        raise InputError(f"{name} must have {size} channels in its last axis, got shape {array.shape}")
    return array


def as_count(value: Any, name: str, least: int) -> int:
    """value as an int ≥ least; numpy integers count, bools and floats do not."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name} must be a whole number, {least} or more, got {quoted(value)}")
    return int(value)


def frozen(array: Floats) -> Floats:
    """A read-only copy."""
    copy = np.array(array, dtype=np.float64, order="C")
    copy.flags.writeable = False
    return copy


def first_line(error: BaseException) -> str:
    """The message of another library's error, shortened to one line; its type if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0]) if lines else type(error).__name__


def shortened(text: str, most: int = LONGEST) -> str:
    """A text in one line of at most `most` characters: if it is longer, its middle is cut out.

    >>> shortened("one  line\\nand another"), shortened("0123456789" * 9, most=21)
    ('one line and another', '01234567890123…456789')
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = (most - 1) // 3  # the end says what to do about it
    return f"{line[: most - 1 - end]}…{line[len(line) - end :]}"


def quoted(value: Any, most: int = 80) -> str:
    """A value as a message quotes it: as Python writes it, shortened.

    >>> quoted("a" * 1000, most=9), quoted(2**5000)
    ("'aaaaa…a'", 'a whole number of 5001 bits')
    """
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"a whole number of {value.bit_length()} bits"
    return shortened(repr(value), most)


class _Memory:
    gigabytes = 1.0


def allow_memory(gigabytes: float) -> float:
    """Set how much memory a file may need beyond its own size (default 1 GB); return the old limit."""
    if not gigabytes > 0:
        raise InputError(f"--max-gigabytes must be above 0, got {gigabytes!r}")
    before, _Memory.gigabytes = _Memory.gigabytes, gigabytes
    return before


def require_memory(needed: int, stored: int, what: str) -> None:
    """Refuse to unpack what needs more memory than allowed, before allocating it; data as large as its file is fine.

    >>> require_memory(5 * 10**12, 3 * 10**6, "keys.npz")
    Traceback (most recent call last):
    normscope.errors.InputError: keys.npz asks for 5000 GB of memory with 0.003 GB of data, and 1 GB is the limit: \
if you trust it, allow more with normscope --max-gigabytes
    """
    if needed > max(_Memory.gigabytes * 1e9, stored):
        raise InputError(
            f"{what} asks for {_gigabytes(needed)} of memory with {_gigabytes(stored)} of data, and "
            f"{_Memory.gigabytes:.4g} GB is the limit: if you trust it, allow more with normscope --max-gigabytes"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.4g} GB" if count < 10**24 else f"more than {10**15} GB"
