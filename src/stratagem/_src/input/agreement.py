"""Agreement between the workers on each step: whether there is one, and the shapes of its batches.

All workers must run the same program in the same step, or their collectives do not match. So the workers
compare what they have next before a step is placed on devices. A worker that has run out of data continues
with empty batches.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Collection, Generator, Iterable
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError, ReplicaMismatchError, StratagemError
from stratagem._src.core.types import ElementSpec, IteratorState, Leaf, PyTree
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.input.divisible import empty_like
from stratagem._src.input.pairing import StartedIteration
from stratagem._src.input.prefetcher import Prefetcher
from stratagem._src.input.specs import PerReplicaSpec
from stratagem._src.input.worker_input import HostStep, take_rows
from stratagem._src.mesh.process_monitor import Comparison

__all__ = ["Agreement", "agreed_steps"]


_MAX_STEPS_AHEAD = 8
_MAX_BYTES_AHEAD = 1 << 26


class Agreement:
    """Compares the steps of one iteration with the other workers.

    Args:
        iteration: The iteration.
        worker: The index of this worker.
        closed: Set when the iterator is closed and needs no further step.
    """

    def __init__(self, iteration: StartedIteration, worker: int, closed: threading.Event) -> None:
        self._topic, self._what, self._first_step_arrived, self._monitor = iteration
        self._worker = worker
        self._closed = closed
        self._turn = 0

    def compare(self, kind: str, sizes: list[Any], step: int) -> Comparison | None:
        """Returns what all workers have next; ``None`` if the iterator was closed.

        Args:
            kind: What this worker has next: a batch, a scalar, or the end.
            sizes: The shapes of this worker's next steps.
            step: The index of the first of these steps.

        Raises:
            ReplicaMismatchError: If the input of another worker failed, or workers that share global
                batches read different ones.
        """
        what = f"step {step} of {self._what}"
        found = self._compare(kind, sizes, what)
        failed = [] if found is None else [said for said in found.said if not _is_kind(said)]
        if failed:
            raise ReplicaMismatchError(
                f"Cannot run {what}: the input of another worker failed; {'; '.join(failed)}."
            )
        if found is not None and len(found.said) > 1 and any(map(_is_shared, found.said)):
            self._refuse_different(kind, what)
        return found

    def _compare(self, said: str, sizes: list[Any], what: str) -> Comparison | None:
        turn, self._turn = self._turn, self._turn + 1
        try:
            return self._monitor.compare(self._topic, turn, said, sizes, what, self._closed.is_set)
        finally:
            if turn == 0:
                self._first_step_arrived()

    def _refuse_different(self, kind: str, what: str) -> None:
        # All workers know now that they differ, so all take this branch. A comparison does not tell which
        # worker said what; a second round with the worker's index in the text does.
        every = self._compare(f"process {self._worker} has {_shown(kind)}", [], what)
        if every is not None:
            raise ReplicaMismatchError(
                "All workers must read the same global batches, because each keeps its share of every "
                f"batch; otherwise rows are lost or repeated. At {what}, {'; '.join(sorted(every.said))}. "
                "Build the same dataset, with the same global batch size, on every worker; if workers read "
                "different data, use distribute_datasets_from_function() or AutoShardPolicy.OFF."
            )

    def report_failure(self, error: Exception) -> None:
        """Tells the other workers that this one has no further step; does not wait for them."""
        self._first_step_arrived()
        # The others may already know, or the error may come from one of them.
        with contextlib.suppress(StratagemError):
            self._monitor.contribute(self._topic, self._turn, f"process {self._worker}: {error!r}")


def agreed_steps(
    agreement: Agreement,
    steps: Iterable[HostStep],
    num_replicas: int,
    spec: ElementSpec,
    state: IteratorState,
) -> Generator[HostStep, None, None]:
    """Yields this worker's steps until all workers have run out of data.

    Steps are prefetched, up to a limit. One comparison agrees on all leading steps that every worker has
    ready with the same shapes. A worker that runs out of data first takes part in the remaining steps with
    empty batches. Elements that are not batches have no empty form, so these end on all workers with the
    first worker that ends. A step is marked uneven if batch sizes differ anywhere, so that all workers run
    the same program.

    Args:
        agreement: The agreement with the other workers.
        steps: The steps of this worker.
        num_replicas: The number of replicas of this worker.
        spec: The spec of an element, if known.
        state: The state of this worker's input before the first step.
    """
    example: Any = None
    number = 0
    with contextlib.closing(Prefetcher((step for step in steps), _has_room)) as reader:
        ready: list[HostStep] = []
        while True:
            reader.take_ready(ready)
            kind = _kind(ready)
            found = agreement.compare(kind, _leading_sizes(ready, num_replicas), number)
            if found is None or found.said == [_END]:
                return
            if _END in found.said and _SCALARS in found.said:
                return
            for _ in range(max(found.num_common, 1)):
                # With no common step the workers agree on one step of different sizes.
                uneven = not found.num_common
                if ready:
                    step = ready.pop(0)
                    state = step.state
                    batches = step.replica_batches
                    example = step.local_batch if batches is None else batches[0]
                else:
                    empty = _empty(spec) if example is None else empty_like(example)
                    step = HostStep([empty] * num_replicas, None, state)
                if uneven and step.replica_batches is None:
                    step = HostStep(_split_evenly(step.local_batch, num_replicas), None, step.state)
                step.uneven = uneven
                number += 1
                yield step


# What workers send each other: the kind of their next step. Anything else is an error of that worker.
_END = "end"
_BATCHES = "batches"
_SCALARS = "scalars"
_SHARED = "global batch of rows: "


def _is_kind(said: str) -> bool:
    return said in (_END, _BATCHES, _SCALARS) or _is_shared(said)


def _is_shared(said: str) -> bool:
    return said.startswith(_SHARED)


def _shown(kind: str) -> str:
    return "no further batch" if kind == _END else f"a {kind}" if _is_shared(kind) else kind


def _kind(ready: list[HostStep]) -> str:
    """Returns the kind of a worker's next step, as workers send it."""
    if not ready:
        return _END
    step = ready[0]
    if step.global_rows is not None:
        return f"{_SHARED}{step.global_rows}"
    unsplit = step.local_batch
    leaves = structures.leaves_of(step.replica_batches if unsplit is None else unsplit)
    return _BATCHES if all(np.ndim(leaf) for leaf in leaves) else _SCALARS


