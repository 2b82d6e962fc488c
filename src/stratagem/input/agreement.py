"""What the workers of one dataset agree on: whether there is a next step, and how large its parts are."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stratagem.core import structures
from stratagem.core.errors import InvalidArgumentError, ReplicaMismatchError, StratagemError
from stratagem.core.launch import process_watch
from stratagem.data.tensor_spec import TensorSpec
from stratagem.input.specs import PerReplicaSpec
from stratagem.input.worker_input import HostStep, take_rows

__all__ = ["Agreement", "agreed_steps"]

_numbers = itertools.count()


class Agreement:
    """Talks with the other workers about the steps of one iteration.

    Args:
        closed: Set when nobody wants another step.
    """

    def __init__(self, closed: threading.Event) -> None:
        self._closed = closed
        self._channel = f"input {next(_numbers)}"

    def exchange(self, sizes: Any, number: int) -> list[Any]:
        """Returns the sizes that every worker has in a step; nothing if nobody wants it any more.

        Raises:
            ReplicaMismatchError: If the input of another worker failed.
        """
        what = f"step {number} of a distributed dataset"
        every = self._put({"sizes": sizes}, what, self._closed.is_set)
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
        # They may know already, or be the ones who told.
        with contextlib.suppress(StratagemError):
            self._put({"error": repr(error)}, "a distributed dataset that failed", lambda: True)

    def _put(self, said: dict[str, Any], what: str, cancelled: Callable[[], bool]) -> list[Any]:
        return process_watch().exchange(
            self._channel, said, what, in_sequence=False, cancelled=cancelled
        )


def agreed_steps(
    agreement: Agreement, steps: Iterator[HostStep], num_replicas: int, spec: Any, state: Any
) -> Iterator[HostStep]:
    """Yields this worker's steps until every worker has come to its end.

    A worker that comes to its end first takes part in the remaining steps with empty batches. A step
    is marked if its parts are not of one size everywhere, so that all workers run it the same way.

    Args:
        agreement: With the other workers.
        steps: Of this worker.
        num_replicas: Of this worker.
        spec: Of an element, if it is known.
        state: Where this worker's input stands before the first step.
    """
    empty: Any = None
    for number in itertools.count():
        step = next(steps, None)
        if step is not None:
            state = step.state
            example = step.whole if step.parts is None else step.parts[0]
            empty = take_rows(example, (0, 0))
        mine = None if step is None else _sizes(step, num_replicas)
        every = agreement.exchange(mine, number)
        if all(sizes is None for sizes in every):
            return
        if step is None:
            empty = _empty(spec) if empty is None else empty
            step = HostStep([empty] * num_replicas, None, state)
            uneven = True
        else:
            flat = [size for sizes in every for size in sizes or [None]]
            uneven = any(size != flat[0] for size in flat)
        if uneven and step.parts is None:
            step = HostStep(_divided(step.whole, num_replicas), None, step.state)
        step.uneven = uneven
        yield step


def _sizes(step: HostStep, num_replicas: int) -> list[Any]:
    """Returns what must be equal in all replicas for one program to take the step."""
    parts = [step.whole] if step.parts is None else step.parts
    shapes = [[list(np.shape(leaf)) for leaf in structures.leaves_of(part)] for part in parts]
    if step.parts is not None:
        return shapes
    rows = [[shape[0] // num_replicas, *shape[1:]] for shape in shapes[0]]
    return [rows] * num_replicas


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
