"""``Server``: one task of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.cluster_def import ClusterDef, ServerDef
from stratagem._src.cluster.cluster_spec import ClusterSpec
from stratagem._src.cluster.config_proto import ConfigProto
from stratagem._src.cluster.errors import TaskError
from stratagem._src.cluster.resolvers.cluster_resolver import ClusterResolver
from stratagem._src.cluster.resolvers.tf_config_cluster_resolver import TFConfigClusterResolver
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.parameter_server.server.parameter_service import ParameterService
from stratagem._src.parameter_server.task_server.protocol_credentials import credentials_for
from stratagem._src.parameter_server.task_server.task_definition import define_server
from stratagem._src.parameter_server.worker.worker_service import WorkerService
from stratagem._src.profiling.task.profile_service import ProfileService
from stratagem._src.telemetry.monitoring.monitored_task import report_if_monitored
from stratagem._src.transport import Handler, Identity, TransportServer

__all__ = ["Server"]


class Server:
    """Makes this process one task of a cluster: a worker, or a parameter server.

    A worker runs functions for a ``ClusterCoordinator``; a parameter server holds variables.

    Peers authenticate with the cluster's secret, ``STRATAGEM_CLUSTER_SECRET`` or the content of the file
    ``STRATAGEM_CLUSTER_SECRET_FILE``; ``stratagem run`` creates one for every job. If
    ``STRATAGEM_TLS_AUTHORITY``, ``STRATAGEM_TLS_CERTIFICATE`` and ``STRATAGEM_TLS_KEY`` are set, peers
    authenticate with certificates (mutual TLS). With neither, a server accepts only processes of the same
    user on the same machine. All traffic is encrypted, and a server rejects peers that address another
    job or index.

    >>> import stratagem as sg
    >>> server = sg.distribute.Server.create_local_server()
    >>> server.target.startswith("grpc://localhost:")
    True
    >>> server.shutdown()

    Differs from tf.distribute: the protocols are ``"grpc"`` and ``"grpc+tls"``, which name the same
    transport without and with TLS (it is stratagem's own, not gRPC), and TLS is used wherever the
    environment has its files; ``config`` has no effect; ``shutdown`` and ``serve_task`` exist.

    Args:
        server_or_cluster_def: A ``ServerDef``, or the cluster as ``ClusterSpec``, ``ClusterDef`` or
            dictionary.
        job_name: The job of this task. Defaults to that of the ``ServerDef``, or the only job.
        task_index: The index of this task. Defaults to that of the ``ServerDef``, or the only task.
        protocol: ``"grpc"`` or ``"grpc+tls"``. Defaults to that of the ``ServerDef``, or ``"grpc"``.
        config: ``None`` or a ``ConfigProto``, which has no effect. Devices are set up with
            ``stratagem.config``.
        start: Whether to start at once.

    Raises:
        TaskError: If the cluster has no such task, or the task is ambiguous.
        InvalidArgumentError: If the protocol is unknown, or lacks its certificates.
        PermissionDeniedError: If there is neither secret nor TLS and the address is not loopback.
        UnavailableError: If the port is in use.
    """

    def __init__(
        self,
        server_or_cluster_def: ServerDef | ClusterDef | ClusterSpec | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
    ) -> None:
        if not isinstance(config, ConfigProto | None):
            raise InvalidArgumentError(
                f"config must be None or a ConfigProto, got {type(config).__name__}. Set up devices with "
                "stratagem.config before the server is created."
            )
        report_if_monitored()
        self._definition = define_server(server_or_cluster_def, job_name, task_index, protocol)
        credentials = credentials_for(self._definition.protocol)
        self._scheme = "grpc" if credentials.tls is None else "grpc+tls"
        job_name = self._definition.job_name
        handlers: dict[str, Handler] = {}
        self._worker: WorkerService | None = None
        if job_name != "ps":
            self._worker = WorkerService(job_name, self._definition.task_index, credentials)
            handlers |= self._worker.handlers
        if job_name != "worker":
            handlers |= ParameterService().handlers
        self._profile = ProfileService(f"{job_name} {self._definition.task_index}")
        handlers |= self._profile.handlers
        cluster = ClusterSpec(self._definition.cluster)
        address = cluster.task_address(job_name, self._definition.task_index)
        own = Identity.of_task(job_name, self._definition.task_index)
        self._transport = TransportServer(
            address, handlers, credentials, own, peers=_hosts(cluster)
        )
        if start:
            self.start()

    @property
    def server_def(self) -> ServerDef:
        """The cluster, and which task of it this server is."""
        return self._definition

    @property
    def target(self) -> str:
        """The address of this server, such as ``"grpc://worker0:2222"``."""
        return f"{self._scheme}://{self._transport.address}"

    def start(self) -> None:
        """Starts serving.

        Raises:
            TaskError: If it was started before.
            UnavailableError: If the port is in use.
        """
        if self._transport.was_started:
            raise TaskError(
                f"A server must be started once, but the one at {self.target} was started before. "
                "Create another."
            )
        self._transport.start()

    def join(self) -> None:
        """Blocks until the server is shut down.

        Raises:
            TaskError: If it was not started.
        """
        if not self._transport.was_started:
            raise TaskError(f"A server must be started before join, got the one for {self.target}.")
        self._transport.wait()

    def shutdown(self) -> None:
        """Stops serving; ``join`` returns."""
        self._transport.shutdown()
        self._profile.close()
        if self._worker is not None:
            self._worker.close()

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """Returns the server of a cluster with a single task, in the job ``"local"``."""
        cluster = ClusterSpec({"local": ["localhost:0"]})
        return Server(cluster, "local", 0, "grpc", config, start)

    @staticmethod
    def serve_task(cluster_resolver: ClusterResolver | None = None) -> None:
        """Serves until the job ends if this task is a worker or parameter server, and then exits.

        In the chief and the evaluator it returns at once, so one line at the start of a script is enough
        for all tasks:

        >>> import stratagem as sg
        >>> sg.distribute.Server.serve_task()  # workers and parameter servers end here

        Args:
            cluster_resolver: Says which task this is. Default: from ``TF_CONFIG``, which ``stratagem run``
                sets.

        Raises:
            SystemExit: With 0, in a worker or parameter server that was shut down.
            TaskError: If the cluster has no such task.
        """
        resolver = cluster_resolver or TFConfigClusterResolver()
        if resolver.task_type in ("worker", "ps"):
            Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id).join()
            raise SystemExit(0)

    def __repr__(self) -> str:
        task = f"/job:{self._definition.job_name}/task:{self._definition.task_index}"
        return f"Server({task}, {self.target})"


def _hosts(cluster: ClusterSpec) -> list[str]:
    return [
        Address.parse(cluster.task_address(job, index)).host
        for job in cluster.jobs
        for index in cluster.task_indices(job)
    ]
