"""``ShardedVariable``: a variable whose rows are sharded over parameter servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.parameter_server.client.initial_value import InitialValue
from stratagem._src.parameter_server.client.parameter_client import ParameterClient, UpdateRequest
from stratagem._src.parameter_server.client.remote_variable import (
    Handle,
    RemoteVariable,
    device_of,
    receive,
)
from stratagem._src.parameter_server.client.shards import VariableShard, shard_name, split_operands
from stratagem._src.parameter_server.partitioners import shard_sizes
from stratagem._src.parameter_server.server.server_function import is_row_update
from stratagem._src.parameter_server.server.stored_array import Array
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import _register

__all__ = ["ShardOfVariable", "ShardedVariable"]


class ShardedVariable(RemoteVariable):
    """A variable split along its first axis, each shard on a parameter server.

    ``Variable(...)`` in the scope of a ``ParameterServerStrategy`` with a partitioner returns one. It is
    used as one variable: full reads concatenate the shards; row reads and row updates go to the shards
    that contain the rows. An update is atomic on each shard, not over all of them.

    Args:
        strategy: The strategy in whose scope it is created.
        client: The client of the parameter servers.
        initial: The initial value.
        servers: Index of the server of each shard.
        **options: As in ``RemoteVariable``.

    >>> import numpy as np
    >>> import stratagem as sg
    >>> servers = [sg.distribute.Server({"ps": ["127.0.0.1:0"] * 2}, "ps", i) for i in range(2)]
    >>> cluster = sg.train.ClusterSpec({
    ...     "ps": [server.target.removeprefix("grpc://") for server in servers],
    ...     "worker": ["127.0.0.1:2222"]})
    >>> strategy = sg.distribute.ParameterServerStrategy(
    ...     sg.distribute.cluster_resolver.SimpleClusterResolver(cluster),
    ...     sg.distribute.partitioners.FixedShardsPartitioner(2))
    >>> with strategy.scope():
    ...     table = sg.Variable(np.arange(10.0).reshape(5, 2), name="table")
    >>> [shard.shape for shard in table.variables]
    [TensorShape([3, 2]), TensorShape([2, 2])]
    >>> table.sparse_read([4, 0]).tolist()
    [[8.0, 9.0], [0.0, 1.0]]
    >>> for server in servers:
    ...     server.shutdown()
    """

    __slots__ = ("_shard_variables",)

    def __init__(
        self,
        strategy: StrategyProtocol,
        client: ParameterClient,
        initial: InitialValue,
        *,
        servers: Sequence[int],
        **options: Any,
    ) -> None:
        sizes = shard_sizes(initial.shape[0], len(servers))
        super().__init__(strategy, client, initial, servers=servers, sizes=sizes, **options)

    def _use(self, strategy: StrategyProtocol, client: ParameterClient, handle: Handle) -> None:
        super()._use(strategy, client, handle)
        self._shard_variables: list[RemoteVariable] | None = None

    @property
    def variables(self) -> list[RemoteVariable]:
        """The shards, each as a variable. Their gradients are the parts of the gradient of this one."""
        # Compiled programs reference variables weakly: the shards live as long as the variable.
        if self._shard_variables is None:
            self._shard_variables = [self._shard_variable(i) for i in range(len(self.shards))]
        return list(self._shard_variables)

    @property
    def device(self) -> str:
        """Names of the devices that hold the shards."""
        return ", ".join(dict.fromkeys(device_of(shard) for shard in self.shards))

    def update_requests(self, update: Update, operands: tuple[Array, ...]) -> list[UpdateRequest]:
        """Returns the requests that apply ``update``, one for each shard that it changes."""
        return [
            UpdateRequest(shard.id, shard.server, update.name, part, update.body)
            for shard, part in split_operands(
                self.shards, self.program_shape, operands, rows=is_row_update(update)
            )
        ]

    def _shard_variable(self, index: int) -> RemoteVariable:
        shard = self.shards[index]
        handle = self._handle._replace(
            id=shard.id,
            shards=(shard._replace(start=0, stop=shard.stop - shard.start),),
            name=self._shard_name(index),
            shape=self._shard_shape(shard),
            table=self._handle,
        )
        return receive(ShardOfVariable, self._strategy, handle, self._client)

    def _shard_name(self, index: int) -> str:
        return shard_name(self._name, index)

    def _shard_shape(self, shard: VariableShard) -> tuple[int, ...]:
        return (shard.stop - shard.start, *self.program_shape[1:])


class ShardOfVariable(RemoteVariable):
    """A shard of a ``ShardedVariable``, as a variable of its own."""

    __slots__ = ()

    @property
    def table(self) -> ShardedVariable:
        """The variable that this one is a shard of."""
        assert self._handle.table is not None
        table = receive(ShardedVariable, self._strategy, self._handle.table, self._client)
        assert isinstance(table, ShardedVariable)
        return table

    @property
    def first_row(self) -> int:
        """The row of ``table`` at which this shard begins."""
        assert self._handle.table is not None
        return next(shard.start for shard in self._handle.table.shards if shard.id == self.id)

    def overlaps(self, other: BaseRemoteVariable) -> bool:
        """Returns whether ``other`` is this shard or its variable."""
        return self is other or (
            isinstance(other, ShardedVariable) and any(s.id == self.id for s in other.shards)
        )

    def update_requests(self, update: Update, operands: tuple[Array, ...]) -> list[UpdateRequest]:
        """Returns the request that applies ``update``; none if it is one of rows of other shards."""
        if not is_row_update(update):
            return super().update_requests(update, operands)
        return [
            UpdateRequest(shard.id, shard.server, update.name, part, update.body)
            for shard, part in split_operands(self.shards, self.program_shape, operands, rows=True)
        ]


_register(ShardedVariable)
_register(ShardOfVariable)
