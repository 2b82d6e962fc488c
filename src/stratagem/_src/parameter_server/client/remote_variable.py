"""``RemoteVariable``: a variable on a parameter server."""

from __future__ import annotations

import functools
import math
import threading
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.core.types import ArrayLike
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.parameter_server.client.initial_value import InitialValue
from stratagem._src.parameter_server.client.parameter_client import (
    ParameterClient,
    ReadRequest,
    UpdateRequest,
    client_for,
)
from stratagem._src.parameter_server.client.shards import ShardedRows, VariableShard, make_shards
from stratagem._src.parameter_server.client.unclaimed_variables import VariableRecord
from stratagem._src.parameter_server.server.server_function import INITIALIZE
from stratagem._src.parameter_server.server.stored_array import Array, aligned_empty
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["UNNAMED", "Handle", "RemoteVariable"]

UNNAMED = "Variable"
"""The default name of a variable."""


class Handle(NamedTuple):
    """The description of a variable that is sent to other processes; enough to use it there.

    Attributes:
        table: The handle of the variable that this one is a shard of, if it is one.
    """

    id: str
    owner: str
    servers: tuple[str, ...]
    shards: tuple[VariableShard, ...]
    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    synchronization: VariableSynchronization
    aggregation: VariableAggregation
    table: Handle | None = None


