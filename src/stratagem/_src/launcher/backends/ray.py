"""``RayBackend``: runs the tasks of a job as actors on a Ray cluster."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Self, TypeAlias

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError
from stratagem._src.cluster.leadership import Task
from stratagem._src.cluster.ray_module import load_ray
from stratagem._src.cluster.reserved_ports import ReservedPorts
from stratagem._src.launcher.backends.backend import description_text
from stratagem._src.launcher.console import Console
from stratagem._src.launcher.event_loop import EventLoop
from stratagem._src.launcher.job_description import JobDescription
from stratagem._src.launcher.job_flags import job_flags
from stratagem._src.launcher.lines import LineSplitter
from stratagem._src.launcher.ray_node import RayNode
from stratagem._src.launcher.ray_placement import RayPlacement
from stratagem._src.launcher.rendezvous import Rendezvous
from stratagem._src.launcher.rendezvous_job import lead_job
from stratagem._src.launcher.signal_pipe import SignalPipe
from stratagem._src.process.background import Background
from stratagem._src.transport import Credentials
from stratagem._src.transport.secret import new_secret

__all__ = ["RayBackend"]

ActorHandle: TypeAlias = Any
"""``ray.actor.ActorHandle``."""

_RETRY_INTERVAL = 0.5
_SHUTDOWN_TIMEOUT = 10.0


@dataclass(frozen=True)
class RayBackend:
    """Runs every task in an actor of a placement group; this process leads the job.

    Attributes:
        address: The address of the Ray cluster; empty to start one for the job on this machine.
        start_seconds: The time limit for Ray to place the tasks, and for the tasks to start.
    """

    address: str = ""
    start_seconds: float = 300.0

    def preview(self, job: JobDescription) -> str:
        """Returns where the tasks would run, and the job description."""
        where = (
            f"the Ray cluster at {self.address}" if self.address else "a Ray started for the job"
        )
        return f"# {len(list(job.all_tasks()))} actors on {where}\n{description_text(job)}"

    def run(self, job: JobDescription, console: Console) -> int:
        """Runs the job and returns its exit code."""
        try:
            ray = load_ray("--on ray")
        except ImportError as error:
            raise LaunchError(str(error)) from None
        job.program.check_here()
        try:
            ray.init(self.address or "local", include_dashboard=False, log_to_driver=False)
        except (ConnectionError, RuntimeError) as error:
            raise LaunchError(
                f"--ray-address must be the address of a running Ray cluster, got {self.address!r}: {error}"
            ) from None
        try:
            return self._lead(ray, job, console)
        finally:
            ray.shutdown()

    def _lead(self, ray: ModuleType, job: JobDescription, console: Console) -> int:
        secret, tasks = new_secret(), list(job.all_tasks())
        host = ray.util.get_node_ip_address()
        with (
            ReservedPorts(1, host) as ports,
            RayPlacement(ray, job.tasks, job.resources, self.start_seconds) as placement,
        ):
            endpoint = Address(host, *ports)
            rendezvous = Rendezvous(
                endpoint,
                len(tasks) + 1,
                0,
                self.start_seconds,
                Credentials(secret, Credentials.from_environment().tls),
                ("the launcher", *map(str, tasks)),
                nodes_are_restarted=True,
            )
            command = ["-m", "stratagem", "run", "--on=hosts", "--led"]
            command += [f"--rdzv-endpoint={endpoint}", f"--rdzv-timeout={self.start_seconds:g}"]

            def arguments(task: Task) -> tuple[Any, ...]:
                place = f"--task={task.task_type}:{task.task_id}"
                return [*command, place, *job_flags(job)], secret, os.getcwd(), sys.path

            starter = _ActorStarter(ray, placement, tasks, arguments, console)
            result = lead_job(rendezvous, starter, console, SignalPipe(), job.rules, job.monitoring)
            return result.exit_code


class _ActorStarter:
    """Keeps one actor per task; Ray restarts a lost actor on any node with free resources."""

    def __init__(
        self,
        ray: ModuleType,
        placement: RayPlacement,
        tasks: list[Task],
        arguments: Callable[[Task], tuple[Any, ...]],
        console: Console,
    ) -> None:
        self._ray = ray
        self._tasks = tasks
        self._arguments = arguments
        self._console = console
        self._is_over = threading.Event()
        actor = ray.remote(RayNode)
        self._actors = [
            actor.options(**placement.actor_options(bundle), max_restarts=-1).remote()
            for bundle in range(len(tasks))
        ]

    def start(self, loop: EventLoop, give_up: Callable[[str], None]) -> None:
        """Runs the node of every actor."""
        self._loop = loop
        self._background = Background(
            "the tasks on Ray", on_failure=lambda _: loop.call_soon(self._background.check)
        )
        for task, actor in zip(self._tasks, self._actors, strict=True):
            self._background.start(self._keep_running, task, actor, name=f"ray-{task}")

    def rejoin(self, lost: list[int]) -> None:
        """Does nothing: Ray restarts lost actors, and their nodes rejoin."""

    def _keep_running(self, task: Task, actor: ActorHandle) -> None:
        errors = self._ray.exceptions
        while not self._is_over.is_set():
            splitters = (LineSplitter(), LineSplitter())
            try:
                for reference in actor.run.remote(*self._arguments(task)):
                    chunk, is_error = self._ray.get(reference)
                    for line in splitters[is_error].feed(chunk):
                        self._show(line, is_error)
                for is_error, splitter in enumerate(splitters):
                    for line in splitter.flush():
                        self._show(line, bool(is_error))
                return  # the node exited after the job's last order
            except (errors.RayActorError, errors.RayTaskError) as error:
                if self._is_over.is_set():
                    return
                first_line = str(error).split("\n")[0]
                self._loop.call_soon(
                    functools.partial(
                        self._console.message, f"the actor of {task} is gone: {first_line}"
                    )
                )
                time.sleep(_RETRY_INTERVAL)

    def _show(self, line: str, is_error: bool) -> None:
        self._loop.call_soon(functools.partial(self._console.foreign_line, line, is_error))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "_background"):
            self._drain()
        self._is_over.set()
        for actor in self._actors:
            self._ray.kill(actor)
        if hasattr(self, "_background"):
            self._background.join(_SHUTDOWN_TIMEOUT)

    def _drain(self) -> None:
        """Shows the remaining output of the nodes until they exit, or until a timeout."""
        deadline = time.monotonic() + _SHUTDOWN_TIMEOUT
        while self._background.alive() and time.monotonic() < deadline:
            self._loop.call_at(time.monotonic() + 0.1, lambda: None)
            self._loop.run_once()
        self._loop.call_at(time.monotonic(), lambda: None)
        self._loop.run_once()
