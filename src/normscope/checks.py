"""What every public function asks of the numbers it is given, in one place, so that messages read alike."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LONGEST = 400  # characters of a message
MOST_BITS = 256  # of whole numbers that are written out


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
        raise ValueError(
            f"{name} must be an array of real numbers, got {type(value).__name__}: {first_line(error)}"
        ) from None
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise ValueError(f"{name} must be finite, got {bad} NaN or infinite of {array.size} values")
    return array


def as_vectors(value: Any, name: str, size: int) -> Floats:
    """value as float64 of shape (..., size): one vector or any stack of them."""
    array = as_floats(value, name)
    if array.ndim == 0 or array.shape[-1] != size:
        raise ValueError(f"{name} must have {size} channels in its last axis, got shape {array.shape}")
    return array


def as_count(value: Any, name: str, least: int) -> int:
    """value as an int ≥ least; numpy integers count, bools and floats do not."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} must be a whole number, {least} or more, got {quoted(value)}")
    return int(value)


def frozen(array: Floats) -> Floats:
    """A read-only copy."""
    copy = np.array(array, dtype=np.float64, order="C")
    copy.flags.writeable = False
    return copy


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line that is not too long; its kind if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0]) if lines else type(error).__name__


def shortened(text: str, most: int = LONGEST) -> str:
    """A text in one line of at most so many characters: where it is longer, its middle is left out.

    >>> shortened("one  line\\nand another"), shortened("0123456789" * 9, most=21)
    ('one line and another', '01234567890123…456789')
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    end = (most - 1) // 3  # what to do about it stands at the end
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
    """Change how much memory a file may ask for beyond its own size, 1 GB unless this is called; what it was before."""
    if not gigabytes > 0:
        raise ValueError(f"--max-gigabytes must be above 0, got {gigabytes!r}")
    before, _Memory.gigabytes = _Memory.gigabytes, gigabytes
    return before


def require_memory(needed: int, stored: int, what: str) -> None:
    """Refuse to unpack what takes more memory than is allowed, before it is taken; never what is as large in its file.

    >>> require_memory(5 * 10**12, 3 * 10**6, "keys.npz")
    Traceback (most recent call last):
    ValueError: keys.npz asks for 5000 GB of memory with 0.003 GB of data, and 1 GB is the limit: \
if you trust it, allow more with normscope --max-gigabytes
    """
    if needed > max(_Memory.gigabytes * 1e9, stored):
        raise ValueError(
            f"{what} asks for {_gigabytes(needed)} of memory with {_gigabytes(stored)} of data, and "
            f"{_Memory.gigabytes:.4g} GB is the limit: if you trust it, allow more with normscope --max-gigabytes"
        )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.4g} GB" if count < 10**24 else f"more than {10**15} GB"
