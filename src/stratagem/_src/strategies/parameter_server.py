"""``ParameterServerStrategy``: asynchronous training with variables on parameter servers."""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate

from stratagem._src.cluster import ClusterResolver, ClusterSpec, SimpleClusterResolver
from stratagem._src.collectives.nccl_all_reduce import NcclAllReduce
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import Dataset, DTypeLike, Initializer, PyTree, ShapeLike
from stratagem._src.current_strategy import context
from stratagem._src.input.distributed_dataset import DistributedDataset
from stratagem._src.input.input_context import InputContext
from stratagem._src.input.input_options import InputOptions
from stratagem._src.mesh.devices import resolve_devices
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.parameter_server.client.function_update import call_on_variable_server
from stratagem._src.parameter_server.client.initial_value import InitialValue, RowInitializer
from stratagem._src.parameter_server.client.parameter_client import ParameterClient, client_for
from stratagem._src.parameter_server.client.remote_variable import UNNAMED, RemoteVariable
from stratagem._src.parameter_server.client.shard_initializer import ShardInitializer
from stratagem._src.parameter_server.client.sharded_variable import ShardedVariable
from stratagem._src.parameter_server.partitioners import Partitioner, num_shards_along_axis_0
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.deferred_dataset import DeferredDataset
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.strategies.server_cluster import (
    check_server_cluster,
    cluster_of_environment,
    server_addresses,
)
from stratagem._src.values.array_operators import ArrayOperators
from stratagem._src.values.regroup import map_values
from stratagem._src.variables.declared_shape import check_shape
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["ParameterServerStrategy"]


