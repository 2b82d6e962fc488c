"""The order in which several workers read the same arrays: the leader's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stratagem._src.mesh.program_queue import process_watch

__all__ = ["in_leaders_order"]


def in_leaders_order(batches: Iterator[Any], *, leads: bool) -> Iterator[Any]:
    """Yields batches that are chosen by NumPy's global random numbers, as the leader chooses them.

    Each worker goes on with its own numbers elsewhere. The leader draws the first from its own, so that
    it has the order that one process alone would have had.

    Args:
        batches: Draws random numbers when it is asked for the next one.
        leads: Whether this worker is the leader.
    """
    mine = _described(np.random.get_state()) if leads else None
    every = process_watch().exchange("keras order", mine, "order of an epoch of Keras")
    state = _restored(every[0])
    is_first = True
    while True:
        own = np.random.get_state()
        np.random.set_state(state)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            state = np.random.get_state()
            if not (leads and is_first):
                np.random.set_state(own)
        is_first = False
        yield batch


def _described(state: Any) -> list[Any]:
    kind, keys, *rest = state
    return [kind, keys.tobytes().hex(), *rest]


def _restored(described: list[Any]) -> Any:
    kind, keys, *rest = described
    return (kind, np.frombuffer(bytes.fromhex(keys), np.uint32), *rest)
