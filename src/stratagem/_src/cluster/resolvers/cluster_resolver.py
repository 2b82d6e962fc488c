"""``ClusterResolver``: the base class of resolvers, which find the cluster and the task of a process."""

from __future__ import annotations

import abc
from collections import Counter

from stratagem._src.cluster import leadership
from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError, UnknownAddressesError

__all__ = ["ClusterResolver", "check_task_of", "format_master_url"]


class ClusterResolver(abc.ABC):
    """Finds the cluster, the task of this process, and the address of the coordinator.

    A subclass must define ``cluster_spec``. It either sets ``task_type``, ``task_id`` and
    ``rpc_layer``, or overrides the ``_find_*`` methods, which are used if nothing is set. Values are
    computed on each access, so they follow the environment.

    Beyond tf.distribute, ``coordinator_address``, ``num_processes``, ``process_id`` and
    ``local_device_ids`` are the arguments of ``jax.distributed.initialize``, so that a strategy works
    with a cluster spec and with a launcher that provides only the coordinator's address.

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
        """Returns the URL of a task, by default of this one, or ``""`` if it is unknown."""
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
        """Returns the number of accelerators of this process, by kind, as in ``{"GPU": 4}``.

        If the number is not configured, it starts the JAX backend to count. In a cluster, call it after
        creating the strategy: JAX cannot join other processes once its backend has started.

        Args:
            task_type: The type of this task, if given.
            task_id: The index of this task, if given.
            config_proto: Must be ``None``; there are no sessions to configure.

        Raises:
            TaskError: If the task is another one, whose devices only it can count.
        """
        if config_proto is not None:
            raise TypeError(f"config_proto must be None, got {type(config_proto).__name__}.")
        requested = (
            self.task_type if task_type is None else task_type,
            self.task_id if task_id is None else task_id,
        )
        if requested != (self.task_type, self.task_id):
            raise TaskError(
                f"num_accelerators counts the devices of this task ({self.task_type} "
                f"{self.task_id}), got {requested[0]} {requested[1]}. Call it on that task."
            )
        return self._count_accelerators()

    @property
    def environment(self) -> str:
        """The environment of the program, such as a cloud; ``""`` if it does not matter."""
        return ""

    @property
    def task_type(self) -> str | None:
        """The job of this task, such as ``"worker"``, or ``None`` if unknown."""
        return self._find_task_type() if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this task in its job, or ``None`` if unknown."""
        return self._find_task_id() if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol prefix of the addresses that ``master`` returns, such as ``"grpc"``."""
        return self._find_rpc_layer() if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def coordinator_address(self) -> str | None:
        """The address of the leader; ``None`` without a cluster and for an evaluator.

        JAX equivalent: ``coordinator_address`` of ``jax.distributed.initialize``.
        """
        spec = self.cluster_spec()
        if not spec or self.task_type == "evaluator":
            return None
        return spec.task_address(*leadership.leader_task(spec))

    @property
    def num_processes(self) -> int:
        """The number of processes that train together, including this one.

        JAX equivalent: ``num_processes`` of ``jax.distributed.initialize``.
        """
        return leadership.num_workers(self.cluster_spec(), self.task_type)

    @property
    def process_id(self) -> int:
        """The index of this process among the processes that train together.

        JAX equivalent: ``process_id`` of ``jax.distributed.initialize``.

        Raises:
            TaskError: If this task is not in the cluster, or does not train, as a ``ps`` does not.
        """
        return leadership.process_id(self.cluster_spec(), self.task_type, self.task_id)

    @property
    def local_device_ids(self) -> tuple[int, ...] | None:
        """The accelerators of the machine that this process should use; ``None`` for all.

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
        return _count_local_accelerators()


def check_task_of(resolver: ClusterResolver) -> None:
    """Checks that the task of a resolver is in its cluster, and that the leader has a known port.

    Otherwise all other tasks would wait for it.

    Raises:
        TaskError: If not.
    """
    try:
        spec = resolver.cluster_spec()
    except UnknownAddressesError:
        _ = resolver.process_id  # from the launcher; reading it checks it
        return
    try:
        leadership.validate_task(spec, resolver.task_type, resolver.task_id)
        if (
            resolver.num_processes > 1
            and not Address.parse(resolver.coordinator_address or "").port
        ):
            leader = leadership.leader_task(spec)
            raise TaskError(
                f"The leader {leader} must have a port that the other workers know, got "
                f"{resolver.coordinator_address!r}. Choose a port."
            )
    except TaskError as error:
        raise TaskError(f"{error} {resolver._fix_of_task}") from None


def format_master_url(address: str, rpc_layer: str | None) -> str:
    """Returns the address with the protocol prefix, if there is one."""
    return f"{rpc_layer}://{address}" if address and rpc_layer else address


def _count_local_accelerators() -> dict[str, int]:
    """Returns the number of accelerators of this process by kind, such as GPU; CPUs do not count.

    It starts the JAX backend, after which ``jax.distributed`` can no longer be initialized.
    """
    import jax  # imported here, because importing this package must not import JAX

    kinds = (device.platform.upper() for device in jax.local_devices())
    return dict(Counter(kind for kind in kinds if kind != "CPU"))
