"""``ParameterService``: the RPC methods of a parameter server."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence

import cloudpickle

from stratagem._src.parameter_server.parameter_messages import (
    decode_fields,
    decode_reads,
    decode_updates,
    encode_fields,
)
from stratagem._src.parameter_server.server.checkpoint_service import CheckpointService
from stratagem._src.parameter_server.server.server_function import INITIALIZE, ServerFunction
from stratagem._src.parameter_server.server.store import Store
from stratagem._src.parameter_server.server.stored_array import Array
from stratagem._src.parameter_server.server.update_group import GroupedUpdate, apply_atomically
from stratagem._src.telemetry.measurement.recorder import span
from stratagem._src.transport.message import Handler, Message
from stratagem._src.transport.remote_error import exception_to_bytes

__all__ = ["ParameterService"]


class ParameterService:
    """A variable store and its RPC handlers.

    >>> sorted(ParameterService().handlers)[:3]
    ['ps/add_function', 'ps/attach', 'ps/blank']
    """

    def __init__(self) -> None:
        self.store = Store()
        self._checkpoints = CheckpointService(self.store)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The methods, for an ``TransportServer``."""
        return {
            "ps/ping": lambda message: encode_fields(**self.store.status()),
            "ps/attach": self._attach,
            "ps/holdings": lambda message: encode_fields(**self.store.variable_records()),
            "ps/take_over": self._take_over,
            "ps/note": self._note,
            "ps/restored": self._restored,
            "ps/check_held": self._check_held,
            "ps/blank": lambda message: encode_fields(names=self.store.uninitialized()),
            "ps/create": self._create,
            "ps/fill": self._fill,
            "ps/delete": self._delete,
            "ps/pull": _traced("serve pull", "pull", self._pull),
            "ps/push": _traced("serve push", "push", self._push),
            "ps/add_function": self._add_function,
            "ps/call": _traced("serve call", "push", self._call),
            "ps/take": self._for_checkpoint(self._checkpoints.snapshot),
            "ps/write": self._for_checkpoint(self._checkpoints.write),
            "ps/forget": self._for_checkpoint(self._checkpoints.forget),
            "ps/verify": self._for_checkpoint(self._checkpoints.verify),
            "ps/load": self._for_checkpoint(self._checkpoints.load),
        }

    def _for_checkpoint(self, do: Callable[..., None]) -> Handler:
        def handle(message: Message) -> Message:
            do(**decode_fields(message))
            return Message()

        return handle

    def _attach(self, message: Message) -> Message:
        self.store.attach(**decode_fields(message))
        return encode_fields(**self.store.status())

    def _take_over(self, message: Message) -> Message:
        self.store.take_over(**decode_fields(message))
        return encode_fields(**self.store.status())

    def _note(self, message: Message) -> Message:
        self.store.add_record(**decode_fields(message))
        return Message()

    def _restored(self, message: Message) -> Message:
        self.store.mark_restored()
        return Message()

    def _check_held(self, message: Message) -> Message:
        for variable in decode_fields(message)["variables"]:
            self.store.find(variable, allow_uninitialized=True)
        return Message()

    def _create(self, message: Message) -> Message:
        fields = decode_fields(message)
        self.store.create(**{**fields, "shape": tuple(fields["shape"])})
        for value in message.arrays:
            self.store.find(fields["variable"], allow_uninitialized=True).assign(value)
        return Message()

    def _fill(self, message: Message) -> Message:
        """Sets consecutive rows of a variable that is being created."""
        fields = decode_fields(message)
        (rows,) = message.arrays
        self.store.find(fields["variable"], allow_uninitialized=True).write_rows(
            fields["start"], rows
        )
        return Message()

    def _delete(self, message: Message) -> Message:
        self.store.delete(decode_fields(message)["variables"])
        return Message()

    def _pull(self, message: Message) -> Message:
        return Message(
            arrays=tuple(
                self.store.find(variable).read(rows) for variable, rows in decode_reads(message)
            )
        )

    def _push(self, message: Message) -> Message:
        """Applies groups of updates; replies with the pickled errors of the groups that failed."""
        groups = decode_updates(message)
        digests = {digest for group in groups for *_, digest in group if digest}
        functions = self.store.functions(digests) if digests else {}
        if None in functions.values():
            return _missing_functions(functions)
        total = sum(array.nbytes for array in message.arrays)
        errors: dict[int, bytes] = {}
        for index, group in enumerate(groups):
            try:
                self._update(group, functions, total)
            except Exception as error:
                errors[index] = exception_to_bytes(error)
        return Message(pickle.dumps(errors)) if errors else Message()

    def _update(
        self,
        group: Sequence[tuple[str, str, tuple[Array, ...], str]],
        functions: Mapping[str, ServerFunction | None],
        message_bytes: int,
    ) -> None:
        # Adopting an operand keeps the memory of the whole message alive, so only an operand that is at
        # least half of the message is adopted.
        apply_atomically(
            [
                GroupedUpdate(
                    self.store.find(variable, allow_uninitialized=update == "assign"),
                    update,
                    operands,
                    functions.get(digest),
                    adopt=2 * sum(operand.nbytes for operand in operands) >= message_bytes,
                )
                for variable, update, operands, digest in group
            ]
        )
        self.store.count_updates(len(group))

    def _add_function(self, message: Message) -> Message:
        digest, pickled = pickle.loads(message.body)
        self.store.add_function(digest, pickled)
        return Message()

    def _call(self, message: Message) -> Message:
        """Applies one function update and returns its result, pickled."""
        ((variable, update, operands, digest),) = decode_updates(message)[0]
        functions = self.store.functions([digest])
        function = functions[digest]
        if function is None:
            return _missing_functions(functions)
        stored = self.store.find(variable, allow_uninitialized=update == INITIALIZE)
        function.check(stored, operands)
        result = function.call(stored, operands)
        if function.is_update:
            self.store.count_updates(1)
        return Message(cloudpickle.dumps(result))


def _traced(name: str, kind: str, handle: Handler) -> Handler:
    def traced(message: Message) -> Message:
        with span(name, kind):
            return handle(message)

    return traced


def _missing_functions(functions: Mapping[str, ServerFunction | None]) -> Message:
    """Returns the reply that no update was applied, because functions must be sent first."""
    return encode_fields(missing=[digest for digest, known in functions.items() if known is None])
