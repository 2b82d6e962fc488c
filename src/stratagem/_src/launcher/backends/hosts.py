"""``HostsBackend``: bare hosts on which the user starts the same command."""

from __future__ import annotations

from dataclasses import dataclass

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.backend import (
    description_text,
    refuse_resources,
    task_program,
)
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import run_rendezvous_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import read_secret

__all__ = ["HostsBackend"]


@dataclass(frozen=True)
class HostsBackend:
    """Runs this node's tasks, coordinated with the other nodes; each node is started with its own rank.

    Attributes:
        num_nodes: The number of nodes.
        node_rank: The rank of this node; node 0 decides for all.
        endpoint: The ``host:port`` at which node 0 listens.
        timeout_seconds: How long nodes wait for each other.

    Raises:
        LaunchError: If the rank is out of range, or there is no endpoint.
    """

    num_nodes: int
    node_rank: int
    endpoint: str
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or not 0 <= self.node_rank < self.num_nodes:
            raise LaunchError(
                f"--node-rank must be from 0 to --nnodes - 1, got {self.node_rank} of "
                f"{self.num_nodes}."
            )
        if not self.endpoint:
            raise LaunchError(
                f"--nnodes {self.num_nodes} needs --rdzv-endpoint, the host and port at which node 0 "
                "listens, such as node0:29400."
            )
        Address.parse(self.endpoint)

    def preview(self, job: JobDescription) -> str:
        """Returns the description of what this node runs."""
        refuse_resources(job, "hosts")
        return (
            f"# node {self.node_rank} of {self.num_nodes}, with the rendezvous at {self.endpoint}\n"
            f"{description_text(job)}"
        )

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs this node's part of the job and returns the exit code of the whole job."""
        refuse_resources(job, "hosts")
        rendezvous = self._rendezvous()
        result = run_rendezvous_job(
            rendezvous,
            job.tasks,
            task_program(job),
            console,
            SignalPipe(),
            job.rules,
            job.monitoring,
        )
        return result.exit_code

    def _rendezvous(self) -> Rendezvous:
        read_secret()  # raises if there is none: certificates alone are not sufficient here
        return Rendezvous(
            Address.parse(self.endpoint),
            self.num_nodes,
            self.node_rank,
            self.timeout_seconds,
            Credentials.from_environment(),
        )
