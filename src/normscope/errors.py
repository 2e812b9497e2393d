"""Every error that normscope raises on purpose; any other exception is a bug, or the system's own OSError."""

from typing import Any


class NormscopeError(Exception):
    """Base class of all normscope errors. The command line prints one as one line and ends with exit code 2."""


class InputError(NormscopeError, ValueError):
    """An argument or the content of a file is invalid; the message says what was expected and what it got.

    >>> issubclass(InputError, ValueError)
    True
    """


class CheckpointError(InputError):
    """A checkpoint, its configuration or its tokenizer can't be read or used."""


class TraceError(InputError):
    """A model can't be traced, so the connections between its modules are unknown."""


class PieceError(NormscopeError):
    """Some of many independent pieces failed; the message names the first, and the others are not affected."""


class PieceWarning(UserWarning):
    """Some of many independent pieces failed; the message names the first, and the result stands without them."""


class NotCertifiedError(NormscopeError):
    """A result was computed, but its certificate does not hold; `result` is that result."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
