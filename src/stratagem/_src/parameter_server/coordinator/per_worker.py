"""``PerWorkerValues``: one value for each worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.owned_memory import owned
from stratagem._src.core.types import Leaf
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker
from stratagem._src.parameter_server.protocol.serialization import (
    ByReference,
    Payload,
    pack,
    unpicklable_part_error,
)

__all__ = ["PerWorkerValues"]


class PerWorkerValues(ByReference):
    """One value for each worker; a scheduled function gets the value of the worker that runs it.

    The values are copied now, and belong to the workers that are known when it is first scheduled. A
    worker that joins later has no value, and does not run functions with this argument.

    Args:
        values: ``RemoteValue`` objects, per-worker datasets or other values, in the order of the workers.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(structures.map_structure(_owned_leaf, value) for value in values)
        self._workers: tuple[int, ...] | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in the order of the workers."""
        return self._values

    @functools.cached_property
    def packed(self) -> tuple[ByReference | Payload, ...]:
        """The serialized values.

        Raises:
            ShippingError: If a value cannot be pickled.
        """
        packed: list[ByReference | Payload] = []
        for index, value in enumerate(self._values):
            try:
                stays = isinstance(value, RemoteValue | DefinedOnWorker)
                packed.append(value if stays else pack(value))
            except Exception as error:
                name = f"Value {index} of PerWorkerValues"
                raise unpicklable_part_error([(name, value)], error, "Use plain data.") from error
        return tuple(packed)

    def bind(self, workers: Sequence[int]) -> frozenset[int]:
        """Returns the workers that the values belong to; the first call decides.

        Args:
            workers: The known workers, in order.

        Raises:
            InvalidArgumentError: If their number differs from the number of values, or a bound worker is
                missing.
            ShippingError: If a value cannot be pickled.
        """
        if self._workers is None:
            if len(self.packed) != len(workers):
                raise InvalidArgumentError(
                    f"PerWorkerValues must have one value for each of {len(workers)} workers, got "
                    f"{len(self.packed)}."
                )
            self._workers = tuple(workers)
        bound = frozenset(self._workers)
        if not bound <= set(workers):
            raise InvalidArgumentError(
                f"PerWorkerValues were first used with the workers {sorted(bound)} and must be used "
                f"with these, got the workers {list(workers)}. Create new ones for another coordinator."
            )
        return bound

    def on(self, worker: int) -> ByReference | Payload:
        """Returns the serialized value of a worker."""
        assert self._workers is not None, "bound when it was scheduled"
        return self.packed[self._workers.index(worker)]

    def __repr__(self) -> str:
        return f"PerWorkerValues({self._values!r})"


def _owned_leaf(leaf: Leaf) -> Any:
    return owned(leaf) if isinstance(leaf, np.ndarray) else leaf