def _leading_sizes(ready: list[HostStep], num_replicas: int) -> list[Any]:
    """Returns the shapes of a replica's batch per step, up to the first step where replicas differ.

    They include the size of the global batch: shares of different global batches can have equal sizes.
    """
    sizes = ((step.global_rows, _sizes(step, num_replicas)) for step in ready)
    alike = itertools.takewhile(lambda step: len(step[1]) == 1, sizes)
    return [[global_rows, shapes[0]] for global_rows, shapes in alike]


def _has_room(waiting: Collection[HostStep]) -> bool:
    arrays = structures.leaves_of([(step.local_batch, step.replica_batches) for step in waiting])
    num_bytes = sum(getattr(array, "nbytes", 0) for array in arrays)
    return len(waiting) < _MAX_STEPS_AHEAD and num_bytes < _MAX_BYTES_AHEAD


def _sizes(step: HostStep, num_replicas: int) -> list[Any]:
    """Returns the shapes of each replica's batch; only one entry if all replicas have the same."""
    if step.replica_batches is None:
        shapes = [list(np.shape(leaf)) for leaf in structures.leaves_of(step.local_batch)]
        return [[[shape[0] // num_replicas, *shape[1:]] for shape in shapes]]
    found = [
        [list(np.shape(leaf)) for leaf in structures.leaves_of(batch)]
        for batch in step.replica_batches
    ]
    return found if any(one != found[0] for one in found) else found[:1]


def _split_evenly(batch: PyTree, num_replicas: int) -> list[Any]:
    rows = len(structures.leaves_of(batch)[0]) // num_replicas
    return [take_rows(batch, (i * rows, (i + 1) * rows)) for i in range(num_replicas)]


def _empty(spec: ElementSpec) -> Any:
    """Returns an empty batch, for a worker that never had any data."""

    def build(leaf: Leaf) -> Any:
        leaf = leaf.value_specs[0] if isinstance(leaf, PerReplicaSpec) else leaf
        rest = tuple(leaf.shape[1:])
        if any(size is None for size in rest):
            raise _unknown(f"its element spec is {leaf}")
        return np.zeros((0, *rest), leaf.dtype)

    if spec is None:
        raise _unknown("it does not declare the shapes of its elements")
    return structures.map_structure(
        build, spec, lambda leaf: isinstance(leaf, (PerReplicaSpec, TensorSpec))
    )


def _unknown(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "This worker has no data while others do, so it must take part with empty batches, but its "
        f"dataset cannot create one: {why}. Give every worker at least one batch."
    )
