"""The order in which several workers read the same arrays: the leader's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stratagem._src.mesh.dispatch_queue import process_watch

__all__ = ["in_leaders_order"]


def in_leaders_order(batches: Iterator[Any], *, leads: bool) -> Iterator[Any]:
    """Yields batches that are chosen by NumPy's global random numbers, as the leader chooses them.

    The global stream of each worker advances as in one process alone, as long as it is where the
    leader's is: workers that were seeded alike draw the same arrays afterwards. A stream that is elsewhere
    stays where it is, because no order is drawn from it.

    Args:
        batches: Draws random numbers when it is asked for the next one.
        leads: Whether this worker is the leader.
    """
    mine = _described(np.random.get_state()) if leads else None
    every = process_watch().exchange("keras order", mine, "order of an epoch of Keras")
    state = _restored(every[0])
    while True:
        own = np.random.get_state()
        in_step = _equal(own, state)
        np.random.set_state(state)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            state = np.random.get_state()
            if not in_step:
                np.random.set_state(own)
        yield batch


def _equal(one: Any, other: Any) -> bool:
    # The count changes with each draw: it tells most of them apart without a look at the keys.
    return bool(one[2:] == other[2:] and np.array_equal(one[1], other[1]))


def _described(state: Any) -> list[Any]:
    kind, keys, *rest = state
    return [kind, keys.tobytes().hex(), *rest]


def _restored(described: list[Any]) -> Any:
    kind, keys, *rest = described
    return (kind, np.frombuffer(bytes.fromhex(keys), np.uint32), *rest)
