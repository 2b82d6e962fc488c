"""JAX's view of the other processes.

``jax.distributed.initialize`` hosts the coordination service in the leader's process, and ends every
process when one is lost. Here the service runs beside the leader, its clients never take anybody for
lost, and the meeting point does so instead. Where JAX has changed, ``initialize`` is used.
"""

from __future__ import annotations

import atexit
import importlib
import math
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.errors import BackendStartedError
from stratagem._src.jax_compat.coordination_service import NEVER
from stratagem._src.jax_compat.cpu_collectives import gloo_listens_at
from stratagem._src.jax_compat.xla_flags import added_to_xla_flags

__all__ = [
    "abandon",
    "check_not_started",
    "connect",
    "disconnect",
    "end_backends",
    "is_finished",
    "start_alone",
]

_TIMEOUT_FLAG = "--xla_cpu_collective_timeout_seconds"

_client: Any = None
"""Ours, of a service that runs beside the leader; kept because it must not end before JAX's devices."""

_clients_before: list[Any] = []
"""Those of backends that were ended, in which programs may be stuck."""


def check_not_started() -> None:
    """Checks that JAX can still join other processes.

    Raises:
        BackendStartedError: If its backend runs already.
    """
    bridge = importlib.import_module("jax._src.xla_bridge")
    if bridge.backends_are_initialized():
        raise BackendStartedError(
            "A strategy of several processes must be made before anything computes: the JAX backend of "
            "this process has started, with its own devices only. Make the strategy at the start of "
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
        address: Of the coordination service.
        num_processes: How many processes there are.
        process_id: Which one this is.
        local_device_ids: Which GPUs of the machine this process may use; default all.
        hosted: Whether the service runs already; else process 0 hosts it.
        timeout: Seconds after which a collective on CPU ends, so that nothing stays behind when we
            have given up.
        host: The address of this machine at which XLA listens for arrays on CPU; ``None`` leaves it to XLA.
    """
    _show_devices(local_device_ids)
    _join_processes(address, num_processes, process_id, hosted)
    with gloo_listens_at(host):
        _start_backend(timeout)


def start_alone(local_device_ids: Sequence[int] | None, timeout: float) -> None:
    """Starts JAX's backend with the devices of this process, which joins others later.

    Args:
        local_device_ids: As of ``connect``.
        timeout: Likewise, for then: XLA reads its flags once.
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
    client = _make_client(address, process_id) if hosted else None
    if client is None:
        # It would take SIGTERM for itself, so that neither the program hears of it nor is it ended.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(
            address, num_processes, process_id, cluster_detection_method="deactivate"
        )
        return
    jax.config.update("jax_enable_recoverability", True)
    global _client
    client.connect()
    _client = client
    state = importlib.import_module("jax._src.distributed").global_state
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
            # It would abort the process: how long to wait is for us to say.
            init_timeout=NEVER,
            heartbeat_timeout=NEVER,
            shutdown_on_destruction=False,
            use_compression=True,
        )
    except (ImportError, AttributeError, TypeError):
        return None


def disconnect() -> None:
    """Keeps JAX from saying goodbye at exit to a coordination service that may be gone.

    It would wait for an answer, and it is us that the others hear of. Nothing to do where JAX hosts the
    service itself.
    """
    if _client is not None:
        state = _private("jax._src.distributed", "global_state")
        if getattr(state, "client", None) is _client:
            state.client = None


def end_backends() -> None:
    """Ends JAX's backends, so that others can be started, of this process and of others.

    Arrays on their devices can still be read. A program that is stuck in them stays so, and hinders
    nobody else.
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
    """Keeps JAX from waiting at exit for programs that will never end."""
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
