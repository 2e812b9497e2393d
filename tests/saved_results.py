"""Saved results with some of their arrays replaced, and what becomes of them."""

import json

from safetensors.numpy import load, save

from normscope.errors import InputError
from normscope.results.result import load_bytes, named


def arrays_of(content):
    """The arrays of a saved result, without the name of its type before theirs."""
    return {name.partition(".")[2]: array for name, array in load(content).items()}


def with_arrays(content, payload=None, **arrays):
    """A saved result with other arrays (None: without it), and another JSON if one is given."""
    size = int.from_bytes(content[:8], "little")
    notes = json.loads(content[8 : 8 + size])["__metadata__"]
    told = json.loads(notes["result"]) if payload is None else payload
    whole = arrays_of(content) | arrays
    kept = {f"{told['type']}.{name}": array for name, array in whole.items() if array is not None}
    return save(kept, metadata=notes | {"result": json.dumps(told)})


def verdict_on(content):
    """Whether what a file holds is accepted; and the reason, or why it is refused."""
    try:
        result = load_bytes(content, "it")
    except InputError as error:
        return False, str(error)
    return named(result.checked_by)(result)
