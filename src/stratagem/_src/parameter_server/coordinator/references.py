"""References in the arguments of a closure, and how a worker resolves them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from stratagem._src.parameter_server.coordinator.closure import Closure
from stratagem._src.parameter_server.coordinator.per_worker import PerWorkerValues
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import DefinedOnWorker, Definition
from stratagem._src.parameter_server.protocol.serialization import ByReference, Payload
from stratagem._src.parameter_server.protocol.worker_messages import InlineValue, Resource, ValueAt

if TYPE_CHECKING:
    from stratagem._src.parameter_server.coordinator.worker_link import WorkerLink

__all__ = ["SentReference", "WeakRemoteValue", "closures_needed", "refer"]

SentReference: TypeAlias = Resource | InlineValue | ValueAt
"""A reference as it is sent to a worker."""


class WeakRemoteValue(ByReference):
    """A weak reference to an argument of a function that has run; it is needed only if it runs again."""

    def __init__(self, value: RemoteValue) -> None:
        self.value = weakref.ref(value)


def closures_needed(references: Iterable[Any]) -> Iterable[Closure]:
    """Yields the closures whose results are among the references."""
    for reference in references:
        if isinstance(reference, RemoteValue):
            yield reference._closure
        elif isinstance(reference, PerWorkerValues):
            yield from closures_needed(reference.values)


def refer(
    reference: ByReference, worker: int, links: Mapping[int, WorkerLink]
) -> tuple[Definition | None, SentReference]:
    """Returns how a worker finds an argument's referent, and the definition that it needs for it.

    Args:
        reference: The reference; if it is the result of a closure, that closure has ended.
        worker: The index of the worker.
        links: The links to all workers; one of them may hold the result.
    """
    found: Any = reference
    if isinstance(reference, WeakRemoteValue):
        found = reference.value()
    if isinstance(reference, PerWorkerValues):
        found = reference.on(worker)
    if isinstance(found, DefinedOnWorker):
        return found.definition, Resource(found.definition.number)
    if isinstance(found, Payload):
        return None, InlineValue(found)
    assert isinstance(found, RemoteValue)
    if found._payload is not None:
        return None, InlineValue(found._payload)
    closure = found._closure
    assert closure.where is not None
    link = links[closure.where]
    assert link.session is not None
    return None, ValueAt(closure.number, link.session, link.address, link.task)