class ParameterServerStrategy(Strategy):
    """Stores variables on parameter servers, where workers read and update them asynchronously.

    The coordinator creates the strategy, and the variables in its scope. Variables are placed on the
    servers round-robin, or split over several by the partitioner. A ``ClusterCoordinator`` then runs
    functions on the workers. When the strategy is sent to a worker along with a function, it becomes the
    strategy of that worker's devices: one replica on each, synchronous with each other but not with other
    workers.

    Args:
        cluster_resolver: Describes the servers (job ``ps``) and workers (job ``worker``). Default: from
            ``TF_CONFIG``, which ``stratagem run`` sets.
        variable_partitioner: Returns the number of shards of a variable, for example
            ``MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)``, or any function that is
            called as ``fn(shape=..., dtype=...)`` and returns ``[shards, 1, 1, ...]``; ``None`` does not
            split variables.
        resume: Whether to take over the state that the servers hold for a coordinator that was lost. A
            variable that is created in the scope then keeps its value, if the servers hold one of that
            name, shape and type. Variables with the same name are matched by creation order. Optimizers
            resume too, if the program creates them in the same order. If a server was lost as well, nothing
            is taken over: see ``resumed``.

    Attributes:
        resumed: Whether the state on the servers was taken over. If not, restore a checkpoint.

    Raises:
        ValueError: If the cluster has no parameter servers, no ``worker`` job (it may be empty at first),
            several chiefs, or unknown jobs, or if this task is not the coordinator.
        PSUnavailableError: If a parameter server does not answer within a minute.

    Differs from tf.distribute: a worker with several devices runs a replica on each of them; ``resume``.

    >>> import stratagem as sg
    >>> server = sg.distribute.Server({"ps": ["127.0.0.1:0"]}, "ps", 0)
    >>> cluster = sg.train.ClusterSpec({
    ...     "ps": [server.target.removeprefix("grpc://")], "worker": ["127.0.0.1:2222"]})
    >>> strategy = sg.distribute.ParameterServerStrategy(
    ...     sg.distribute.cluster_resolver.SimpleClusterResolver(cluster))
    >>> with strategy.scope():
    ...     v = sg.Variable(1.0)
    >>> v.device
    '/job:ps/replica:0/task:0/device:CPU:0'
    >>> float(v.assign_add(2.0))
    3.0
    >>> server.shutdown()
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Partitioner | Callable[..., Sequence[int]] | None = None,
        *,
        resume: bool = False,
    ) -> None:
        cluster_resolver = cluster_resolver or cluster_of_environment()
        cluster = check_server_cluster(cluster_resolver)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidArgumentError(
                "variable_partitioner must be a partitioner, such as FixedShardsPartitioner(2), or "
                f"None, got {variable_partitioner!r}."
            )
        client = client_for(server_addresses(cluster))
        self.resumed: bool = resume and client.take_over()
        if not self.resumed:
            client.attach()
        self._set_up(uuid.uuid4().hex, cluster_resolver, client)
        self._extended.place_variables(variable_partitioner)
        with _here_lock:
            _here[self._identity] = self

    def _set_up(self, identity: str, resolver: ClusterResolver, client: ParameterClient) -> None:
        self._identity = identity
        self._cluster_resolver = resolver
        self._client = client
        extended = ParameterServerExtended(self, client)
        super().__init__(extended)
        self._extended: ParameterServerExtended = extended

    @property
    def extended(self) -> ParameterServerExtended:
        """The components of the strategy, for library code."""
        return self._extended

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver that describes servers and workers."""
        return self._cluster_resolver

    @property
    def client(self) -> ParameterClient:
        """This process's client of the parameter servers."""
        return self._client

    def experimental_distribute_dataset(
        self, dataset: Dataset, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset that splits each batch over the replicas of a worker.

        It is created where it is first used. Pass it to ``create_per_worker_dataset``, and every worker
        creates its own.
        """
        context.require_cross_replica(self, "experimental_distribute_dataset")
        return DeferredDataset(Strategy.experimental_distribute_dataset, self, dataset, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Returns a dataset of the batches of ``dataset_fn``, which are not split further.

        It is created where it is first used. Pass it to ``create_per_worker_dataset``, and every worker
        calls ``dataset_fn``.
        """
        context.require_cross_replica(self, "distribute_datasets_from_function")
        return DeferredDataset(
            Strategy.distribute_datasets_from_function, self, dataset_fn, options
        )

    def __reduce__(self) -> tuple[Any, ...]:
        cluster = self._cluster_resolver.cluster_spec().as_dict()
        return _strategy_here, (self._identity, cluster, self._client.servers)

    def __repr__(self) -> str:
        servers = len(self._client.servers)
        return f"<{type(self).__name__} {self._label} with {servers} parameter servers>"


class ParameterServerExtended(StrategyExtended):
    """Places variables on parameter servers, round-robin."""

    def __init__(self, strategy: ParameterServerStrategy, client: ParameterClient) -> None:
        self._strategy = strategy
        self._cross_device_ops = NcclAllReduce()
        self._client = client
        self._partitioner: Callable[..., Sequence[int]] | None = None
        self._creates_variables = False
        self._make_per_worker_variable: Callable[..., Variable] | None = None
        self._next_server = 0
        self._turn = threading.Lock()
        self._colocation = threading.local()
        self._devices: ReplicaGroup | None = None

    @property
    def _group(self) -> ReplicaGroup:  # type: ignore[override]
        # Lazy: a coordinator that only schedules never initializes the JAX backend.
        if self._devices is None:
            resolver = self._strategy.cluster_resolver
            chosen = None if resolver is None else resolver.local_device_ids
            devices = resolve_devices()
            if chosen is not None:
                devices = tuple(devices[index] for index in chosen)
            self._devices = ReplicaGroup.of(devices)
        return self._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Full names of the parameter servers' devices."""
        count = len(self._client.servers)
        return tuple(f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(count))

    # --- variables --------------------------------------------------------------------------------

    def place_variables(self, partitioner: Callable[..., Sequence[int]] | None) -> None:
        """Lets this process create variables, split by ``partitioner``."""
        self._partitioner = partitioner
        self._creates_variables = True

    @property
    def is_on_worker(self) -> bool:
        """Whether this process is a worker, which uses variables and creates none."""
        return not self._creates_variables

    def make_per_worker_variables_with(self, make: Callable[..., Variable]) -> None:
        """Sets the factory of per-worker variables, which the coordinator provides."""
        self._make_per_worker_variable = make

    def create_variable(
        self,
        initial_value: Initializer = None,
        trainable: bool | None = None,
        *,
        name: str | None = None,
        dtype: DTypeLike = None,
        synchronization: Any = VariableSynchronization.AUTO,
        aggregation: Any = VariableAggregation.NONE,
        shape: ShapeLike = None,
        per_worker_variable: bool = False,
        **others: PyTree,
    ) -> Variable:
        """Returns a new variable on parameter servers, or a per-worker variable.

        Args:
            initial_value: Array, number, or a function without arguments that returns one. With
                ``shape`` and ``dtype`` a function may take ``partition_shape`` and
                ``partition_offset``: it is then called for each shard.
            trainable: Whether optimizers should update it.
            name: Its name.
            dtype: Its element type.
            synchronization: Only recorded: there is one value for all replicas.
            aggregation: How updates of one worker's replicas are combined.
            shape: Its shape, which the initial value must have.
            per_worker_variable: Whether every worker has its own, unsynchronized value. It needs a
                ``ClusterCoordinator``.
            **others: The other arguments of ``Variable``.
        """
        if not self._creates_variables:
            raise ContextError(
                f"Variable {name or 'Variable'!r} is created on a worker. Create variables "
                "in the coordinator, inside strategy.scope(), and use them in the functions that it "
                "schedules."
            )
        options = {
            **others,
            "trainable": trainable,
            "name": name,
            "dtype": dtype,
            "synchronization": synchronization,
            "aggregation": aggregation,
        }
        if not per_worker_variable:
            if _is_function(initial_value) and shape and dtype is not None:
                initial_value = ShardInitializer(initial_value, shape, dtype)
            return super().create_variable(initial_value, shape=shape, **options)
        if self._make_per_worker_variable is None:
            raise ContextError(
                "A variable with per_worker_variable=True is stored on the workers, which only a "
                "coordinator can reach. Create ClusterCoordinator(strategy) first."
            )
        created = self._make_per_worker_variable(initial_value=initial_value, **options)
        check_shape(created, shape)
        return created

    def make_variable(self, **options: PyTree) -> Variable:
        """Returns a new variable on the next server, or on the next ones if it is split."""
        initial = InitialValue.of(options.pop("initial_value"), options.pop("dtype"))
        colocated = getattr(self._colocation, "servers", None)
        shape = initial.shape
        if colocated is not None:
            num_shards = len(colocated) if shape and shape[0] >= len(colocated) else 1
        elif self._partitioner is not None and shape:
            partitions = self._partitioner(shape=TensorShape(shape), dtype=initial.dtype)
            num_shards = num_shards_along_axis_0(partitions, shape)
        else:
            num_shards = 1
        servers = self._take_turns(num_shards) if colocated is None else colocated[:num_shards]
        held = self._client.registry.claim(options["name"] or UNNAMED, shape, initial.dtype.name)
        if held is not None:
            kind = RemoteVariable if len(held.shards) == 1 else ShardedVariable
            return kind.from_record(self._strategy, self._client, held, **options)
        kind = RemoteVariable if num_shards == 1 else ShardedVariable
        return kind(self._strategy, self._client, initial, servers=servers, **options)

    def _take_turns(self, count: int) -> list[int]:
        with self._turn:
            start = self._next_server
            self._next_server += count
        return [(start + turn) % len(self._client.servers) for turn in range(count)]

    def _make_sync_on_read(self, *, counts_once: bool, **options: PyTree) -> Variable:
        # The one value on the server is up to date whenever it is read.
        return self.make_variable(**options)

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Creates the variables of the block on the servers of ``colocate_with_variable``.

        Raises:
            ValueError: If the variable belongs to another strategy.
        """
        with super().colocate_vars_with(colocate_with_variable):
            assert isinstance(colocate_with_variable, RemoteVariable)
            before = getattr(self._colocation, "servers", None)
            self._colocation.servers = [shard.server for shard in colocate_with_variable.shards]
            try:
                yield
            finally:
                self._colocation.servers = before

    # --- updating ---------------------------------------------------------------------------------

    def update_where_it_lives(
        self,
        var: Variable,
        fn: Callable[Concatenate[Variable, ...], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls ``fn(var, *args, **kwargs)`` on the parameter server, with the server's own copy.

        Returns:
            The result of ``fn``; for a sharded variable a list of results; in a compiled function, which
            sends the update when it has run, the variable.
        """
        if not isinstance(var, RemoteVariable):
            return super().update_where_it_lives(var, fn, args, kwargs)
        positional, keywords = map_values(
            lambda leaf: self._update_argument(var, leaf), (args, kwargs)
        )
        return call_on_variable_server(var, fn, positional, keywords)


def _is_function(initial_value: Initializer) -> bool:
    return callable(initial_value) and not isinstance(
        initial_value, ArrayOperators | RowInitializer
    )


_here: weakref.WeakValueDictionary[str, ParameterServerStrategy] = weakref.WeakValueDictionary()
_here_lock = threading.Lock()


def _strategy_here(
    identity: str, cluster: dict[str, Any], servers: Sequence[str]
) -> ParameterServerStrategy:
    """Returns this process's instance of a strategy that another process sent."""
    with _here_lock:
        strategy = _here.get(identity)
        if strategy is None:
            strategy = ParameterServerStrategy.__new__(ParameterServerStrategy)
            strategy.resumed = False
            resolver = SimpleClusterResolver(ClusterSpec(cluster))
            strategy._set_up(identity, resolver, client_for(servers))
            _here[identity] = strategy
        return strategy
