"""The dispatch queue: the only place that launches programs, and decides how many may be in flight.

XLA's in-process collectives on CPU share one thread pool: programs queued behind each other can take
all of its threads while each waits for the other's participants, and XLA then aborts the process. So
with several CPU devices a program is launched only when the one before it has finished. Elsewhere
dispatch stays asynchronous.

The process monitor launches programs of several processes. It checks that all processes are about to launch
the same program, and turns the loss of a process into an error instead of an endless wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import Tensor
from stratagem._src.jax_compat.forked_child import skip_xla_teardown_in_children
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = [
    "LAUNCH_LOCK",
    "QUEUE",
    "Comparison",
    "Listing",
    "ProcessMonitor",
    "ProgramLine",
    "check_not_in_callback",
    "has_process_monitor",
    "in_host_callback",
    "interrupting_error",
    "launch",
    "process_monitor",
    "run_in_turn",
    "runs_in_callback",
    "set_process_monitor",
    "wait_for_previous",
]

Result = TypeVar("Result")

skip_xla_teardown_in_children()

LAUNCH_LOCK = threading.RLock()
"""Held from waiting for the previous program until the next one is launched.

Reentrant for signal handlers: one that interrupts a launch may read a variable, which may have to run a
program; see ``run_in_turn``.
"""


class _Queue:
    """The state of the queue, guarded by ``LAUNCH_LOCK``.

    Attributes:
        busy: Whether the thread that holds the lock is about to launch a program.
        in_flight: An array of the program that was launched last, to wait for.
    """

    __slots__ = ("busy", "in_flight")

    def __init__(self) -> None:
        self.busy = False
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


def interrupting_error() -> ContextError:
    """Returns the error of a step or an update in a signal handler that interrupts another one."""
    return ContextError(
        "A signal handler cannot run a step, update a variable or call strategy.run() while it interrupts "
        "a step, an update or a run of the same thread, which cannot continue before the handler returns. "
        "Set a flag in the handler, and do it in the training loop when the flag is set. Reading variables "
        "and saving a Checkpoint work in a handler."
    )


def run_in_turn(launch: Callable[[], Result], *, reads_only: bool = False) -> Result:
    """Launches the next program, after the previous one has finished.

    Args:
        launch: Launches the program, and records it in ``QUEUE``.
        reads_only: Whether a signal handler may launch it while it interrupts another launch.

    Raises:
        ContextError: In a signal handler that interrupts another launch, unless ``reads_only``.
    """
    # Not a context manager written in Python: an interrupt after it is entered and before its block begins
    # would leave the lock acquired.
    with LAUNCH_LOCK:
        nested = QUEUE.busy
        if nested and not reads_only:
            raise interrupting_error()
        QUEUE.busy = True
        try:
            wait_for_previous()
            result = launch()
            if nested:
                # The interrupted launch has already waited for the previous program, and does not wait for
                # this one.
                wait_for_previous()
            return result
        finally:
            QUEUE.busy = nested


def wait_for_previous() -> None:
    """Waits until the previous program has finished. The caller holds ``LAUNCH_LOCK``."""
    in_flight = QUEUE.in_flight
    if in_flight is not None:
        try:  # noqa: SIM105  (suppress is slow)
            in_flight.block_until_ready()
        except Exception:
            # Deleted or failed: the error belongs to those who read its results.
            pass


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


@when_backend_ends
def _forget_launched() -> None:
    QUEUE.in_flight = None


class Comparison(NamedTuple):
    """The result of a comparison between processes.

    Attributes:
        said: The distinct values that the processes passed.
        num_common: The number of leading entries that are the same in all processes.
    """

    said: list[Any]
    num_common: int


class ProgramLine(NamedTuple):
    """A line of a program's text.

    Attributes:
        compared: The text to compare, equal in all processes with the same program.
        shown: The text to show, with the location in the user's code.
    """

    compared: str
    shown: str


Listing = Callable[[], Sequence[ProgramLine]]
"""Returns a program's text, line by line. Called only if programs differ."""


