"""``ClosureSpec``: a closure's function, arguments and result reference."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from stratagem._src.parameter_server.coordinator.references import WeakRemoteValue
from stratagem._src.parameter_server.coordinator.remote_value import RemoteValue
from stratagem._src.parameter_server.protocol.definition import Definition
from stratagem._src.parameter_server.protocol.serialization import Payload

__all__ = ["ClosureSpec"]

_NOTHING = Payload(b"")


class ClosureSpec(NamedTuple):
    """The content of a closure.

    Args:
        definition: Its function; ``None`` when it will not run any more.
        arguments: The pickled ``(args, kwargs)``.
        value: The ``RemoteValue`` that gets the result, while it is referenced.
    """

    definition: Definition | None
    arguments: Payload
    value: weakref.ref[RemoteValue]

    def without_values(self) -> ClosureSpec:
        """Returns the spec to keep for a closure that has run and may have to run again."""
        references = tuple(
            WeakRemoteValue(reference) if isinstance(reference, RemoteValue) else reference
            for reference in self.arguments.references
        )
        return self._replace(arguments=self.arguments._replace(references=references))

    def emptied(self) -> ClosureSpec:
        """Returns the spec to keep for a closure that will not run any more."""
        return self._replace(definition=None, arguments=_NOTHING)
