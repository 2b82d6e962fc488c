"""Creates the back end that ``--on`` and its flags select."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.backends.backend import Backend
from stratagem._src.launcher.backends.hosts import HostsBackend
from stratagem._src.launcher.backends.kubernetes import KubernetesBackend
from stratagem._src.launcher.backends.kubernetes_manifests import KubernetesOptions
from stratagem._src.launcher.backends.local import LocalBackend
from stratagem._src.launcher.backends.one_task import OneTaskBackend
from stratagem._src.launcher.backends.ray import RayBackend
from stratagem._src.launcher.backends.slurm import SlurmBackend
from stratagem._src.launcher.backends.slurm_options import SlurmOptions
from stratagem._src.launcher.count_range import ONE, CountRange, parse_range

__all__ = ["BackendChoice", "BackendFlags", "add_backend_flags", "make_backend"]


class BackendFlags:
    """The flags of one back end; flags that are not given are not in the namespace.

    >>> import argparse
    >>> from stratagem._src.cli.backends import BackendFlags
    >>> parser = argparse.ArgumentParser()
    >>> flags = BackendFlags(parser, "hosts", "across nodes", "one command for each node")
    >>> flags.add("--nnodes", type=int)
    >>> flags.given(parser.parse_args(["--nnodes", "2"]))
    {'nnodes': 2}

    Args:
        parser: The parser to which the flags are added.
        backend: The back end's value of ``--on``.
        title: The heading of the flags in the help.
        description: The description of the flags in the help.
    """

    def __init__(
        self, parser: argparse.ArgumentParser, backend: str, title: str, description: str
    ) -> None:
        self.backend = backend
        self._parser = parser
        self._heading = (f"{title} (--on {backend})", description)
        self._group: argparse._ArgumentGroup | None = None  # one without flags is not shown
        self._flags: dict[str, str] = {}

    def add(self, flag: str, **options: Any) -> None:
        """Adds a flag with the options of ``argparse``."""
        if self._group is None:
            self._group = self._parser.add_argument_group(*self._heading)
        action = self._group.add_argument(flag, default=argparse.SUPPRESS, **options)
        self._flags[action.dest] = flag

    def share(self, other: BackendFlags, flag: str) -> None:
        """Also accepts a flag that another back end has added."""
        self._flags |= {name: known for name, known in other._flags.items() if known == flag}

    def given(self, options: argparse.Namespace) -> dict[str, Any]:
        """Returns the values of the flags that were given, by name."""
        return {name: getattr(options, name) for name in self._flags if hasattr(options, name)}

    def refuse(self, options: argparse.Namespace, chosen: BackendFlags) -> None:
        """Raises ``LaunchError`` if a flag is given that the chosen back end does not accept."""
        for name in self.given(options):
            if name in chosen._flags:
                continue
            raise LaunchError(
                f"{self._flags[name]} must be left out with --on {options.on}: only "
                f"--on {self.backend} accepts it."
            )


@dataclass(frozen=True)
class BackendChoice:
    """One value of ``--on``: its flags, and the function that creates the back end."""

    flags: BackendFlags
    make: Callable[..., Backend]


def add_backend_flags(parser: argparse.ArgumentParser) -> Mapping[str, BackendChoice]:
    """Adds ``--on`` and every back end's own flags."""
    local, hosts, slurm, kubernetes = (
        make(parser) for make in (_local, _hosts, _slurm, _kubernetes)
    )
    kubernetes.flags.share(slurm.flags, "--detach")
    found = (local, hosts, slurm, kubernetes, _ray(parser))
    choices = {choice.flags.backend: choice for choice in found}
    parser.add_argument(
        "--on",
        choices=choices,
        help="where to run the tasks; default: local, or hosts if its flags are given",
    )
    return choices


def make_backend(choices: Mapping[str, BackendChoice], options: argparse.Namespace) -> Backend:
    """Returns the chosen back end.

    Raises:
        LaunchError: If flags of another back end are given.
    """
    if options.on is None:
        options.on = "hosts" if choices["hosts"].flags.given(options) else "local"
    chosen = choices[options.on]
    for choice in choices.values():
        choice.flags.refuse(options, chosen.flags)
    return chosen.make(**chosen.flags.given(options))