class ProcessMonitor(Protocol):
    """Monitors and coordinates the processes of a multi-process job."""

    waits_for_programs: bool
    """Whether ``run`` returns only when the results are ready; otherwise they may never become ready."""

    def before_launch(self, name: str, fingerprint: str, listing: Listing | None = None) -> None:
        """Checks that all processes are about to launch the same program.

        Args:
            name: The name of the program in messages.
            fingerprint: Equal for the same program in all processes.
            listing: The text of the program, to show the first line that differs.
        """

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results; raises if a process is lost."""

    def all_gather_object(
        self, topic: str, value: Tensor, what: str, *, in_sequence: bool = True
    ) -> list[Any]:
        """Returns the value of every process, in the order of the processes.

        Args:
            topic: Calls of one topic happen in the same order in all processes.
            value: Plain data of this process.
            what: The purpose, in messages.
            in_sequence: Whether the call belongs to the common sequence of programs.
        """

    def compare(
        self,
        topic: str,
        turn: int,
        said: Any,
        entries: list[Any],
        what: str,
        cancelled: Callable[[], bool],
    ) -> Comparison | None:
        """Returns how many entries of all processes agree, outside the common sequence of programs.

        The size of the answer does not grow with the number of processes.

        Args:
            topic: The topic of the comparison; no state of it is kept.
            turn: The number of this comparison within the topic.
            said: Plain data of this process, with few distinct values over all processes.
            entries: Plain data of this process, in order.
            what: The purpose, in messages.
            cancelled: Whether the result is no longer wanted; then ``None`` is returned.
        """

    def begin_input(self, dataset: str, number: int) -> Callable[[], None]:
        """Records that this thread begins an iteration over a dataset and waits for its first step.

        Returns:
            A function to call when the first step has arrived, or will not.
        """

    def contribute(self, topic: str, turn: int, said: Any) -> None:
        """Contributes to a comparison of other processes, without waiting for its result."""


_monitor: ProcessMonitor | None = None


def set_process_monitor(monitor: ProcessMonitor) -> None:
    """Sets the monitor of this multi-process job."""
    global _monitor
    _monitor = monitor


def has_process_monitor() -> bool:
    """Returns whether this process belongs to a multi-process job of a strategy."""
    return _monitor is not None


def process_monitor() -> ProcessMonitor:
    """Returns the monitor of this multi-process job."""
    if _monitor is None:
        raise ContextError(
            "Devices of other processes can only be used with failure detection, but nothing monitors "
            "these processes. Let MultiWorkerMirroredStrategy, TPUStrategy or "
            "experimental_connect_to_cluster() connect the processes, instead of "
            "jax.distributed.initialize()."
        )
    return _monitor


def launch(
    program: Callable[..., Any], args: tuple[Any, ...], group: ReplicaGroup | None, name: str
) -> Any:
    """Calls a compiled program and returns its results.

    Args:
        program: A ``jax.jit`` function that returns a list of arrays.
        args: Its arguments.
        group: The devices between which the program may contain collectives.
        name: A description of the program; the same in all processes.
    """
    if group is None or not (group.serialize_programs or group.spans_processes):
        return program(*args)
    check_not_in_callback()

    def next_program() -> Any:
        if group.spans_processes:
            return _launch_on_all_processes(program, args, name)
        results = program(*args)
        if results and not is_tracer(results[0]):
            QUEUE.in_flight = results[0]
        return results

    return run_in_turn(next_program, reads_only=True)


def _launch_on_all_processes(program: Callable[..., Any], args: tuple[Any, ...], name: str) -> Any:
    shapes = [f"{array.dtype}{list(array.shape)}" for array in jax.tree.leaves(args)]
    described = f"{name} of {', '.join(shapes)}"
    monitor = process_monitor()
    monitor.before_launch(described, described)
    return monitor.run(lambda: program(*args))
