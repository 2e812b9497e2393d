"""A worker: reads bundles from standard input, writes answers to what was its standard output, until there are no more.

A message is the number of its parts and their lengths, 8 bytes each, and the parts. What a piece prints goes to
standard error.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import IO

from normscope.engine.packing import Parts, unpacked, views

PIPE_BYTES = 2**20  # what a pipe may hold, where that can be chosen: Linux
KEPT_MEMORY = {  # glibc gives a freed array back to the system at once: to be given its pages anew took 2 ms a head
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}


def widen(pipe: IO[bytes]) -> None:
    """Let a pipe hold a large part at once, so that neither side waits for the other in between."""
    with suppress(ImportError, AttributeError, OSError):  # another system, or more than this user may have
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def send(pipe: IO[bytes], parts: Parts) -> None:
    memory = views(parts)
    pipe.write(b"".join(number.to_bytes(8, "little") for number in (len(memory), *(view.nbytes for view in memory))))
    for view in memory:
        pipe.write(view)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Parts | None:
    """The parts of the next message; None if the other side has ended."""
    head = _read(pipe, 8)
    sizes = head and _read(pipe, 8 * int.from_bytes(head, "little"))
    if not sizes:
        return None
    parts = [_read(pipe, int.from_bytes(sizes[at : at + 8], "little")) for at in range(0, len(sizes), 8)]
    whole = [part for part in parts if part is not None]
    return whole if len(whole) == len(parts) else None


def _read(pipe: IO[bytes], size: int) -> bytearray | None:
    """So many bytes; None if there are fewer."""
    content = bytearray(size)
    return content if pipe.readinto(content) == size else None  # type: ignore[attr-defined]


def main() -> None:
    from normscope.engine.pieces import answered

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side decides when to end
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: SimpleQueue[Parts] = SimpleQueue()

    def listen() -> None:
        while (parts := receive(sys.stdin.buffer)) is not None:
            inbox.put(parts)
        os._exit(0)  # even in the middle of a piece

    threading.Thread(target=listen, daemon=True).start()
    while True:
        message, given = inbox.get(), inbox.get()
        send(answers, answered(message, unpacked(given)))
