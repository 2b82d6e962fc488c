"""``stratagem run``: runs a program as the tasks of a cluster."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from stratagem._src.cli.backends import add_backend_flags, make_backend
from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import ClusterSpecError, LaunchError
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.count_range import ONE, CountRange, parse_range
from stratagem._src.launcher.islands_job import (
    check_islands,
    island_flags,
    one_island,
    run_islands,
)
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_rules import JobRules
from stratagem._src.launcher.python_program import PythonProgram
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources, parse_memory

if TYPE_CHECKING:
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_command", "describe_job"]

_LOOPBACK = "127.0.0.1"
_DESCRIPTION = """\
Runs a program in one process for each task of a cluster: on this machine, on several hosts, or with
a scheduler. Every process gets TF_CONFIG, which describes the cluster, and a shared secret. If a task
fails, all are stopped, and the exit code is that of the first failure. Workers and parameter servers of
a chief, and lost workers of an elastic job, are restarted instead.
"""
_EXAMPLES = """\
examples:
  stratagem run --workers 3 train.py --lr 0.1
  stratagem run --workers 2:3 train.py
  stratagem run --islands 2 --workers 2 train.py
  stratagem run --islands 2 --island 0 --island-server node0:7000 --on slurm --workers 8 train.py
  stratagem run --workers 2 --devices-per-worker 4 -m my_package.train
  stratagem run --workers 2 --ps 2 --chief train.py
  stratagem run --workers 8 --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29400 train.py
