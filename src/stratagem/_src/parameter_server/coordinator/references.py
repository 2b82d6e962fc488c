"""What the arguments of a closure refer to, and how a worker finds it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from stratagem._src.parameter_server.coordinator.closure import Closure
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker, Definition
from stratagem._src.parameter_server.protocol.shipping import ByReference, Parcel
from stratagem._src.parameter_server.protocol.worker_messages import InlineValue, Resource, ValueAt

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink

__all__ = ["SentReference", "WeakRemoteValue", "closures_needed", "refer"]

SentReference: TypeAlias = Resource | InlineValue | ValueAt
"""How a worker is told where something is."""


class WeakRemoteValue(ByReference):
    """Stands for the argument of a function that has run: only if it runs again, its closure keeps it."""

    def __init__(self, value: RemoteValue) -> None:
        self.value = weakref.ref(value)


def closures_needed(references: Iterable[Any]) -> Iterable[Closure]:
    """Yields the closures whose results are among the arguments of another."""
    for reference in references:
        if isinstance(reference, RemoteValue):
            yield reference._closure
        elif isinstance(reference, PerWorkerValues):
            yield from closures_needed(reference.values)


def refer(
    reference: ByReference, worker: int, links: Mapping[int, WorkerLink]
) -> tuple[Definition | None, SentReference]:
    """Returns how a worker finds what an argument refers to, and a definition that it needs.

    Args:
        reference: Stands for the argument, whose closure, if it is the result of one, has ended.
        worker: Who is to find it.
        links: The links to all workers, of which one may hold it.
    """
    found: Any = reference
    if isinstance(reference, WeakRemoteValue):
        found = reference.value()
    if isinstance(reference, PerWorkerValues):
        found = reference.on(worker)
    if isinstance(found, DefinedOnWorker):
        return found.definition, Resource(found.definition.number)
    if isinstance(found, Parcel):
        return None, InlineValue(found)
    assert isinstance(found, RemoteValue)
    if found._parcel is not None:
        return None, InlineValue(found._parcel)
    closure = found._closure
    assert closure.where is not None
    link = links[closure.where]
    assert link.session is not None
    return None, ValueAt(closure.number, link.session, link.address, link.task)
