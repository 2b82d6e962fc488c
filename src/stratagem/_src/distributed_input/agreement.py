"""What the workers of one dataset agree on: whether there is a next step, and how large its parts are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError, ReplicaMismatchError, StratagemError
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.distributed_input.divisible import without_rows
from stratagem._src.distributed_input.pairing import Beginning
from stratagem._src.distributed_input.specs import PerReplicaSpec
from stratagem._src.distributed_input.worker_input import HostStep, take_rows

__all__ = ["Agreement", "agreed_steps"]


class Agreement:
    """Talks with the other workers about the steps of one iteration.

    Args:
        beginning: Of the iteration.
        closed: Set when nobody wants another step.
    """

    def __init__(self, beginning: Beginning, closed: threading.Event) -> None:
        self._topic, self._what, self._first_step_came, self._watch = beginning
        self._closed = closed
        self._turn = 0

    def exchange(self, sizes: Any) -> list[Any]:
        """Returns the sizes that every worker has in the next step; nothing if nobody wants it.

        Raises:
            ReplicaMismatchError: If the input of another worker failed.
        """
        turn, self._turn = self._turn, self._turn + 1
        what = f"step {turn} of {self._what}"
        try:
            every = self._watch.exchange(
                self._topic,
                {"sizes": sizes},
                what,
                turn=turn,
                in_sequence=False,
                cancelled=self._closed.is_set,
            )
        finally:
            if turn == 0:
                self._first_step_came()
        failed = [
            f"process {i}: {said['error']}" for i, said in enumerate(every) if "error" in said
        ]
        if failed:
            raise ReplicaMismatchError(
                f"There is no {what}, because the input of another worker failed; {'; '.join(failed)}."
            )
        return [said["sizes"] for said in every]

    def tell(self, error: Exception) -> None:
        """Lets the others know that there will be no further step from here; does not wait."""
        self._first_step_came()
        # They may know already, or be the ones who told.
        with contextlib.suppress(StratagemError):
            self._watch.give(self._topic, {"error": repr(error)}, self._turn)


def agreed_steps(
    agreement: Agreement, steps: Iterator[HostStep], num_replicas: int, spec: Any, state: Any
) -> Iterator[HostStep]:
    """Yields this worker's steps until every worker has come to its end.

    A worker that comes to its end first takes part in the remaining steps with empty batches; where
    elements are not batches, of which there is no empty one, all end with it. A step is marked if
    its parts are not of one size everywhere, so that all workers run it the same way.

    Args:
        agreement: With the other workers.
        steps: Of this worker.
        num_replicas: Of this worker.
        spec: Of an element, if it is known.
        state: Where this worker's input stands before the first step.
    """
    example: Any = None
    while True:
        step = next(steps, None)
        if step is not None:
            state = step.state
            example = step.whole if step.parts is None else step.parts[0]
        mine = None if step is None else _sizes(step, num_replicas)
        every = agreement.exchange(mine)
        if all(sizes is None for sizes in every):
            return
        if any(sizes is None for sizes in every) and _has_scalars(every):
            return
        if step is None:
            empty = _empty(spec) if example is None else without_rows(example)
            step = HostStep([empty] * num_replicas, None, state)
            uneven = True
        else:
            uneven = any(sizes != every[0] for sizes in every) or len(every[0]) > 1
        if uneven and step.parts is None:
            step = HostStep(_divided(step.whole, num_replicas), None, step.state)
        step.uneven = uneven
        yield step


def _sizes(step: HostStep, num_replicas: int) -> list[Any]:
    """Returns the shapes of the parts, once if all of them are alike, as one program needs them."""
    if step.parts is None:
        shapes = [list(np.shape(leaf)) for leaf in structures.leaves_of(step.whole)]
        return [[[shape[0] // num_replicas, *shape[1:]] for shape in shapes]]
    parts = [[list(np.shape(leaf)) for leaf in structures.leaves_of(p)] for p in step.parts]
    return parts if any(part != parts[0] for part in parts) else parts[:1]


def _has_scalars(every: list[Any]) -> bool:
    return any(not shape for sizes in every for part in sizes or () for shape in part)


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
