"""Every error that normscope raises on purpose; all else that leaves it is a defect, or the system's own OSError."""

from typing import Any


class NormscopeError(Exception):
    """The root of all of them. The command line prints such an error as one line and ends with exit code 2."""


class InputError(NormscopeError, ValueError):
    """An argument, or the content of a file, is not what it must be; the message says what was expected and what came.

    >>> issubclass(InputError, ValueError)
    True
    """


class CheckpointError(InputError):
    """A checkpoint, its configuration or its tokenizer can't be read or used."""


class TraceError(InputError):
    """A model can't be traced, so that nothing is known about who writes and who reads."""


class NotCertifiedError(NormscopeError):
    """Something was computed, but its certificate does not hold; `result` is what was found."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result
