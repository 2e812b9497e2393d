"""A worker: reads bundles from standard input, writes answers to what was its standard output, until there are no more.

A message is its length in 8 bytes, and the bytes. What a piece prints goes to standard error.
"""

import os
import pickle
import signal
import sys
import threading
from queue import SimpleQueue
from typing import IO


def send(pipe: IO[bytes], content: bytes) -> None:
    pipe.write(len(content).to_bytes(8, "little"))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None if the other side has ended."""
    head = pipe.read(8)
    size = int.from_bytes(head, "little")
    content = pipe.read(size) if len(head) == 8 else b""
    return content if len(head) == 8 and len(content) == size else None


def main() -> None:
    from normscope.engine.pieces import answered

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side decides when to end
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (content := receive(sys.stdin.buffer)) is not None:
            inbox.put(content)
        os._exit(0)  # even in the middle of a piece

    threading.Thread(target=listen, daemon=True).start()
    while True:
        message, given = inbox.get(), inbox.get()
        send(answers, answered(message, pickle.loads(given)))
