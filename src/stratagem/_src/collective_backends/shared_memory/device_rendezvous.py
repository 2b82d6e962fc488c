"""``DeviceRendezvous``: the devices of this process meet for a collective, and the last runs it for all.

Each device waits in a thread of XLA. XLA's own collectives do the same, and XLA has a thread for each
device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from stratagem._src.collective_backends.shared_memory.collective_op import CollectiveOp
from stratagem._src.collective_backends.shared_memory.local_group import ABORTED, DIFFERENT
from stratagem._src.collective_backends.shared_memory.shared_memory_backend import CollectiveBackend
from stratagem._src.collective_backends.shared_memory.slots import DeviceBuffers

__all__ = ["DeviceRendezvous"]

_POLL_SECONDS = 0.05
_OVERLAP = "Two shared-memory collectives started at the same time."


class _Round:
    """One collective.

    Args:
        op: The collective.
        num_devices: The number of devices that take part.
    """

    def __init__(self, op: CollectiveOp, num_devices: int) -> None:
        self.op = op
        self.num_devices = num_devices
        self.buffers: dict[int, DeviceBuffers] = {}
        self.problem: str | None = None
        self.is_over = threading.Event()


class DeviceRendezvous:
    """The rendezvous of this process's devices, for each collective with other processes.

    Args:
        backend: Runs the collectives.
    """

    def __init__(self, backend: CollectiveBackend) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        # The round that devices are arriving for. The last device removes it before it runs the round.
        self._arriving: _Round | None = None
        self._is_running = threading.Lock()

    def participate(
        self, op: CollectiveOp, device: int, num_devices: int, buffers: DeviceBuffers
    ) -> str | None:
        """Fills a device's results, once all devices of this process and of the others have arrived.

        Args:
            op: The collective.
            device: The index of the device among those of this process.
            num_devices: The number of these devices.
            buffers: The operands and results of the device.

        Returns:
            The error, if any.
        """
        if num_devices == 1 and self._arriving is None:
            return ABORTED if self.backend.is_aborted else self._run_alone(op, [buffers])
        with self._lock:
            if self.backend.is_aborted:
                return ABORTED
            arriving = self._arriving
            if arriving is None:
                arriving = self._arriving = _Round(op, num_devices)
            expected = (arriving.op, arriving.num_devices)
            if expected != (op, num_devices) or device in arriving.buffers:
                self.backend.abort()
                return DIFFERENT
            arriving.buffers[device] = buffers
            is_last = len(arriving.buffers) == num_devices
            if is_last:
                self._arriving = None
        if is_last:
            self._run(arriving)
        else:
            self._wait(arriving)
        return arriving.problem

    def _run(self, current: _Round) -> None:
        buffers = [current.buffers[device] for device in sorted(current.buffers)]
        current.problem = self._run_alone(current.op, buffers)
        current.is_over.set()

    def _run_alone(self, op: CollectiveOp, buffers: Sequence[DeviceBuffers]) -> str | None:
        """Runs a collective, unless another thread runs one."""
        if not self._is_running.acquire(blocking=False):
            self.backend.abort()
            return _OVERLAP
        try:
            return self.backend.run(op, buffers)
        except BaseException as error:
            self.backend.abort()
            return repr(error)
        finally:
            self._is_running.release()

    def _wait(self, current: _Round) -> None:
        while not current.is_over.wait(_POLL_SECONDS):
            with self._lock:
                # A round that has begun uses the memory of all its devices, so none may leave it; the
                # backend ends it after an abort.
                if self._arriving is current and self.backend.is_aborted:
                    current.problem = ABORTED
                    return
