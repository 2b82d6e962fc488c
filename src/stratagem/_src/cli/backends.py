"""From ``--on`` and the flags that go with it to a back end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratagem._src.cli.backend_flags import BackendFlags
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

__all__ = ["BackendChoice", "add_backend_flags", "make_backend"]


@dataclass(frozen=True)
class BackendChoice:
    """One value of ``--on``: the flags that go with it, and the back end that they make."""

    flags: BackendFlags
    make: Callable[..., Backend]


def add_backend_flags(parser: argparse.ArgumentParser) -> Mapping[str, BackendChoice]:
    """Adds ``--on`` and every back end's own flags."""
    slurm, kubernetes = _slurm(parser), _kubernetes(parser)
    kubernetes.flags.share(slurm.flags, "--detach")
    found = (_local(parser), _hosts(parser), slurm, kubernetes, _ray(parser))
    choices = {choice.flags.backend: choice for choice in found}
    parser.add_argument(
        "--on",
        choices=choices,
        help="where the tasks run; default: local, or hosts if its flags are given",
    )
    return choices


def make_backend(choices: Mapping[str, BackendChoice], options: argparse.Namespace) -> Backend:
    """Returns the back end that was chosen.

    Raises:
        LaunchError: If flags of another one were given.
    """
    if options.on is None:
        options.on = "hosts" if choices["hosts"].flags.given(options) else "local"
    chosen = choices[options.on]
    for choice in choices.values():
        choice.flags.refuse(options, chosen.flags)
    return chosen.make(**chosen.flags.given(options))


def _local(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(parser, "local", "on this machine", "nothing to choose")
    return BackendChoice(flags, LocalBackend)


def _hosts(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "hosts",
        "across nodes",
        "run the same command on every node: with its rank, and the tasks of that node, or with --task "
        "and the whole job",
    )
    flags.add(
        "--nnodes",
        type=parse_range,
        metavar="[MIN:]N",
        help="default: 1; with MIN, training goes on with the workers of so few nodes",
    )
    flags.add("--node-rank", type=int, metavar="N", help="default: 0")
    flags.add(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="where node 0 is met; STRATAGEM_CLUSTER_SECRET or STRATAGEM_CLUSTER_SECRET_FILE must "
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
        help="run one task of the job that the flags describe, such as worker:1, or 'by-rank' where "
        "srun, mpirun or torchrun starts this command once for each task",
    )
    flags.add(
        "--own-host",
        metavar="HOST",
        help="with --task: by which the others reach it; default: its address towards the endpoint",
    )
    flags.add(
        "--led",
        action="store_true",
        help="with --task: who listens at the endpoint is a launcher without tasks, as that of a "
        "scheduler's job",
    )
    return BackendChoice(flags, _make_hosts)


def _slurm(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "slurm",
        "by Slurm",
        "submits a batch job and follows it; inside an allocation, runs the tasks as one step",
    )
    flags.add("--partition", metavar="NAME", help="default: Slurm's")
    flags.add("--account", metavar="NAME", help="who is charged; default: Slurm's")
    flags.add(
        "--time", dest="time_limit", metavar="LIMIT", help="such as 30 (minutes) or 1-12:00:00"
    )
    flags.add("--nodes", type=int, metavar="N", help="to spread the tasks over")
    flags.add(
        "--requeue",
        action="store_true",
        help="queue the job again when it is preempted, or when its time is nearly over",
    )
    flags.add(
        "--slurm-option",
        dest="extra",
        action="append",
        metavar="OPTION",
        help="of sbatch, as it is, such as --qos=long; may be given several times",
    )
    flags.add(
        "--shared-dir",
        metavar="DIR",
        help="that all nodes see, for the secret; default: in this user's home",
    )
    flags.add("--detach", action="store_true", help="return when the job is submitted")
    return BackendChoice(flags, _make_slurm)


def _kubernetes(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "kubernetes",
        "by Kubernetes",
        "makes a JobSet, or indexed jobs and a service, and follows them",
    )
    flags.add("--image", metavar="IMAGE", help="with the program and stratagem in it")
    flags.add("--namespace", metavar="NAME", help="default: default")
    flags.add("--service-account", metavar="NAME", help="of the pods; default: the namespace's")
    flags.add(
        "--jobset",
        action=argparse.BooleanOptionalAction,
        help="make a JobSet; default: where the cluster has them",
    )
    flags.add(
        "--run-as-user",
        type=int,
        metavar="UID",
        help="of the containers; default: the image's, which must not be root; 0 for root",
    )
    flags.add(
        "--network-policy",
        action=argparse.BooleanOptionalAction,
        help="let only pods of the job reach its pods; default: yes",
    )
    return BackendChoice(flags, _make_kubernetes)


def _ray(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(parser, "ray", "by Ray", "runs the tasks as actors in a placement group")
    flags.add(
        "--ray-address",
        dest="address",
        metavar="HOST:PORT",
        help="of a Ray cluster, or auto; default: start one for the job on this machine",
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
        if (nnodes.most, node_rank) != (1, 0):
            raise LaunchError("--task must stand without --nnodes and --node-rank, got both.")
        return OneTaskBackend(task, rdzv_endpoint, rdzv_timeout, own_host, led)
    if own_host or led:
        raise LaunchError("--own-host and --led must stand with --task, got them without.")
    if nnodes.most == 1 and node_rank == 0:
        return LocalBackend()
    return HostsBackend(nnodes.most, node_rank, rdzv_endpoint, rdzv_timeout)
