"""``ParameterService``: answers what clients ask of a parameter server."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import cloudpickle

from stratagem.cluster.transport.message import Handler, Message
from stratagem.parameter_server.messages import (
    decode_fields,
    decode_reads,
    decode_updates,
    encode_fields,
)
from stratagem.parameter_server.server_function import ServerFunction
from stratagem.parameter_server.store import Store

__all__ = ["ParameterService"]


class ParameterService:
    """A store, and the methods by which it is reached.

    >>> sorted(ParameterService().handlers)[:3]
    ['ps/add_function', 'ps/attach', 'ps/call']
    """

    def __init__(self) -> None:
        self.store = Store()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The methods, for an ``Endpoint``."""
        return {
            "ps/ping": lambda message: Message(),
            "ps/attach": self._attach,
            "ps/create": self._create,
            "ps/fill": self._fill,
            "ps/delete": self._delete,
            "ps/pull": self._pull,
            "ps/push": self._push,
            "ps/add_function": self._add_function,
            "ps/call": self._call,
        }

    def _attach(self, message: Message) -> Message:
        self.store.attach(**decode_fields(message))
        return Message()

    def _create(self, message: Message) -> Message:
        fields = decode_fields(message)
        self.store.create(**{**fields, "shape": tuple(fields["shape"])})
        for value in message.arrays:
            self.store.find(fields["variable"]).assign(value)
        return Message()

    def _fill(self, message: Message) -> Message:
        """Sets consecutive rows of a variable that is being created."""
        fields = decode_fields(message)
        (rows,) = message.arrays
        self.store.find(fields["variable"]).write_rows(fields["start"], rows)
        return Message()

    def _delete(self, message: Message) -> Message:
        self.store.delete(decode_fields(message)["variables"])
        return Message()

    def _pull(self, message: Message) -> Message:
        return Message(
            arrays=tuple(
                self.store.read(variable, rows) for variable, rows in decode_reads(message)
            )
        )

    def _push(self, message: Message) -> Message:
        updates = list(decode_updates(message))
        functions = self.store.functions({digest for *_, digest in updates if digest})
        if None in functions.values():
            return _ask_for(functions)
        for variable, *_ in updates:
            self.store.find(variable)
        total = sum(array.nbytes for array in message.arrays)
        for variable, update, operands, digest in updates:
            function = functions.get(digest)
            if function is not None:
                function.call(self.store.find(variable), operands)
            else:
                own = sum(array.nbytes for array in operands)
                self.store.update(variable, update, operands, own / total if total else 0.0)
        return Message()

    def _add_function(self, message: Message) -> Message:
        digest, pickled = pickle.loads(message.body)
        self.store.add_function(digest, pickled)
        return Message()

    def _call(self, message: Message) -> Message:
        """Carries out one function update and returns its result, pickled."""
        ((variable, _, operands, digest),) = decode_updates(message)
        functions = self.store.functions([digest])
        function = functions[digest]
        if function is None:
            return _ask_for(functions)
        return Message(cloudpickle.dumps(function.call(self.store.find(variable), operands)))


def _ask_for(functions: Mapping[str, ServerFunction | None]) -> Message:
    """Returns the answer that nothing was done, because functions have to be sent first."""
    return encode_fields(missing=[digest for digest, known in functions.items() if known is None])
