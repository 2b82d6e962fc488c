"""``RemoteVariable``: a variable that lives on a parameter server."""

from __future__ import annotations

import math
import threading
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.parameter_server.client.holdings import HeldVariable
from stratagem._src.parameter_server.client.initial_value import InitialValue
from stratagem._src.parameter_server.client.parameter_client import (
    ParameterClient,
    ReadRequest,
    UpdateRequest,
    client_for,
)
from stratagem._src.parameter_server.client.shards import ShardedRows, VariableShard, make_shards
from stratagem._src.parameter_server.server.server_function import INITIALIZE
from stratagem._src.parameter_server.server.stored_array import Array, aligned_empty
from stratagem._src.variables import access as state
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["UNNAMED", "RemoteVariable"]

UNNAMED = "Variable"
"""What a variable is called that got no name."""


class Handle(NamedTuple):
    """What a process must know to use a variable; this is what travels."""

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


class RemoteVariable(RemotelyHeldVariable):
    """A variable on one parameter server.

    Made by ``Variable(...)`` in the scope of a ``ParameterServerStrategy``. Sent to another process it
    is a small handle, and a process has one object for a variable however often it arrives. When the
    object that created it is gone, the server frees the memory.

    Args:
        strategy: The strategy in whose scope it is created.
        client: The way to the servers.
        initial: The first value.
        servers: Index of the server that is to hold it.
        sizes: Number of rows on each of ``servers``.
        name: Its name.
        trainable: Whether optimizers should update it.
        synchronization: Kept for the caller to see: there is one value for all.
        aggregation: How updates of one worker's replicas become one.
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
        if state.current_frame() is not None:
            raise ContextError(
                f"Variable {name or 'Variable'!r} is created on a parameter server inside of a "
                "function. Create it outside."
            )
        identity = uuid.uuid4().hex
        rows = initial.shape[0] if initial.shape else 1
        handle = Handle(
            identity,
            client.ownership.owner,
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

        if initial.comes_in_order:
            for index, shard in enumerate(handle.shards):
                create(index, shard)
        else:
            client.in_parallel(dict(enumerate(handle.shards)), create)
        client.note(HeldVariable(identity, handle.name, handle.shape, handle.dtype, handle.shards))

    @classmethod
    def of_held(
        cls,
        strategy: StrategyProtocol,
        client: ParameterClient,
        held: HeldVariable,
        *,
        name: str | None,
        trainable: bool | None,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> Self:
        """Returns a variable that an earlier coordinator has created, with the value that it has.

        Args:
            strategy: The strategy in whose scope it is created again.
            client: The way to the servers.
            held: What the servers hold.
            name: As of ``RemoteVariable``, like the rest.
            trainable: Whether optimizers should update it.
            synchronization: Kept for the caller to see.
            aggregation: How updates of one worker's replicas become one.
        """
        variable = cls.__new__(cls)
        handle = Handle(
            held.id,
            client.ownership.owner,
            client.servers,
            held.shards,
            name or UNNAMED,
            held.shape,
            held.dtype,
            _is_trainable(trainable, synchronization),
            synchronization,
            aggregation,
        )
        variable._use(strategy, client, handle)
        variable._own()
        return variable

    def _own(self) -> None:
        """Makes this the object that created it: when it is gone, so is the variable."""
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

    # --- what it is -----------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """What all processes call it."""
        return self._handle.id

    @property
    def shards(self) -> tuple[VariableShard, ...]:
        """Where its rows are."""
        return self._handle.shards

    @property
    def storage(self) -> ParameterClient:
        """The way to the servers."""
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
        if state.current_frame() is not None:
            return super().numpy()
        return self.pull()

    def array_to_keep(self, operand: Any) -> Array:
        """Returns an operand as an array whose memory nobody changes before it is sent."""
        # Outside of functions it is sent before anyone can change it.
        eager = state.current_frame() is None
        return np.asarray(operand) if eager else super().array_to_keep(operand)

    # --- requests -------------------------------------------------------------------------------

    def read_requests(self, rows: Array | None = None) -> list[ReadRequest]:
        """Returns the requests for the whole value, or for rows by number."""
        if rows is None:
            return [self._read(shard, None, shard.stop - shard.start) for shard in self.shards]
        return [
            self._read(shard, local, len(local))
            for shard, local, _ in ShardedRows(self.shards, rows).parts()
        ]

    def _read(self, shard: VariableShard, rows: Array | None, count: int) -> ReadRequest:
        return ReadRequest(shard.id, shard.server, rows, count * self._row_bytes)

    def assemble(self, parts: Sequence[Array], rows: Array | None = None) -> Array:
        """Returns the value, or the rows, from the answers to ``read_requests``."""
        if rows is None:
            if len(parts) == 1:
                return parts[0]
            return np.concatenate(parts, out=aligned_empty(self.program_shape, self.dtype))
        if not len(rows):
            return np.empty((0, *self.row_shape), self.dtype)
        return ShardedRows(self.shards, rows).join(parts, self.row_shape, self.dtype)

    def update_requests(self, update: Update, operands: tuple[Array, ...]) -> list[UpdateRequest]:
        """Returns the requests that carry out ``update``, for each shard that it concerns."""
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
    whole = initial.whole()
    if whole is not None:
        value = whole[shard.start : shard.stop] if whole.ndim else whole
        client.create(shard.id, shard.server, name, shape, initial.dtype, value)
        return
    client.create(shard.id, shard.server, name, shape, initial.dtype)
    function = initial.on_server(shard.start)
    if function is not None:
        request = UpdateRequest(shard.id, shard.server, INITIALIZE, (), function)
        client.call([request], work_bytes=math.prod(shape) * initial.dtype.itemsize)
        return
    for start, rows in initial.blocks(shard.start, shard.stop):
        client.fill(shard.id, shard.server, start, rows)


def _discard(client: ParameterClient, handle: Handle) -> None:
    client.ownership.drop(handle.id)
    for shard in handle.shards:
        client.discard(shard.id, shard.server)


def device_of(shard: VariableShard) -> str:
    """Returns the full name of the device that holds a shard."""
    return f"/job:ps/replica:0/task:{shard.server}/device:CPU:0"


_known: weakref.WeakValueDictionary[tuple[str, str], RemoteVariable] = weakref.WeakValueDictionary()
_known_lock = threading.RLock()  # reentrant for the sake of signal handlers


def _key(handle: Handle) -> tuple[str, str]:
    # A coordinator that takes over has a strategy of its own, and so have its variables.
    return handle.id, handle.owner


def receive(
    cls: type[RemoteVariable],
    strategy: StrategyProtocol,
    handle: Handle,
    client: ParameterClient | None = None,
) -> RemoteVariable:
    """Returns this process's object for a variable that another, or another variable, made."""
    with _known_lock:
        variable = _known.get(_key(handle))
        if variable is None:
            variable = cls.__new__(cls)
            variable._use(strategy, client or client_for(handle.servers), handle)
            _known[_key(handle)] = variable
        return variable


_register(RemoteVariable)