def _local(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(parser, "local", "on this machine", "no further flags")
    return BackendChoice(flags, LocalBackend)


def _hosts(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "hosts",
        "across nodes",
        "run the same command on every node: with the node's rank and tasks, or with --task and the "
        "whole job",
    )
    flags.add(
        "--nnodes",
        type=parse_range,
        metavar="[MIN:]N",
        help="number of nodes; default: 1; with MIN, training continues while MIN nodes are left",
    )
    flags.add("--node-rank", type=int, metavar="N", help="rank of this node; default: 0")
    flags.add(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="address of node 0; STRATAGEM_CLUSTER_SECRET or STRATAGEM_CLUSTER_SECRET_FILE must "
        "give the same secret on every node",
    )
    flags.add(
        "--rdzv-timeout",
        type=float,
        metavar="SECONDS",
        help="how long nodes wait for each other; default: 300",
    )
    flags.add(
        "--task",
        metavar="TASK",
        help="run one task of the job, such as worker:1; 'by-rank' if srun, mpirun or torchrun starts "
        "this command once for each task",
    )
    flags.add(
        "--own-host",
        metavar="HOST",
        help=argparse.SUPPRESS,  # with --task: where the others reach it; schedulers' jobs set it
    )
    flags.add(
        "--led",
        action="store_true",
        help=argparse.SUPPRESS,  # with --task: the endpoint is the launcher of a scheduler's job
    )
    return BackendChoice(flags, _make_hosts)


def _slurm(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "slurm",
        "by Slurm",
        "submits a batch job and follows it; inside an allocation, runs the tasks as one step",
    )
    flags.add("--partition", metavar="NAME", help="partition; default: Slurm's default")
    flags.add("--account", metavar="NAME", help="account to charge; default: Slurm's default")
    flags.add(
        "--time",
        dest="time_limit",
        metavar="LIMIT",
        help="time limit, such as 30 (minutes) or 1-12:00:00",
    )
    flags.add("--nodes", type=int, metavar="N", help="number of nodes for the tasks")
    flags.add(
        "--requeue",
        action="store_true",
        help="requeue the job when it is preempted, or shortly before its time limit",
    )
    flags.add(
        "--slurm-option",
        dest="extra",
        action="append",
        metavar="OPTION",
        help="option for sbatch, such as --qos=long; repeatable",
    )
    flags.add(
        "--shared-dir",
        metavar="DIR",
        help="directory that all nodes share, for the secret; default: in the user's home",
    )
    flags.add("--detach", action="store_true", help="return when the job is submitted")
    return BackendChoice(flags, _make_slurm)


def _kubernetes(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "kubernetes",
        "by Kubernetes",
        "creates a JobSet, or indexed Jobs and a service, and follows them",
    )
    flags.add("--image", metavar="IMAGE", help="image that contains the program and stratagem")
    flags.add("--namespace", metavar="NAME", help="namespace; default: default")
    flags.add(
        "--service-account",
        metavar="NAME",
        help="service account of the pods; default: the namespace's",
    )
    flags.add(
        "--jobset",
        action=argparse.BooleanOptionalAction,
        help="create a JobSet; default: if the cluster supports it",
    )
    flags.add(
        "--run-as-user",
        type=int,
        metavar="UID",
        help="user id of the containers; default: the image's user, which must not be root; 0 for root",
    )
    flags.add(
        "--network-policy",
        action=argparse.BooleanOptionalAction,
        help="allow only pods of the job to reach its pods; default: yes",
    )
    return BackendChoice(flags, _make_kubernetes)


def _ray(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(parser, "ray", "by Ray", "runs the tasks as actors in a placement group")
    flags.add(
        "--ray-address",
        dest="address",
        metavar="HOST:PORT",
        help="address of a Ray cluster, or auto; default: start a cluster on this machine",
    )
    return BackendChoice(flags, RayBackend)


def _make_kubernetes(image: str = "", **options: Any) -> Backend:
    return KubernetesBackend(KubernetesOptions(image, **options))


def _make_slurm(extra: Sequence[str] = (), **options: Any) -> Backend:
    return SlurmBackend(SlurmOptions(extra=tuple(extra), **options))


def _make_hosts(
    nnodes: CountRange = ONE,
    node_rank: int = 0,
    rdzv_endpoint: str = "",
    rdzv_timeout: float = 300.0,
    task: str = "",
    own_host: str = "",
    led: bool = False,
) -> Backend:
    if task:
        if (nnodes.maximum, node_rank) != (1, 0):
            raise LaunchError(
                "--task cannot be used with --nnodes or --node-rank, got both. Leave them out."
            )
        return OneTaskBackend(task, rdzv_endpoint, rdzv_timeout, own_host, led)
    if own_host or led:
        raise LaunchError("--own-host and --led need --task, got them without it. Add --task.")
    if nnodes.maximum == 1 and node_rank == 0:
        return LocalBackend()
    return HostsBackend(nnodes.maximum, node_rank, rdzv_endpoint, rdzv_timeout)
