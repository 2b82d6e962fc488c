"""Several reads or updates of variables that other processes hold, in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.variables.remotely_held_variable import (
    RemotelyHeldVariable,
    RemoteStorage,
    operand_arrays,
)
from stratagem._src.variables.updates import Update

__all__ = ["fetch", "send"]


def fetch(reads: Sequence[tuple[RemotelyHeldVariable, Any]]) -> list[np.ndarray[Any, Any]]:
    """Returns variables' values, or rows of them, with one message to each process that holds any.

    Args:
        reads: Pairs of a variable and the rows' numbers, of any shape, or ``None`` for all of it.
    """
    requests = _Batches()
    asked = []
    for variable, indices in reads:
        rows = None if indices is None else variable.row_numbers(indices)
        asked.append((rows, requests.add(variable.storage, variable.read_requests(rows))))
    answers = {key: storage.pull(batch) for key, (storage, batch) in requests.batches.items()}
    values = []
    for (variable, indices), (rows, (key, part)) in zip(reads, asked, strict=True):
        value = variable.assemble(answers[key][part], rows)
        if indices is not None:
            value = value.reshape(np.shape(indices) + variable.row_shape)
        values.append(value)
    return values


def send(updates: Sequence[tuple[RemotelyHeldVariable, Update, Any]]) -> None:
    """Carries out updates, with one message to each process that holds a variable.

    Args:
        updates: The variable, what to do, and the operand: an array or a structure of arrays.
    """
    requests = _Batches()
    for variable, update, operand in updates:
        requests.add(variable.storage, variable.update_requests(update, operand_arrays(operand)))
    for storage, batch in requests.batches.values():
        storage.push(batch)


class _Batches:
    """Requests, sorted by where they go."""

    def __init__(self) -> None:
        self.batches: dict[int, tuple[RemoteStorage, list[Any]]] = {}

    def add(self, storage: RemoteStorage, requests: list[Any]) -> tuple[int, slice]:
        """Adds requests and returns which batch they are in, and where."""
        _, batch = self.batches.setdefault(id(storage), (storage, []))
        start = len(batch)
        batch.extend(requests)
        return id(storage), slice(start, len(batch))
