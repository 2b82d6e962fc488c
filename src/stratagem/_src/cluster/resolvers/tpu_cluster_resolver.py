"""``TPUClusterResolver``: the hosts of a Cloud TPU."""

from __future__ import annotations

from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.errors import TaskError, UnsupportedTPUFeatureError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver, format_master_url
from stratagem._src.cluster.resolvers.google_cloud import Credentials, Service
from stratagem._src.cluster.resolvers.tpu_hosts import TPUHosts, find_tpu
from stratagem._src.cluster.resolvers.tpu_system_metadata import TPUSystemMetadata, attached_devices

__all__ = ["TPUClusterResolver"]

# The port that JAX uses on Cloud TPUs: the runtime itself occupies 8470 and the following ports.
_COORDINATOR_PORT = 8482


class TPUClusterResolver(ClusterResolver):
    """A resolver for the hosts of a TPU, found by its name, its addresses, or the environment.

    Without ``tpu`` the first of these is used: the variables ``KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS``,
    ``TPU_PROCESS_ADDRESSES`` and ``TPU_WORKER_HOSTNAMES``, which list hosts, ``TPU_NAME`` and
    ``TPU_CONFIG``, which name a TPU, and the metadata server of a TPU machine. A name is looked up
    with the Cloud TPU API, version 2.

    On JAX every host of a TPU runs the program. Therefore ``task_id`` is this host's index, from
    ``TPU_WORKER_ID`` or the metadata, otherwise 0, and ``num_accelerators`` counts this host's devices.
    JAX initializes TPUs itself.

    >>> from stratagem.distribute.cluster_resolver import TPUClusterResolver
    >>> resolver = TPUClusterResolver("grpc://10.0.0.1:8470,grpc://10.0.0.2:8470")
    >>> resolver.cluster_spec().as_dict(), resolver.master(), resolver.coordinator_address
    ({'worker': ['10.0.0.1:8470', '10.0.0.2:8470']}, 'grpc://10.0.0.1:8470', '10.0.0.1:8482')
    >>> TPUClusterResolver("local").cluster_spec()
    ClusterSpec({})

    Args:
        tpu: The name of a TPU, ``grpc://`` addresses separated by commas, or ``"local"`` for a TPU
            of only this machine.
        zone: The zone of a named TPU; by default that of this machine.
        project: The project of a named TPU; by default that of this machine.
        job_name: The job of the hosts.
        coordinator_name: An additional job of one task for the cluster spec.
        coordinator_address: The address of that task.
        credentials: ``"default"`` for the service account of this machine, ``None`` for none, or a
            function that returns an access token.
        service: A ``googleapiclient`` service for ``tpu``, used instead of REST calls and
            ``credentials``.
        discovery_url: A URL on the server of the API, if it is not Google's.
        platform: The JAX platform of the TPU's cores; ``"cpu"`` to use virtual CPU devices instead.

    Raises:
        ValueError: If ``tpu`` lists none or several names, or ``coordinator_name`` has no address.
    """

    def __init__(
        self,
        tpu: str | list[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Credentials = "default",
        service: Service = None,
        discovery_url: str | None = None,
        *,
        platform: str = "tpu",
    ) -> None:
        if (coordinator_name is None) != (coordinator_address is None):
            raise ValueError(
                "coordinator_name and coordinator_address must be given together, got "
                f"{coordinator_name!r} and {coordinator_address!r}. No server is started here."
            )
        self._description = (tpu, zone, project, credentials, service, discovery_url)
        self._hosts()
        self._task_type = job_name
        self._extra_job = (
            {coordinator_name: [coordinator_address]}
            if coordinator_name is not None and coordinator_address is not None
            else {}
        )
        self._rpc_layer = "grpc"
        self._platform = platform

    @staticmethod
    def connect(
        tpu: str | list[str] | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """Returns a resolver after checking that its TPU can be used from this machine.

        With one host the check starts JAX's TPU backend. With several, it only checks that the TPU is
        ready: the strategy must join the hosts before a backend starts.

        Raises:
            CloudError: If the TPU is not ready, or none is attached to this machine.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        if resolver.num_processes == 1:
            attached_devices("tpu")
        return resolver

    def cluster_spec(self) -> ClusterSpec:
        """Returns the hosts of the TPU; empty for a local one.

        Raises:
            CloudResourceNotFoundError: If there is no TPU of that name.
            CloudError: If it is not ready.
        """
        hosts = [str(address) for address in self._hosts().addresses()]
        return ClusterSpec({str(self.task_type): hosts, **self._extra_job} if hosts else {})

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the URL of a host; ``""`` for a local TPU.

        By default it is the URL of the first host, or of the host with the ``task_id`` that was set.
        """
        spec = self.cluster_spec()
        if not spec:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = (self._task_id or 0) if task_id is None else task_id
        address = spec.task_address(str(task_type), task_id)
        return format_master_url(address, rpc_layer or self.rpc_layer)

    def get_master(self) -> str:
        """Returns ``master()``."""
        return self.master()

    def get_job_name(self) -> str | None:
        """Returns the job of the hosts."""
        return self.task_type

    def get_coordination_service_leader(self) -> str:
        """Returns the first host as a device path."""
        return f"/job:{self.get_job_name()}/task:0"

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """Returns metadata of the TPUs that JAX sees. It starts the JAX backend.

        Raises:
            CloudError: If none is attached to this machine.
        """
        return TPUSystemMetadata.of_devices(attached_devices(self._platform))

    def set_tpu_topology(self, serialized_tpu_topology: bytes) -> None:
        """Raises: JAX reads the topology from the devices."""
        raise UnsupportedTPUFeatureError(
            "The topology of a TPU cannot be set: JAX reads it from the devices. Remove "
            "set_tpu_topology, and use the coords of jax.devices()."
        )

    @property
    def tpu_hardware_feature(self) -> Any:
        """Raises: JAX has no such description."""
        raise UnsupportedTPUFeatureError(
            "tpu_hardware_feature has no counterpart on JAX. Use device_kind of jax.devices()."
        )

    @property
    def platform(self) -> str:
        """The JAX platform of the TPU's cores."""
        return self._platform

    @property
    def coordinator_address(self) -> str | None:
        """The address of host 0 for JAX's processes; ``None`` for a local TPU."""
        addresses = self._hosts().addresses()
        return str(Address(addresses[0].host, _COORDINATOR_PORT)) if addresses else None

    @property
    def num_processes(self) -> int:
        """The number of hosts of the TPU."""
        return max(1, len(self._hosts().addresses()))

    @property
    def process_id(self) -> int:
        """The index of this host."""
        task_id = self.task_id or 0
        if task_id >= self.num_processes:
            raise TaskError(
                f"task_id must be below the number of TPU hosts ({self.num_processes}), "
                f"got {task_id}. It comes from TPU_WORKER_ID unless it was set."
            )
        return task_id

    def _hosts(self) -> TPUHosts:
        return find_tpu(*self._description)

    def _find_task_id(self) -> int:
        return self._hosts().own_index()

    def _count_accelerators(self) -> dict[str, int]:
        return {"TPU": super()._count_accelerators().get("TPU", 0)}
