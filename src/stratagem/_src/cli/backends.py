"""From ``--on`` and the flags that go with it to a back end."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stratagem._src.cli.backend_flags import BackendFlags
from stratagem._src.launcher.backends.backend import Backend
from stratagem._src.launcher.backends.hosts import HostsBackend
from stratagem._src.launcher.backends.local import LocalBackend

__all__ = ["BackendChoice", "add_backend_flags", "make_backend"]


@dataclass(frozen=True)
class BackendChoice:
    """One value of ``--on``: the flags that go with it, and the back end that they make."""

    flags: BackendFlags
    make: Callable[..., Backend]


def add_backend_flags(parser: argparse.ArgumentParser) -> Mapping[str, BackendChoice]:
    """Adds ``--on`` and every back end's own flags."""
    choices = {choice.flags.backend: choice for choice in (_local(parser), _hosts(parser))}
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
    for name, choice in choices.items():
        if name != options.on:
            choice.flags.refuse(options)
    chosen = choices[options.on]
    return chosen.make(**chosen.flags.given(options))


def _local(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(parser, "local", "on this machine", "nothing to choose")
    return BackendChoice(flags, LocalBackend)


def _hosts(parser: argparse.ArgumentParser) -> BackendChoice:
    flags = BackendFlags(
        parser,
        "hosts",
        "across nodes",
        "run the same command on every node, each with its own rank; the tasks are those of the node",
    )
    flags.add("--nnodes", type=int, metavar="N", help="default: 1")
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
    return BackendChoice(flags, _make_hosts)


def _make_hosts(
    nnodes: int = 1, node_rank: int = 0, rdzv_endpoint: str = "", rdzv_timeout: float = 300.0
) -> Backend:
    if nnodes == 1 and node_rank == 0:
        return LocalBackend()
    return HostsBackend(nnodes, node_rank, rdzv_endpoint, rdzv_timeout)
