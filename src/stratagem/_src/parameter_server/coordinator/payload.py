"""``Payload``: a closure's function and arguments, and where its result goes."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from stratagem._src.parameter_server.coordinator.references import WeakRemoteValue
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import Definition
from stratagem._src.parameter_server.protocol.shipping import Parcel

__all__ = ["Payload"]

_NOTHING = Parcel(b"")


class Payload(NamedTuple):
    """What a closure consists of.

    Args:
        definition: Its function; ``None`` when it will not run any more.
        arguments: The parcel of ``(args, kwargs)``.
        value: Where the result goes, as long as somebody has it.
    """

    definition: Definition | None
    arguments: Parcel
    value: weakref.ref[RemoteValue]

    def without_values(self) -> Payload:
        """Returns what is kept of a closure that has run and may have to run again."""
        references = tuple(
            WeakRemoteValue(reference) if isinstance(reference, RemoteValue) else reference
            for reference in self.arguments.references
        )
        return self._replace(arguments=self.arguments._replace(references=references))

    def emptied(self) -> Payload:
        """Returns what is kept of a closure that will not run any more."""
        return self._replace(definition=None, arguments=_NOTHING)
