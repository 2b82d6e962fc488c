"""``stratagem run``: starts a program as the tasks of a cluster."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.local_job import run_local_job
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import run_rendezvous_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_program import TaskProgram
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import read_secret

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command"]

_DESCRIPTION = """\
Starts a program in one process for each task of a cluster. Every process gets TF_CONFIG, which
says who is in the cluster, and STRATAGEM_CLUSTER_SECRET, which only they know. If one fails, all
are ended, and the exit code is that of the first that failed. Workers of a job with a chief and
parameter servers are started again instead.
"""
_EXAMPLES = """\
examples:
  stratagem run --workers 3 train.py --lr 0.1
  stratagem run --workers 2 --devices-per-worker 4 -m my_package.train
  stratagem run --workers 2 --ps 2 --chief train.py
  stratagem run --workers 8 --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29400 train.py
"""


def add_command(commands: _Commands) -> None:
    """Adds ``run`` to the commands."""
    parser = commands.add_parser(
        "run",
        help="start a program as the tasks of a cluster",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=_run)
    tasks = parser.add_argument_group("tasks of this node")
    tasks.add_argument("--workers", type=int, default=1, metavar="N", help="default: 1")
    tasks.add_argument(
        "--chief", action="store_true", help="a chief, which leads, beside the workers"
    )
    tasks.add_argument(
        "--ps", type=int, default=0, metavar="N", help="parameter servers, ended after the others"
    )
    tasks.add_argument(
        "--evaluator", action="store_true", help="an evaluator; the job waits for it to finish"
    )
    tasks.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="N",
        help="split the CPU into N virtual devices in each process",
    )
    nodes = parser.add_argument_group(
        "across nodes", "run the same command on every node, each with its own rank"
    )
    nodes.add_argument("--nnodes", type=int, default=1, metavar="N", help="default: 1")
    nodes.add_argument("--node-rank", type=int, default=0, metavar="N", help="default: 0")
    nodes.add_argument(
        "--rdzv-endpoint",
        metavar="HOST:PORT",
        help="where node 0 is met; STRATAGEM_CLUSTER_SECRET or STRATAGEM_CLUSTER_SECRET_FILE must "
        "give the same secret on every node",
    )
    nodes.add_argument(
        "--rdzv-timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long nodes wait for each other; default: 300",
    )
    ending = parser.add_argument_group("failures and output")
    ending.add_argument(
        "--max-restarts", type=int, default=0, metavar="N", help="restart a failed job; default: 0"
    )
    ending.add_argument(
        "--max-worker-restarts",
        type=int,
        default=10,
        metavar="N",
        help="restart a failed worker alone where a chief and parameter servers can go on without "
        "it; default: 10",
    )
    ending.add_argument(
        "--grace-seconds",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="between asking a process to end and killing it; default: 5",
    )
    ending.add_argument("--quiet", action="store_true", help="show the leader's output only")
    ending.add_argument("--log-dir", type=Path, metavar="DIR", help="keep every task's output")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python script, or a module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="for PROGRAM")


def _run(options: argparse.Namespace) -> int:
    for name in ("max_restarts", "max_worker_restarts", "grace_seconds"):
        if getattr(options, name) < 0:
            raise LaunchError(
                f"--{name.replace('_', '-')} must not be negative, got {getattr(options, name)}."
            )
    counts = TaskCounts(options.workers, options.ps, options.chief, options.evaluator)
    rendezvous = _rendezvous(options)
    command = _command(options)
    if options.log_dir is not None:
        options.log_dir.mkdir(parents=True, exist_ok=True)
    program = TaskProgram(
        command, dict(os.environ), options.devices_per_worker, options.quiet, options.log_dir
    )
    console = Console(sys.stdout, sys.stderr)
    if rendezvous is None:
        result = run_local_job(
            counts,
            program,
            console,
            grace_seconds=options.grace_seconds,
            max_restarts=options.max_restarts,
            max_worker_restarts=options.max_worker_restarts,
            signals=SignalPipe(),
        )
    else:
        result = run_rendezvous_job(
            rendezvous,
            counts,
            program,
            console,
            SignalPipe(),
            grace_seconds=options.grace_seconds,
            max_restarts=options.max_restarts,
            max_worker_restarts=options.max_worker_restarts,
        )
    return result.exit_code


def _rendezvous(options: argparse.Namespace) -> Rendezvous | None:
    if options.nnodes < 1 or not 0 <= options.node_rank < options.nnodes:
        raise LaunchError(
            f"--node-rank must be from 0 to --nnodes less one, got {options.node_rank} of "
            f"{options.nnodes}."
        )
    if options.nnodes == 1:
        return None
    if options.rdzv_endpoint is None:
        raise LaunchError(
            f"--nnodes {options.nnodes} needs --rdzv-endpoint, the host and port where node 0 is "
            "met, such as node0:29400."
        )
    return Rendezvous(
        endpoint=Address.parse(options.rdzv_endpoint),
        num_nodes=options.nnodes,
        node_rank=options.node_rank,
        timeout_seconds=options.rdzv_timeout,
        credentials=_node_credentials(),
    )


def _node_credentials() -> Credentials:
    read_secret()  # raises where there is none: certificates alone do not do here
    return Credentials.from_environment()


def _command(options: argparse.Namespace) -> tuple[str, ...]:
    if not options.module:
        if not Path(options.program).is_file():
            raise LaunchError(
                f"PROGRAM must be a Python script that exists, got {options.program!r}. "
                "Use -m for a module."
            )
        return (sys.executable, options.program, *options.arguments)
    return (sys.executable, "-m", options.program, *options.arguments)
