"""What the workers of one dataset agree on: whether there is a next step, and how large its parts are."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Collection
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError, ReplicaMismatchError, StratagemError
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.input.divisible import without_rows
from stratagem._src.input.pairing import Beginning
from stratagem._src.input.prefetcher import Prefetcher
from stratagem._src.input.specs import PerReplicaSpec
from stratagem._src.input.worker_input import HostStep, HostSteps, take_rows
from stratagem._src.mesh.dispatch_queue import Comparison

__all__ = ["Agreement", "agreed_steps"]


_MOST_STEPS_AHEAD = 8
_MOST_BYTES_AHEAD = 1 << 26


class Agreement:
    """Talks with the other workers about the steps of one iteration.

    Args:
        beginning: Of the iteration.
        worker: The number of this worker.
        closed: Set when nobody wants another step.
    """

    def __init__(self, beginning: Beginning, worker: int, closed: threading.Event) -> None:
        self._topic, self._what, self._first_step_came, self._watch = beginning
        self._worker = worker
        self._closed = closed
        self._turn = 0

    def compare(self, kind: str, sizes: list[Any], step: int) -> Comparison | None:
        """Returns what the workers have next; ``None`` if nobody wants it.

        Args:
            kind: Of what this worker has next.
            sizes: Of this worker's next steps.
            step: The number of the first of them.

        Raises:
            ReplicaMismatchError: If the input of another worker failed, or the workers keep shares of
                global batches that differ.
        """
        what = f"step {step} of {self._what}"
        found = self._compare(kind, sizes, what)
        failed = [] if found is None else [said for said in found.said if not _is_kind(said)]
        if failed:
            raise ReplicaMismatchError(
                f"There is no {what}, because the input of another worker failed; {'; '.join(failed)}."
            )
        if found is not None and len(found.said) > 1 and any(map(_is_shared, found.said)):
            self._refuse_different(kind, what)
        return found

    def _compare(self, said: str, sizes: list[Any], what: str) -> Comparison | None:
        turn, self._turn = self._turn, self._turn + 1
        try:
            return self._watch.compare(self._topic, turn, said, sizes, what, self._closed.is_set)
        finally:
            if turn == 0:
                self._first_step_came()

    def _refuse_different(self, kind: str, what: str) -> None:
        # All workers know that they differ. Once more, because a comparison does not tell who said what.
        every = self._compare(f"process {self._worker} has {_shown(kind)}", [], what)
        if every is not None:
            raise ReplicaMismatchError(
                "All workers must read the same global batches, of which each keeps its share, so that "
                f"no row is lost or repeated, but at {what} {'; '.join(sorted(every.said))}. Make the same "
                "dataset, batched by the same global batch size, on every worker; for data that differ "
                "between workers use distribute_datasets_from_function() or AutoShardPolicy.OFF."
            )

    def tell(self, error: Exception) -> None:
        """Lets the others know that there will be no further step from here; does not wait."""
        self._first_step_came()
        # They may know already, or be the ones who told.
        with contextlib.suppress(StratagemError):
            self._watch.give(self._topic, self._turn, f"process {self._worker}: {error!r}")


def agreed_steps(
    agreement: Agreement, steps: HostSteps, num_replicas: int, spec: Any, state: Any
) -> HostSteps:
    """Yields this worker's steps until every worker has come to its end.

    Steps are read ahead, as far as there is room, and as many as all workers have read, and are alike
    everywhere, are agreed on at once. A worker that comes to its end first takes part in the remaining
    steps with empty batches; where elements are not batches, of which there is no empty one, all end with
    it. A step is marked if its parts are not of one size everywhere, so that all workers run it the same
    way.

    Args:
        agreement: With the other workers.
        steps: Of this worker.
        num_replicas: Of this worker.
        spec: Of an element, if it is known.
        state: Where this worker's input stands before the first step.
    """
    example: Any = None
    number = 0
    with contextlib.closing(Prefetcher(steps, _has_room)) as reader:
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
                uneven = not found.num_common
                if ready:
                    step = ready.pop(0)
                    state = step.state
                    example = step.whole if step.parts is None else step.parts[0]
                else:
                    empty = _empty(spec) if example is None else without_rows(example)
                    step = HostStep([empty] * num_replicas, None, state)
                if uneven and step.parts is None:
                    step = HostStep(_divided(step.whole, num_replicas), None, step.state)
                step.uneven = uneven
                number += 1
                yield step


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
    """Returns what a worker has next, in the words in which workers speak of it."""
    if not ready:
        return _END
    step = ready[0]
    if step.global_rows is not None:
        return f"{_SHARED}{step.global_rows}"
    leaves = structures.leaves_of(step.parts if step.whole is None else step.whole)
    return _BATCHES if all(np.ndim(leaf) for leaf in leaves) else _SCALARS


def _leading_sizes(ready: list[HostStep], num_replicas: int) -> list[Any]:
    """Returns the shapes of a part in each step, up to the first whose parts are not alike.

    With them goes the size of the global batch: shares of different batches can be of one size.
    """
    sizes = ((step.global_rows, _sizes(step, num_replicas)) for step in ready)
    alike = itertools.takewhile(lambda step: len(step[1]) == 1, sizes)
    return [[global_rows, parts[0]] for global_rows, parts in alike]


def _has_room(waiting: Collection[HostStep]) -> bool:
    arrays = structures.leaves_of([(step.whole, step.parts) for step in waiting])
    num_bytes = sum(getattr(array, "nbytes", 0) for array in arrays)
    return len(waiting) < _MOST_STEPS_AHEAD and num_bytes < _MOST_BYTES_AHEAD


def _sizes(step: HostStep, num_replicas: int) -> list[Any]:
    """Returns the shapes of the parts, once if all of them are alike, as one program needs them."""
    if step.parts is None:
        shapes = [list(np.shape(leaf)) for leaf in structures.leaves_of(step.whole)]
        return [[[shape[0] // num_replicas, *shape[1:]] for shape in shapes]]
    parts = [[list(np.shape(leaf)) for leaf in structures.leaves_of(p)] for p in step.parts]
    return parts if any(part != parts[0] for part in parts) else parts[:1]


def _divided(whole: Any, num_replicas: int) -> list[Any]:
    rows = len(structures.leaves_of(whole)[0]) // num_replicas
    return [take_rows(whole, (i * rows, (i + 1) * rows)) for i in range(num_replicas)]


def _empty(spec: Any) -> Any:
    """Returns a batch without rows, for a worker that never had another."""

    def build(leaf: Any) -> Any:
        leaf = leaf.value_specs[0] if isinstance(leaf, PerReplicaSpec) else leaf
        rest = tuple(leaf.shape[1:])
        if any(size is None for size in rest):
            raise _unknown(f"its element spec is {leaf}")
        return np.zeros((0, *rest), leaf.dtype)

    if spec is None:
        raise _unknown("it does not tell the shapes of its elements")
    return structures.map_structure(
        build, spec, lambda leaf: isinstance(leaf, (PerReplicaSpec, TensorSpec))
    )


def _unknown(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "This worker has no data while others have, and must take part with empty batches, but its "
        f"dataset cannot make one: {why}. Give every worker at least one batch."
    )
