"""``PerWorkerValues``: values that are different on every worker."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.owned_memory import owned
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker
from stratagem._src.parameter_server.protocol.shipping import ByReference, Parcel, check_parts, pack

__all__ = ["PerWorkerValues"]


class PerWorkerValues(ByReference):
    """One value for each worker; a scheduled function gets the one of the worker that runs it.

    The values are taken as they are now, for the workers that are known when it is first scheduled. A
    worker that joins later has none, and runs no function that is given it.

    Args:
        values: ``RemoteValue`` objects, per-worker datasets or any others, in the order of the workers.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(structures.map_structure(_owned_leaf, value) for value in values)
        self._workers: tuple[int, ...] | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in the order of the workers."""
        return self._values

    @functools.cached_property
    def packed(self) -> tuple[ByReference | Parcel, ...]:
        """The values as they travel.

        Raises:
            ShippingError: If one cannot be sent to a worker.
        """
        packed: list[ByReference | Parcel] = []
        for index, value in enumerate(self._values):
            try:
                stays = isinstance(value, RemoteValue | DefinedOnWorker)
                packed.append(value if stays else pack(value))
            except Exception as error:
                name = f"Value {index} of PerWorkerValues"
                raise check_parts([(name, value)], error, "Use plain data.") from error
        return tuple(packed)

    def bind(self, workers: Sequence[int]) -> frozenset[int]:
        """Returns the workers whose values these are; the first call decides.

        Args:
            workers: The workers that are known now, in order.

        Raises:
            InvalidArgumentError: If there are more or fewer than values, or others than the first time.
            ShippingError: If a value cannot be sent.
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
                f"with these, got the workers {list(workers)}. Make new ones for another coordinator."
            )
        return bound

    def on(self, worker: int) -> ByReference | Parcel:
        """Returns the value of a worker as it travels."""
        assert self._workers is not None, "bound when it was scheduled"
        return self.packed[self._workers.index(worker)]

    def __repr__(self) -> str:
        return f"PerWorkerValues({self._values!r})"


def _owned_leaf(leaf: Any) -> Any:
    return owned(leaf) if isinstance(leaf, np.ndarray) else leaf
