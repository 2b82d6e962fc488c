"""The one place that decides how many programs may be in flight.

XLA's in-process collectives on CPU share one thread pool: programs queued behind each other can take
all of its threads while each waits for the other's participants, and XLA then aborts the process. So
with several CPU devices a program is launched only when the one before it has finished. Elsewhere
dispatch stays asynchronous.

A program of several processes is launched when all of them are to launch the same, by whoever watches
over these processes, so that one that is gone ends in an error and not in a wait without end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from stratagem._src.core.errors import ContextError
from stratagem._src.jax_compat.forked_child import end_children_without_xla
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = [
    "LAUNCH_LOCK",
    "QUEUE",
    "Comparison",
    "Listing",
    "ProcessWatch",
    "ProgramLine",
    "check_not_in_callback",
    "has_process_watch",
    "in_host_callback",
    "interrupting_error",
    "launch",
    "process_watch",
    "run_in_turn",
    "runs_in_callback",
    "wait_for_previous",
    "watch_processes",
]

Result = TypeVar("Result")

end_children_without_xla()

LAUNCH_LOCK = threading.RLock()
"""Held from waiting for the program before until the next one is launched.

Reentrant for the sake of signal handlers: one that interrupts a launch may read a variable, for which a
program may have to run; see ``run_in_turn``.
"""


class _Queue:
    """What the thread that holds ``LAUNCH_LOCK`` is doing.

    Attributes:
        busy: Whether a program is to be launched next.
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
    """Marks code that a running program calls back, and that must not wait for that program."""
    before, _callback.active = _callback.active, True
    try:
        yield
    finally:
        _callback.active = before


def runs_in_callback() -> bool:
    """Returns whether a running program has called the code back."""
    return _callback.active


def interrupting_error() -> ContextError:
    """Returns what a step or an update raises in a signal handler that interrupts another one."""
    return ContextError(
        "A signal handler cannot run a step, update a variable or call strategy.run() while it interrupts "
        "a step, an update or a run of the same thread: that one has not ended and cannot go on before "
        "the handler returns. Set a flag in the handler, and do it in the loop when the flag is set. "
        "Reading variables and saving a Checkpoint work in a handler."
    )


def run_in_turn(launch: Callable[[], Result], *, reads_only: bool = False) -> Result:
    """Calls what launches the next program, after the one before has finished.

    Args:
        launch: Launches it, and notes it in ``QUEUE``.
        reads_only: Whether a signal handler that interrupts another turn may launch it too.

    Raises:
        ContextError: In a handler that interrupts another turn, unless ``reads_only``.
    """
    # A function and no context manager of Python's: an interrupt after it has been entered, and before
    # the block begins, would leave the lock taken.
    with LAUNCH_LOCK:
        nested = QUEUE.busy
        if nested and not reads_only:
            raise interrupting_error()
        QUEUE.busy = True
        try:
            wait_for_previous()
            result = launch()
            if nested:
                # The turn that was interrupted has waited for the program before, and will not again.
                wait_for_previous()
            return result
        finally:
            QUEUE.busy = nested


def wait_for_previous() -> None:
    """Waits until the program before has finished; the caller holds ``LAUNCH_LOCK``."""
    in_flight = QUEUE.in_flight
    if in_flight is not None:
        try:  # noqa: SIM105  (suppress is slow)
            in_flight.block_until_ready()
        except Exception:
            # Deleted since, or failed: its own reader is told, this program has nothing to do with it.
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
            "value from the callback and go on after the step."
        )


@when_backend_ends
def _forget_launched() -> None:
    QUEUE.in_flight = None


class Comparison(NamedTuple):
    """What several processes find when they compare.

    Attributes:
        said: What they said, each thing once.
        num_common: How many of their first entries are the same in all of them.
    """

    said: list[Any]
    num_common: int


class ProgramLine(NamedTuple):
    """A line of a program's text.

    Attributes:
        compared: What is equal in all processes that have the same program.
        shown: The same for readers, with the place in the user's code.
    """

    compared: str
    shown: str


Listing = Callable[[], Sequence[ProgramLine]]
"""Returns a program's text, line by line. Called only where programs differ."""


class ProcessWatch(Protocol):
    """Watches over what several processes do together."""

    waits_for_programs: bool
    """Whether ``run`` returns when the results are there; else it may be that they never come."""

    def before_launch(self, name: str, fingerprint: str, listing: Listing | None = None) -> None:
        """Makes sure that all processes are to launch the same program.

        Args:
            name: What it is called in messages.
            fingerprint: Equal for the same program in all processes.
            listing: For programs of one name that differ: the first line that does is shown.
        """

    def run(self, program: Callable[[], Any]) -> Any:
        """Launches a program and returns its results; raises if a process is gone."""

    def exchange(self, topic: str, value: Any, what: str, *, in_sequence: bool = True) -> list[Any]:
        """Returns what every process gives, in order.

        Args:
            topic: Exchanges of one topic happen in the same order in all processes.
            value: Plain data of this process.
            what: What for, in messages.
            in_sequence: Whether it belongs to the common sequence of programs.
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
        """Returns how far the entries of all processes agree, beside the common sequence of programs.

        What each process is told does not grow with their number.

        Args:
            topic: What is compared; nothing is kept of it.
            turn: Which comparison of the topic this is.
            said: Plain data of this process, of which there are few kinds.
            entries: Plain data of this process, in order.
            what: What for, in messages.
            cancelled: Whether nobody wants to know any more; then ``None`` is returned.
        """

    def begin_input(self, dataset: str, number: int) -> Callable[[], None]:
        """Notes that this thread begins an iteration over a dataset, and waits for its first step.

        Returns:
            To be called when the step is there, or will not come.
        """

    def give(self, topic: str, turn: int, said: Any) -> None:
        """Gives this process's part of a comparison, for the others: it does not want theirs."""


_watch: ProcessWatch | None = None


def watch_processes(watch: ProcessWatch) -> None:
    """Sets who watches over the programs of several processes."""
    global _watch
    _watch = watch


def has_process_watch() -> bool:
    """Returns whether this process is one of several that a strategy has joined."""
    return _watch is not None


def process_watch() -> ProcessWatch:
    """Returns who watches over the programs of several processes."""
    if _watch is None:
        raise ContextError(
            "Devices of other processes can be used where somebody notices when one of these is lost, but "
            "nobody watches over them here. Let MultiWorkerMirroredStrategy, TPUStrategy or "
            "experimental_connect_to_cluster() join the processes, in place of "
            "jax.distributed.initialize()."
        )
    return _watch


def launch(
    program: Callable[..., Any], args: tuple[Any, ...], group: ReplicaGroup | None, name: str
) -> Any:
    """Calls a compiled program and returns its results.

    Args:
        program: A ``jax.jit`` function that returns a list of arrays.
        args: Its arguments.
        group: The devices between which the program may contain collectives.
        name: What it does; the same in all processes.
    """
    if group is None or not (group.serialize_programs or group.spans_processes):
        return program(*args)
    check_not_in_callback()

    def next_program() -> Any:
        if group.spans_processes:
            return _launch_together(program, args, name)
        results = program(*args)
        if results and not is_tracer(results[0]):
            QUEUE.in_flight = results[0]
        return results

    return run_in_turn(next_program, reads_only=True)


def _launch_together(program: Callable[..., Any], args: tuple[Any, ...], name: str) -> Any:
    shapes = [f"{array.dtype}{list(array.shape)}" for array in jax.tree.leaves(args)]
    described = f"{name} of {', '.join(shapes)}"
    watch = process_watch()
    watch.before_launch(described, described)
    return watch.run(lambda: program(*args))
