"""The dispatch queue: the only place that launches programs with collectives, and decides when.

``dispatch`` launches a program. What it holds meanwhile, in lock order, and why:

* **Programs of one process on several CPU devices** hold ``LAUNCH_LOCK`` from waiting for the previous
  program to their launch. XLA's in-process collectives on CPU share one thread pool: programs queued behind
  each other can take all of its threads while each waits for the other's participants, and XLA then aborts
  the process. So a program is launched only when the one before it has finished.
* **Programs of several processes** first hold the *sequence*, a lock that only they take, until the
  processes have nothing more to exchange about the program. It covers the check that all of them are about
  to launch the same program, the launch, and the exchange of errors after it. The order requires that:
  every process must launch the same programs in the same order. A thread that exchanged for the second
  program before another thread has launched the first could swap the two. No other lock is held during
  these exchanges: programs of one process, and updates and reads of variables, continue while workers wait
  for each other. ``LAUNCH_LOCK`` is held for the launch itself. On CPU the process monitor waits for the
  program within it: only one program may be in flight, and only the monitor knows when to give up.
* **Other programs** (one device, or one process with accelerators) are launched at once. Nothing is held.

``dispatch`` does not lock variables: the function that it calls takes ``STORAGE_LOCK`` to read and store
their arrays. ``variables/locking.py`` has the whole lock order.

A host callback of a running program must not wait for another program: ``dispatch`` refuses there.

A signal handler can interrupt a launch at any bytecode. Its own launches are refused, except those that
only read: they run nested in the interrupted one, since both locks are reentrant.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from stratagem._src.core.codegen import CodeWriter
from stratagem._src.core.errors import ContextError
from stratagem._src.jax_compat.forked_child import skip_xla_teardown_in_children
from stratagem._src.jax_compat.gc_callback import keep_handlers_out_of_gc_callback
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.compile_only_group import detached_error
from stratagem._src.mesh.process_monitor import ProgramIdentity, process_monitor
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = [
    "QUEUE",
    "check_not_in_callback",
    "dispatch",
    "in_host_callback",
    "interrupting_error",
    "launch",
    "runs_in_callback",
    "write_dispatch",
]

Launched = TypeVar("Launched")

skip_xla_teardown_in_children()
keep_handlers_out_of_gc_callback()

LAUNCH_LOCK = threading.RLock()
"""Held from waiting for the previous program until the next one is launched."""

_SEQUENCE_LOCK = threading.RLock()
"""Held while the processes of a job run one program together."""


class _Queue:
    """The state of the queue.

    Attributes:
        busy: Whether the thread that holds ``LAUNCH_LOCK`` is about to launch a program.
        sequence_thread: The identifier of the thread that runs a program with other processes, or 0.
        in_flight: An array of the program that was launched last, to wait for. The launch of a program
            stores it while ``LAUNCH_LOCK`` is held.
    """

    __slots__ = ("busy", "in_flight", "sequence_thread")

    def __init__(self) -> None:
        self.busy = False
        self.sequence_thread = 0
        self.in_flight: jax.Array | None = None


QUEUE = _Queue()


class _Callback(threading.local):
    active = False


_callback = _Callback()


@contextlib.contextmanager
def in_host_callback() -> Iterator[None]:
    """Marks the block as a host callback of a running program, which must not wait for that program."""
    before, _callback.active = _callback.active, True
    try:
        yield
    finally:
        _callback.active = before


def runs_in_callback() -> bool:
    """Returns whether the code runs in a host callback."""
    return _callback.active


def check_not_in_callback() -> None:
    """Checks that the code may wait for a program.

    Raises:
        ContextError: In a host callback, which the program may be waiting for.
    """
    if _callback.active:
        raise ContextError(
            "A host callback (jax.pure_callback, io_callback, jax.debug.callback) of a compiled step "
            "cannot run another program with collectives: the step waits for the callback. Return the "
            "value from the callback and continue after the step."
        )


def interrupting_error() -> ContextError:
    """Returns the error of a step or an update in a signal handler that interrupts another one."""
    return ContextError(
        "A signal handler cannot run a step, update a variable or call strategy.run() while it interrupts "
        "a step, an update or a run of the same thread, which cannot continue before the handler returns. "
        "Set a flag in the handler, and do it in the training loop when the flag is set. Reading variables "
        "and saving a Checkpoint work in a handler."
    )


def launch(
    program: Callable[..., Any], args: tuple[Any, ...], group: ReplicaGroup | None, name: str
) -> Any:
    """Calls a compiled program that changes no variable, and returns its results.

    Args:
        program: A ``jax.jit`` function that returns a list of arrays.
        args: Its arguments.
        group: The devices between which the program may contain collectives.
        name: A description of the program; the same in all processes.
    """
    if group is not None and group.spans_processes:
        shapes = [f"{array.dtype}{list(array.shape)}" for array in jax.tree.leaves(args)]
        described = f"{name} of {', '.join(shapes)}"
        identity = ProgramIdentity(described, described)
        return dispatch(lambda: program(*args), group, identity=identity, reads_only=True)

    def launch_here() -> Any:
        results = program(*args)
        if group is not None and group.serialize_programs and results and not is_tracer(results[0]):
            QUEUE.in_flight = results[0]
        return results

    return dispatch(launch_here, group, reads_only=True)


def dispatch(
    launch: Callable[[], Launched],
    group: ReplicaGroup | None,
    *,
    identity: ProgramIdentity | None = None,
    finish: Callable[[Launched], None] | None = None,
    reads_only: bool = False,
) -> Launched:
    """Launches a program when it is its turn, and returns what ``launch`` returns.

    Args:
        launch: Launches the program. On several CPU devices it stores an array of the program in
            ``QUEUE.in_flight``, unless the program has finished when it returns.
        group: The devices between which the program may contain collectives.
        identity: Identifies a program of several processes; ``None`` if this process can run it alone.
        finish: Called with the result, when no other process can be at the next program yet.
        reads_only: Whether a signal handler may launch it while it interrupts another launch.

    Raises:
        ContextError: In a host callback; in a signal handler that interrupts another launch, unless the
            program ``reads_only``.
        ReplicaMismatchError: If another process is about to launch another program.
        UnavailableError: If another process is lost.
        DeviceError: If the devices are only described.
    """
    if group is None or not (group.serialize_programs or group.spans_processes):
        if group is not None and not group.attached:
            raise detached_error(group)
        launched = launch()
    else:
        check_not_in_callback()
        if identity is not None:
            return _in_sequence(launch, identity, finish, reads_only=reads_only)
        launched = _in_turn(launch, reads_only=reads_only)
    if finish is not None:
        finish(launched)
    return launched


def _in_sequence(
    launch: Callable[[], Launched],
    identity: ProgramIdentity,
    finish: Callable[[Launched], None] | None,
    *,
    reads_only: bool,
) -> Launched:
    """Launches a program together with the other processes; see the top of this file."""
    thread = threading.get_ident()
    if QUEUE.sequence_thread != thread and _interrupts_launch():
        # This thread holds LAUNCH_LOCK. Waiting for the sequence now would reverse the lock order.
        raise interrupting_error()
    monitor = process_monitor()
    with _SEQUENCE_LOCK:
        before = QUEUE.sequence_thread
        if before and not reads_only:
            raise interrupting_error()
        QUEUE.sequence_thread = thread
        try:
            monitor.before_launch(*identity)
            launched = _in_turn(lambda: monitor.run(launch), reads_only=reads_only)
            if finish is not None:
                finish(launched)
            return launched
        finally:
            QUEUE.sequence_thread = before


def _interrupts_launch() -> bool:
    """Returns whether this is a signal handler that interrupts a launch of its thread."""
    if not LAUNCH_LOCK.acquire(blocking=False):
        return False  # another thread holds it
    try:
        return QUEUE.busy
    finally:
        LAUNCH_LOCK.release()


def _in_turn(launch: Callable[[], Launched], *, reads_only: bool) -> Launched:
    """Launches a program after the previous one of this process has finished."""
    # Not a context manager written in Python: an interrupt after it is entered and before its block begins
    # would leave the lock acquired.
    with LAUNCH_LOCK:
        nested = QUEUE.busy
        if nested and not reads_only:
            raise interrupting_error()
        QUEUE.busy = True
        try:
            _wait_for_previous()
            launched = launch()
            if nested:
                # The interrupted launch has already waited for the previous program, and does not wait for
                # this one.
                _wait_for_previous()
            return launched
        finally:
            QUEUE.busy = nested


@contextlib.contextmanager
def write_dispatch(call: CodeWriter, group: ReplicaGroup | None) -> Iterator[None]:
    """Writes into generated code what ``dispatch`` does around a launch within one process.

    The lines that are written inside the ``with`` statement launch the program.
    """
    assert group is None or not group.spans_processes
    if group is None or not group.serialize_programs:
        yield
        return
    queue = call.named(QUEUE)
    call.write(f"{call.named(check_not_in_callback)}()")
    with call.block(f"with {call.named(LAUNCH_LOCK)}:"):
        call.write(f"if {queue}.busy: raise {call.named(interrupting_error)}()")
        call.write(f"{queue}.busy = True")
        with call.block("try:"):
            call.write(f"{call.named(_wait_for_previous)}()")
            yield
        call.write(f"finally: {queue}.busy = False")


def _wait_for_previous() -> None:
    """Waits until the previous program has finished. The caller holds ``LAUNCH_LOCK``."""
    in_flight = QUEUE.in_flight
    if in_flight is not None:
        try:  # noqa: SIM105  (suppress is slow)
            in_flight.block_until_ready()
        except Exception:
            # Deleted or failed: the error belongs to those who read its results.
            pass


@when_backend_ends
def _forget_launched() -> None:
    QUEUE.in_flight = None
