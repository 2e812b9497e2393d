"""A Ray cluster: the one that RAY_ADDRESS names, or one that is started on this machine and ends with the run.

Ray would do lost tasks again by itself; that is switched off, so that every engine counts tries in the same way.
"""

import logging
import os
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from normscope.checks import first_line
from normscope.engine.packing import Parts
from normscope.engine.pieces import Engine, LostError, answered, processors
from normscope.engine.worker_process import KEPT_MEMORY
from normscope.errors import InputError

SECONDS = 5.0  # in which a cluster must answer: Ray itself would try for minutes


class RayCluster(Engine):
    """Bundles are tasks of Ray; shared values are in its object store, once on every node."""

    name: ClassVar[str] = "ray"

    def __init__(self, workers: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise InputError("--engine ray needs Ray: pip install 'normscope[ray]'") from None
        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            address = os.environ.get("RAY_ADDRESS") or None
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
            if address:
                _require_listening(address)
            settings: dict[str, Any] = {"num_cpus": workers or processors(), "include_dashboard": False}
            try:
                ray.init(
                    address=address or "local",
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                    runtime_env={"env_vars": _variables()},
                    **({} if address else settings),
                )
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                where = f"the cluster at RAY_ADDRESS={address}" if address else "a Ray cluster on this machine"
                raise InputError(f"{where} can't be reached or started: {first_line(error)}") from None
        resources: dict[str, float] = ray.cluster_resources()
        super().__init__(workers or max(1, int(resources.get("CPU", 1))))
        self._answer = ray.remote(num_cpus=1, max_retries=0)(_answered)

    @contextmanager
    def shared(self, value: Any) -> Iterator[Any]:
        yield self._ray.put(value)  # Ray frees it with the last reference

    def start(self, message: Parts, given: tuple[Any, ...]) -> Any:
        return self._answer.remote(message, *given)

    def finished(self, handles: Collection[Any], seconds: float) -> list[Any]:
        done, _ = self._ray.wait(list(handles), num_returns=1, timeout=seconds, fetch_local=False)
        return list(done)

    def outcome(self, handle: Any) -> Parts:
        try:
            answer = self._ray.get(handle)
        except self._ray.exceptions.RayError as error:  # pieces catch their own errors: the worker or its node is gone
            raise LostError(type(error).__name__) from None
        return _copied(answer)

    def cancel(self, handles: Collection[Any]) -> None:
        for handle in handles:
            self._ray.cancel(handle, force=True)

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


def _require_listening(address: str) -> None:
    """Refuse host:port where nothing listens; what else an address may be is left to Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no cluster answers at RAY_ADDRESS={address}: {first_line(error)}") from None


def _answered(message: Parts, *given: Any) -> Parts:
    return answered(_copied(message), given)


def _copied(parts: Parts) -> Parts:
    """Parts outside of the object store, whose memory is then free again."""
    return [bytearray(part) for part in parts]


def _variables() -> dict[str, str]:
    """Where workers find the same code, if that is set for this process, and how they keep memory."""
    return KEPT_MEMORY | {name: os.environ[name] for name in ("PYTHONPATH", *KEPT_MEMORY) if name in os.environ}
