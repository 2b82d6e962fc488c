"""Connects JAX to the coordination service and the devices of other processes.

``jax.distributed.initialize`` hosts the coordination service in the leader's process, and terminates every
process when one is lost. Here the service runs in a process of its own, its clients never declare a process
lost, and the membership server does so instead. If JAX has changed, ``initialize`` is used.
"""

from __future__ import annotations

import atexit
import importlib
import math
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.errors import BackendStartedError
from stratagem._src.jax_compat.coordination_service import NO_TIMEOUT_SECONDS
from stratagem._src.jax_compat.cpu_collectives import gloo_listens_at
from stratagem._src.jax_compat.xla_flags import added_to_xla_flags

__all__ = [
    "abandon",
    "check_not_started",
    "connect",
    "disconnect",
    "is_finished",
    "shut_down_backends",
    "start_single_process",
]

_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"

_client: Any = None
"""Our client of a service in a process of its own. Kept alive: it must not end before JAX's devices."""

_clients_before: list[Any] = []
"""The clients of backends that were shut down, in which programs may be stuck."""


def check_not_started() -> None:
    """Checks that JAX can still connect to other processes.

    Raises:
        BackendStartedError: If its backend is already initialized.
    """
    # JAX itself raises, with a text of its own, if this cannot be found out.
    is_initialized = _private("jax._src.xla_bridge", "backends_are_initialized")
    if is_initialized is not None and is_initialized():
        raise BackendStartedError(
            "Create a multi-process strategy before the JAX backend is initialized: the backend of this "
            "process has started, with its own devices only. Create the strategy at the start of "
            "the program, before any array, variable, or list of devices."
        )


def connect(
    address: str,
    num_processes: int,
    process_id: int,
    *,
    local_device_ids: Sequence[int] | None,
    hosted: bool,
    timeout: float,
    host: str | None = None,
) -> None:
    """Makes the devices of all processes known to JAX, and starts its backend.

    Args:
        address: The address of the coordination service.
        num_processes: The number of processes.
        process_id: The index of this process.
        local_device_ids: The GPUs of the machine that this process may use; default all.
        hosted: Whether the service already runs; otherwise process 0 hosts it.
        timeout: Seconds after which a collective on CPU fails, so that none is left behind after a
            timeout of ours.
        host: The address of this machine on which XLA listens for arrays on CPU; ``None`` for XLA's choice.
    """
    _show_devices(local_device_ids)
    _join_processes(address, num_processes, process_id, hosted)
    with gloo_listens_at(host):
        _start_backend(timeout)


def start_single_process(local_device_ids: Sequence[int] | None, timeout: float) -> None:
    """Starts JAX's backend with the devices of this process, which connects to others later.

    Args:
        local_device_ids: As in ``connect``.
        timeout: As in ``connect``, for the later connection: XLA reads its flags only once.
    """
    _show_devices(local_device_ids)
    _start_backend(timeout)


def _show_devices(local_device_ids: Sequence[int] | None) -> None:
    if local_device_ids:
        visible = ",".join(map(str, local_device_ids))
        jax.config.update("jax_cuda_visible_devices", visible)
        jax.config.update("jax_rocm_visible_devices", visible)


def _start_backend(timeout: float) -> None:
    with added_to_xla_flags(f"{_TIMEOUT_FLAG}={math.ceil(timeout)}"):
        jax.devices()


def _join_processes(address: str, num_processes: int, process_id: int, hosted: bool) -> None:
    state = _private("jax._src.distributed", "global_state")
    client = _make_client(address, process_id) if hosted and state is not None else None
    if client is None:
        # The preemption service would intercept SIGTERM: the program would neither see it nor end.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            address, num_processes, process_id, cluster_detection_method="deactivate"
        )
        return
    jax.config.update("jax_enable_recoverability", True)
    global _client
    client.connect()
    _client = client
    state.client = client
    state.process_id = process_id
    state.num_processes = num_processes
    state.coordinator_address = address


def _make_client(address: str, process_id: int) -> Any:
    try:
        runtime = importlib.import_module("jaxlib._jax")
        return runtime.get_distributed_runtime_client(
            address,
            process_id,
            # A timeout of the client would abort the process; our own timeouts decide how long to wait.
            init_timeout=NO_TIMEOUT_SECONDS,
            heartbeat_timeout=NO_TIMEOUT_SECONDS,
            shutdown_on_destruction=False,
            use_compression=True,
        )
    except (ImportError, AttributeError, TypeError):
        return None


def disconnect() -> None:
    """Keeps JAX from disconnecting at exit from a coordination service that may be gone.

    It would wait for a response. Other processes learn of the exit through the membership server. Does
    nothing if JAX hosts the service itself.
    """
    if _client is not None:
        state = _private("jax._src.distributed", "global_state")
        if getattr(state, "client", None) is _client:
            state.client = None


def shut_down_backends() -> None:
    """Shuts down JAX's backends, so that new ones can be started, with or without other processes.

    Arrays on their devices can still be read. A program that is stuck in them stays stuck, but does not
    block new programs.
    """
    global _client
    if _client is not None:
        disconnect()
        _clients_before.append(_client)
        _client = None
    # Imported when used: few programs need it.
    from jax.extend.backend import clear_backends

    jax.clear_caches()
    clear_backends()


def abandon() -> None:
    """Keeps JAX from waiting at exit for programs that never end."""
    disconnect()
    for module, name in (
        ("jax._src.api", "clean_up"),
        ("jax._src.dispatch", "wait_for_tokens"),
    ):
        function = _private(module, name)
        if function is not None:
            atexit.unregister(function)


def is_finished(array: jax.Array) -> bool:
    """Returns whether an array has been computed, or does not exist any more."""
    if array.is_deleted():
        return True
    is_ready = getattr(array, "is_ready", None)
    try:
        return is_ready is None or bool(is_ready())
    except RuntimeError:  # deleted meanwhile
        return True


def _private(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