"""


def add_command(commands: _Commands) -> None:
    """Adds ``run`` to the commands."""
    parser = commands.add_parser(
        "run",
        help="run a program as the tasks of a cluster",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="stratagem run [flags] PROGRAM [arguments]",
        allow_abbrev=False,
    )
    _add_job_flags(parser)
    _add_monitoring_flags(parser)
    backends = add_backend_flags(parser)
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a module")
    # One argument, not two: argparse would consume a "--" between them.
    parser.add_argument(
        "program",
        nargs=argparse.PARSER,
        metavar="PROGRAM",
        help="a Python script, or a module with -m, and its arguments",
    )

    def run(options: argparse.Namespace) -> int:
        job = describe_job(options)
        backend = make_backend(backends, options)
        if options.island is not None or options.island_server is not None:
            job = _one_island(job, options)
        elif options.islands is not None:
            return _run_islands(job, options)
        if job.rules.min_workers is not None and options.on not in ("local", "hosts"):
            raise LaunchError(
                f"A range of workers must be left out with --on {options.on}, which does not restart "
                "single tasks. Use --on local or hosts."
            )
        if options.dry_run:
            print(backend.preview(job))
            return 0
        return backend.run(job, Console(sys.stdout, sys.stderr))

    parser.set_defaults(command=run)


def _run_islands(job: JobDescription, options: argparse.Namespace) -> int:
    if options.on != "local":
        raise LaunchError(
            f"--islands starts all islands on this machine, got --on {options.on} too. Start 'stratagem "
            "island-server', and one job for each island with --island and --island-server."
        )
    check_islands(job, options.islands)
    if options.dry_run:
        for island in range(options.islands):
            print(f"# island {island}\nstratagem run {shlex.join(island_flags(job, island))}")
        return 0
    return run_islands(job, options.islands, Console(sys.stdout, sys.stderr))


def _one_island(job: JobDescription, options: argparse.Namespace) -> JobDescription:
    given = (options.islands, options.island, options.island_server)
    if None in given:
        raise LaunchError(
            "--islands, --island and --island-server are given together to run one island, got "
            f"{', '.join(map(str, given))}."
        )
    inherits = options.on in ("local", "hosts")
    return one_island(job, options.island, options.islands, options.island_server, inherits)


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument(
        "--workers",
        type=parse_range,
        default=ONE,
        metavar="[MIN:]N",
        help="number of workers; default: 1; with MIN, training continues with at least MIN workers when "
        "others are lost, and the lost ones are restarted (sg.train.elastic)",
    )
    tasks.add_argument("--chief", action="store_true", help="add a chief, which leads the workers")
    tasks.add_argument(
        "--ps",
        type=int,
        default=0,
        metavar="N",
        help="number of parameter servers; they are stopped when the other tasks are done",
    )
    tasks.add_argument(
        "--evaluator", action="store_true", help="add an evaluator; the job waits for it to finish"
    )
    tasks.add_argument(
        "--devices-per-worker",
        type=int,
        metavar="N",
        help="split the CPU into N virtual devices in each process",
    )
    tasks.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable for every task, not for secrets; repeatable",
    )
    tasks.add_argument("--name", default="", help="name of the job; default: derived from PROGRAM")
    islands = parser.add_argument_group("islands", "groups of workers over slow links")
    islands.add_argument(
        "--islands",
        type=int,
        metavar="N",
        help="N groups of --workers each: synchronous within a group, averaged between groups by "
        "sg.distribute.experimental.LocalUpdates; a lost group is restarted (--max-worker-restarts)",
    )
    islands.add_argument(
        "--island",
        type=int,
        metavar="I",
        help="run only island I of --islands N, on any back end; needs --island-server",
    )
    islands.add_argument(
        "--island-server",
        metavar="HOST:PORT",
        help="address of 'stratagem island-server'; STRATAGEM_ISLANDS_SECRET or "
        "STRATAGEM_ISLANDS_SECRET_FILE must give the same secret to all islands",
    )
    each = parser.add_argument_group("resources of each task", "requested from a scheduler")
    each.add_argument("--cpus", type=int, metavar="N", help="number of CPU cores")
    each.add_argument("--memory", metavar="SIZE", help="memory, such as 512M or 4G")
    each.add_argument(
        "--gpus", type=int, metavar="N", help="number of GPUs; for workers, not for servers"
    )
    ending = parser.add_argument_group("failures and output")
    ending.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of restarts of a failed job, or of its chief alone if there are parameter "
        "servers; default: 0",
    )
    ending.add_argument(
        "--max-worker-restarts",
        type=int,
        default=10,
        metavar="N",
        help="maximum number of restarts of one worker or parameter server, if a chief or enough other "
        "workers can continue without it; default: 10",
    )
    ending.add_argument(
        "--grace-seconds",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL; default: 5",
    )
    ending.add_argument("--quiet", action="store_true", help="show only the leader's output")
    ending.add_argument("--log-dir", metavar="DIR", help="directory for every task's log file")
    ending.add_argument(
        "--dry-run",
        action="store_true",
        help="print the job and what would be submitted, and start nothing",
    )


def _add_monitoring_flags(parser: argparse.ArgumentParser) -> None:
    monitoring = parser.add_argument_group("monitoring")
    monitoring.add_argument(
        "--events",
        metavar="FILE",
        help="append the job's events, and its tasks' measurements of every second, as lines of JSON",
    )
    monitoring.add_argument(
        "--dashboard",
        action="store_true",
        help="serve a web page that shows the job, also for 'stratagem top'",
    )
    monitoring.add_argument(
        "--dashboard-address",
        type=_dashboard_address,
        metavar="[HOST:]PORT",
        help="address of the web page; default: a free port of 127.0.0.1; other hosts need the key in the "
        "link",
    )
    monitoring.add_argument(
        "--dashboard-certfile",
        metavar="FILE",
        help="serve the web page over HTTPS, with the certificate in this PEM file",
    )
    monitoring.add_argument(
        "--dashboard-keyfile",
        metavar="FILE",
        help="PEM file with the key of that certificate; default: it is in the same file",
    )
    monitoring.add_argument(
        "--opentelemetry",
        action="store_true",
        help="export measurements as OpenTelemetry metrics, configured by the OTEL_ variables",
    )


def _dashboard_address(text: str) -> str:
    address = text if ":" in text else f"{_LOOPBACK}:{text}"
    try:
        return str(Address.parse(address))
    except ClusterSpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def describe_job(options: argparse.Namespace) -> JobDescription:
    """Returns the job that the flags describe."""
    name, *arguments = options.program
    return JobDescription(
        PythonProgram(name, tuple(arguments), options.module),
        TaskCounts(options.workers.maximum, options.ps, options.chief, options.evaluator),
        options.name,
        options.devices_per_worker,
        dict(map(_variable, options.env)),
        TaskResources(
            options.cpus,
            None if options.memory is None else parse_memory(options.memory),
            options.gpus,
        ),
        JobRules(
            options.max_restarts,
            options.max_worker_restarts,
            options.grace_seconds,
            _min_workers(options),
        ),
        options.quiet,
        options.log_dir,
        options.events,
        options.dashboard_address or (f"{_LOOPBACK}:0" if options.dashboard else None),
        options.opentelemetry,
        options.dashboard_certfile,
        options.dashboard_keyfile,
    )


def _min_workers(options: argparse.Namespace) -> int | None:
    """Returns the minimum number of workers over all nodes, or ``None`` if the job is not elastic."""
    nodes: CountRange = getattr(options, "nnodes", ONE)
    if nodes.minimum is None:
        if options.workers.minimum is not None and nodes.maximum > 1:
            raise LaunchError(
                f"--workers {options.workers.minimum}:{options.workers.maximum} is for one node. With "
                f"several, give the minimum number of nodes: --nnodes MIN:{nodes.maximum}."
            )
        return options.workers.minimum
    if options.workers.minimum is not None:
        raise LaunchError(
            "--nnodes MIN:MAX needs a single number of --workers, got a range. Use --workers N."
        )
    return nodes.minimum * int(options.workers.maximum)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise LaunchError(f"--env must be NAME=VALUE, got {text!r}.")
    return name, value