class RemoteVariable(BaseRemoteVariable):
    """A variable on one parameter server.

    ``Variable(...)`` in the scope of a ``ParameterServerStrategy`` returns one. It is pickled as a small
    handle, and a process has one object per variable however often the handle arrives. The server frees
    the memory when the object that created the variable is garbage-collected.

    Args:
        strategy: The strategy in whose scope it is created.
        client: The client of the parameter servers.
        initial: The initial value.
        servers: Index of the server that holds it.
        sizes: Number of rows on each of ``servers``.
        name: Its name.
        trainable: Whether optimizers should update it.
        synchronization: Stored, without effect: there is one value for all workers.
        aggregation: How updates of one worker's replicas are combined.
    """

    __slots__ = ("_client", "_handle")

    def __init__(
        self,
        strategy: StrategyProtocol,
        client: ParameterClient,
        initial: InitialValue,
        *,
        servers: Sequence[int],
        sizes: Sequence[int] | None = None,
        name: str | None = None,
        trainable: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> None:
        if frames.current_frame() is not None:
            raise ContextError(
                f"Variable {name or 'Variable'!r} cannot be created on a parameter server inside of a "
                "function. Create it outside."
            )
        identity = uuid.uuid4().hex
        rows = initial.shape[0] if initial.shape else 1
        handle = Handle(
            identity,
            client.registry.owner,
            client.servers,
            make_shards(identity, servers, [rows] if sizes is None else sizes),
            name or UNNAMED,
            initial.shape,
            initial.dtype.name,
            _is_trainable(trainable, synchronization),
            synchronization,
            aggregation,
        )
        self._use(strategy, client, handle)
        self._own()

        def create(index: int, shard: VariableShard) -> None:
            name, shape = self._shard_name(index), self._shard_shape(shard)
            _create(client, initial, shard, name, shape)

        if initial.must_fill_in_order:
            for index, shard in enumerate(handle.shards):
                create(index, shard)
        else:
            client.in_parallel(dict(enumerate(handle.shards)), create)
        client.publish_record(
            VariableRecord(identity, handle.name, handle.shape, handle.dtype, handle.shards)
        )

    @classmethod
    def from_record(
        cls,
        strategy: StrategyProtocol,
        client: ParameterClient,
        record: VariableRecord,
        *,
        name: str | None,
        trainable: bool | None,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> Self:
        """Returns a variable that an earlier coordinator created, with its current value.

        Args:
            strategy: The strategy in whose scope the program creates it again.
            client: The client of the parameter servers.
            record: The record of the variable on the servers.
            name: As in ``RemoteVariable``, like the rest.
            trainable: Whether optimizers should update it.
            synchronization: Stored, without effect.
            aggregation: How updates of one worker's replicas are combined.
        """
        variable = cls.__new__(cls)
        handle = Handle(
            record.id,
            client.registry.owner,
            client.servers,
            record.shards,
            name or UNNAMED,
            record.shape,
            record.dtype,
            _is_trainable(trainable, synchronization),
            synchronization,
            aggregation,
        )
        variable._use(strategy, client, handle)
        variable._own()
        return variable

    def _own(self) -> None:
        """Ties the variable's lifetime to this object: the server frees it with this object."""
        weakref.finalize(self, _discard, self._client, self._handle).atexit = False
        with _known_lock:
            _known[_key(self._handle)] = self

    def _use(self, strategy: StrategyProtocol, client: ParameterClient, handle: Handle) -> None:
        self._client = client
        self._handle = handle
        super().__init__(
            strategy,
            name=handle.name,
            shape=handle.shape,
            dtype=handle.dtype,
            trainable=handle.trainable,
            synchronization=handle.synchronization,
            aggregation=handle.aggregation,
        )

    def _duplicate(self) -> Self:
        return type(self)(
            self._strategy,
            self._client,
            InitialValue.of(self.pull()),
            servers=[shard.server for shard in self.shards],
            name=self._name,
            trainable=self._trainable,
            synchronization=self._synchronization,
            aggregation=self._aggregation,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return receive, (type(self), self._strategy, self._handle)

    # --- attributes -----------------------------------------------------------------------------

    def restart_at_zero(self) -> None:
        """Sets the value to zeros when servers are restored, before the checkpoint is."""
        known = self._client.restarting_at_zero
        known[self.id] = weakref.ref(self, functools.partial(_forget, known, self.id))

    @property
    def id(self) -> str:
        """Its id in all processes."""
        return self._handle.id

    @property
    def shards(self) -> tuple[VariableShard, ...]:
        """Its shards: one for a variable that is not sharded."""
        return self._handle.shards

    @property
    def storage(self) -> ParameterClient:
        """The client of the parameter servers."""
        return self._client

    @property
    def device(self) -> str:
        """Full name of the device that holds the value."""
        return device_of(self._handle.shards[0])

    def __repr__(self) -> str:
        return (
            f"<sg.Variable '{self.name}' shape={self._shape} dtype={self.dtype.name} "
            f"device={self.device}>"
        )

    def __len__(self) -> int:
        return len(self._value()) if not self._shape else self.program_shape[0]

    def numpy(self) -> Array:
        """Returns the value as a NumPy array."""
        if frames.current_frame() is not None:
            return super().numpy()
        return self.pull()

    def array_to_keep(self, operand: ArrayLike) -> Array:
        """Returns an operand as an array whose memory cannot change before it is sent."""
        # Outside of functions, the array is sent before the call returns, so no copy is needed.
        eager = frames.current_frame() is None
        return np.asarray(operand) if eager else super().array_to_keep(operand)

    # --- requests -------------------------------------------------------------------------------

    def read_requests(self, rows: Array | None = None) -> list[ReadRequest]:
        """Returns the requests that read the full value, or the rows at these indices."""
        if rows is None:
            return [self._read(shard, None, shard.stop - shard.start) for shard in self.shards]
        return [
            self._read(shard, local, len(local))
            for shard, local, _ in ShardedRows(self.shards, rows).parts()
        ]

    def _read(self, shard: VariableShard, rows: Array | None, count: int) -> ReadRequest:
        return ReadRequest(shard.id, shard.server, rows, count * self._row_bytes)

    def assemble(self, parts: Sequence[Array], rows: Array | None = None) -> Array:
        """Returns the value, or the rows, from the replies to ``read_requests``."""
        if rows is None:
            if len(parts) == 1:
                return parts[0]
            return np.concatenate(parts, out=aligned_empty(self.program_shape, self.dtype))
        if not len(rows):
            return np.empty((0, *self.row_shape), self.dtype)
        return ShardedRows(self.shards, rows).combine(parts, self.row_shape, self.dtype)

    def update_requests(self, update: Update, operands: tuple[Array, ...]) -> list[UpdateRequest]:
        """Returns the requests that apply ``update``, one for each shard that it changes."""
        (shard,) = self.shards
        return [UpdateRequest(shard.id, shard.server, update.name, operands, update.body)]

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.program_shape[1:]) * self.dtype.itemsize

    def _shard_name(self, index: int) -> str:
        return self._name

    def _shard_shape(self, shard: VariableShard) -> tuple[int, ...]:
        return self.program_shape


def _is_trainable(trainable: bool | None, synchronization: VariableSynchronization) -> bool:
    on_read = synchronization is VariableSynchronization.ON_READ
    return (not on_read) if trainable is None else bool(trainable)


def _create(
    client: ParameterClient,
    initial: InitialValue,
    shard: VariableShard,
    name: str,
    shape: Sequence[int],
) -> None:
    full = initial.small_array()
    if full is not None:
        value = full[shard.start : shard.stop] if full.ndim else full
        client.create(shard.id, shard.server, name, shape, initial.dtype, value)
        return
    client.create(shard.id, shard.server, name, shape, initial.dtype)
    function = initial.server_function(shard.start)
    if function is not None:
        request = UpdateRequest(shard.id, shard.server, INITIALIZE, (), function)
        client.call([request], work_bytes=math.prod(shape) * initial.dtype.itemsize)
        return
    for start, rows in initial.blocks(shard.start, shard.stop):
        client.fill(shard.id, shard.server, start, rows)


def _discard(client: ParameterClient, handle: Handle) -> None:
    client.registry.drop(handle.id)
    for shard in handle.shards:
        client.discard(shard.id, shard.server)


def device_of(shard: VariableShard) -> str:
    """Returns the full name of the device that holds a shard."""
    return f"/job:ps/replica:0/task:{shard.server}/device:CPU:0"


_known: weakref.WeakValueDictionary[tuple[str, str], RemoteVariable] = weakref.WeakValueDictionary()
_known_lock = threading.RLock()  # reentrant: a signal handler may interrupt its holder


def _key(handle: Handle) -> tuple[str, str]:
    # A coordinator that takes over has its own strategy object, so its variables are other objects.
    return handle.id, handle.owner


def receive(
    cls: type[RemoteVariable],
    strategy: StrategyProtocol,
    handle: Handle,
    client: ParameterClient | None = None,
) -> RemoteVariable:
    """Returns this process's object for the variable of a handle."""
    with _known_lock:
        variable = _known.get(_key(handle))
        if variable is None:
            variable = cls.__new__(cls)
            variable._use(strategy, client or client_for(handle.servers), handle)
            _known[_key(handle)] = variable
        return variable


_register(RemoteVariable)


def _forget(known: dict[str, Any], variable: str, _: object) -> None:
    known.pop(variable, None)
