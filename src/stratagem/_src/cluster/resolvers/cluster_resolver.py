"""``ClusterResolver``: the base of everything that tells a process where it is."""

from __future__ import annotations

import abc

from stratagem._src.cluster import leadership
from stratagem._src.cluster.accelerators import count_local_accelerators
from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError, UnknownAddressesError

__all__ = ["ClusterResolver", "check_task_of", "format_master_url"]


class ClusterResolver(abc.ABC):
    """Says who is in the cluster, which of its tasks this process is, and how they meet.

    A subclass must define ``cluster_spec``. It either sets ``task_type``, ``task_id`` and
    ``rpc_layer``, or overrides the ``_find_*`` methods that answer when nothing was set. Answers
    are looked up whenever they are asked for, so they follow the environment.

    Beyond tf.distribute, ``coordinator_address``, ``num_processes``, ``process_id`` and
    ``local_device_ids`` are the arguments of ``jax.distributed.initialize``, so that a strategy can
    start from a cluster spec and from a launcher that tells only the coordinator alike.

    >>> from stratagem.distribute.cluster_resolver import ClusterResolver
    >>> from stratagem.train import ClusterSpec
    >>> class TwoWorkers(ClusterResolver):
    ...     def cluster_spec(self):
    ...         return ClusterSpec({"worker": ["w0:2222", "w1:2222"]})
    >>> resolver = TwoWorkers()
    >>> resolver.task_type, resolver.task_id = "worker", 1
    >>> resolver.master(), resolver.coordinator_address, resolver.process_id
    ('w1:2222', 'w0:2222', 1)
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    # What to do about a task that is not in the cluster.
    _fix_of_task = "Give the resolver the task_type and task_id of this process."

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster as it is now."""

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of a task, by default of this one, or ``""`` if it is not known."""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        address = self.cluster_spec().task_address(task_type, task_id)
        return format_master_url(address, rpc_layer or self.rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: None = None,
    ) -> dict[str, int]:
        """Returns how many accelerators this process has, by kind, as in ``{"GPU": 4}``.

        Where the number is not configured, it starts the JAX backend to count. In a cluster, ask
        after the strategy was made: JAX cannot join other processes once its backend has started.

        Args:
            task_type: The type of this task, if given.
            task_id: The index of this task, if given.
            config_proto: Must be ``None``; there are no sessions to configure.

        Raises:
            TaskError: If the task is another one, whose devices only it can count.
        """
        if config_proto is not None:
            raise TypeError(f"config_proto must be None, got {type(config_proto).__name__}.")
        asked = (
            self.task_type if task_type is None else task_type,
            self.task_id if task_id is None else task_id,
        )
        if asked != (self.task_type, self.task_id):
            raise TaskError(
                f"num_accelerators counts the devices of this task ({self.task_type} "
                f"{self.task_id}), got {asked[0]} {asked[1]}. Ask on that task."
            )
        return self._count_accelerators()

    @property
    def environment(self) -> str:
        """Where the program runs, if it matters; ``""`` otherwise."""
        return ""

    @property
    def task_type(self) -> str | None:
        """The job of this task, such as ``"worker"``, or ``None`` if it is not known."""
        return self._find_task_type() if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this task in its job, or ``None`` if it is not known."""
        return self._find_task_id() if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol in front of addresses that ``master`` returns, such as ``"grpc"``."""
        return self._find_rpc_layer() if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def coordinator_address(self) -> str | None:
        """Where the leader listens; ``None`` without a cluster and for an evaluator.

        JAX equivalent: ``coordinator_address`` of ``jax.distributed.initialize``.
        """
        spec = self.cluster_spec()
        if not spec or self.task_type == "evaluator":
            return None
        return spec.task_address(*leadership.leader_task(spec))

    @property
    def num_processes(self) -> int:
        """How many processes train together, this one included.

        JAX equivalent: ``num_processes`` of ``jax.distributed.initialize``.
        """
        return leadership.num_workers(self.cluster_spec(), self.task_type)

    @property
    def process_id(self) -> int:
        """The number of this process among those that train together.

        JAX equivalent: ``process_id`` of ``jax.distributed.initialize``.

        Raises:
            TaskError: If this task is not in the cluster, or does not train, as a ``ps`` does not.
        """
        return leadership.process_id(self.cluster_spec(), self.task_type, self.task_id)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """Which of the machine's accelerators this process should use; ``None`` for all.

        JAX equivalent: ``local_device_ids`` of ``jax.distributed.initialize``.
        """
        return None

    def _find_task_type(self) -> str | None:
        return None

    def _find_task_id(self) -> int | None:
        return None

    def _find_rpc_layer(self) -> str | None:
        return None

    def _count_accelerators(self) -> dict[str, int]:
        return count_local_accelerators()


def check_task_of(resolver: ClusterResolver) -> None:
    """Raises at once if the task of a resolver is not one of its cluster, or its leader cannot be found.

    Otherwise all other tasks would wait for it.

    Raises:
        TaskError: If so.
    """
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        _ = resolver.process_id  # which its launcher gave, and is checked when it is read
        return
    try:
        leadership.validate_task(spec, resolver.task_type, resolver.task_id)
        if (
            resolver.num_processes > 1
            and not Address.parse(resolver.coordinator_address or "").port
        ):
            leader = leadership.leader_task(spec)
            raise TaskError(
                f"The other workers must know the port of {leader}, which leads, got "
                f"{resolver.coordinator_address!r}. Choose one."
            )
    except TaskError as error:
        raise TaskError(f"{error} {resolver._fix_of_task}") from None


def format_master_url(address: str, rpc_layer: str | None) -> str:
    """Returns the address with its protocol in front, if there is one."""
    return f"{rpc_layer}://{address}" if address and rpc_layer else address
