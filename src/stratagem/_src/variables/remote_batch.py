"""Batched reads and updates of remote variables: one message to each process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.variables.base_remote_variable import (
    BaseRemoteVariable,
    RemoteStorage,
    operand_arrays,
)
from stratagem._src.variables.updates import Update

__all__ = ["fetch", "send"]


def fetch(reads: Sequence[tuple[BaseRemoteVariable, Any]]) -> list[np.ndarray[Any, Any]]:
    """Fetches values of variables, or rows of them, with one message to each process.

    Args:
        reads: Pairs of a variable and row indices of any shape, or ``None`` for the full value.
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


def send(updates: Sequence[tuple[BaseRemoteVariable, Update, Any]]) -> None:
    """Sends updates, with one message to each process.

    Args:
        updates: The variable, the update, and its operand: an array or a structure of arrays.
    """
    requests = _Batches()
    for variable, update, operand in updates:
        requests.add(variable.storage, variable.update_requests(update, operand_arrays(operand)))
    for storage, batch in requests.batches.values():
        storage.push(batch)


class _Batches:
    """Requests grouped by destination."""

    def __init__(self) -> None:
        self.batches: dict[int, tuple[RemoteStorage, list[Any]]] = {}

    def add(self, storage: RemoteStorage, requests: list[Any]) -> tuple[int, slice]:
        """Adds requests; returns the key of their batch and their slice of it."""
        _, batch = self.batches.setdefault(id(storage), (storage, []))
        start = len(batch)
        batch.extend(requests)
        return id(storage), slice(start, len(batch))
