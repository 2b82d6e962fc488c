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
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax

from stratagem._src.core.errors import ContextError
from stratagem._src.core.tracing import is_tracer
from stratagem._src.mesh.backend_lifetime import when_backend_ends
from stratagem._src.mesh.replica_group import ReplicaGroup

__all__ = [
    "LAUNCH_LOCK",
    "Comparison",
    "ProcessWatch",
    "check_not_in_callback",
    "in_host_callback",
    "launch",
    "note_launched",
    "process_watch",
    "wait_for_previous",
    "watch_processes",
]

LAUNCH_LOCK = threading.Lock()
"""Held from waiting for the program before until the next one is launched."""

_in_flight: jax.Array | None = None


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


def wait_for_previous() -> None:
    """Waits until the program before has finished; the caller holds ``LAUNCH_LOCK``."""
    if _in_flight is not None:
        try:  # noqa: SIM105  (suppress is slow)
            _in_flight.block_until_ready()
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


def note_launched(result: jax.Array) -> None:
    """Notes an array of the program that was launched, to wait for."""
    global _in_flight
    _in_flight = result


@when_backend_ends
def _forget_launched() -> None:
    global _in_flight
    _in_flight = None


class Comparison(NamedTuple):
    """What several processes find when they compare.

    Attributes:
        said: What they said, each thing once.
        num_common: How many of their first entries are the same in all of them.
    """

    said: list[Any]
    num_common: int


class ProcessWatch(Protocol):
    """Watches over what several processes do together."""

    waits_for_programs: bool
    """Whether ``run`` returns when the results are there; else it may be that they never come."""

    def before_launch(self, name: str, fingerprint: str) -> None:
        """Makes sure that all processes are to launch the same program."""

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
    with LAUNCH_LOCK:
        wait_for_previous()
        if group.spans_processes:
            return _launch_together(program, args, name)
        results = program(*args)
        if results and not is_tracer(results[0]):
            note_launched(results[0])
    return results


def _launch_together(program: Callable[..., Any], args: tuple[Any, ...], name: str) -> Any:
    shapes = [f"{array.dtype}{list(array.shape)}" for array in jax.tree.leaves(args)]
    described = f"{name} of {', '.join(shapes)}"
    watch = process_watch()
    watch.before_launch(described, described)
    return watch.run(lambda: program(*args))
