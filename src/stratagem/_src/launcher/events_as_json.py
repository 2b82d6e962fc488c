"""Reports and orders as JSON, for nodes that talk over the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from signal import Signals
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError, RendezvousError
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer
from stratagem._src.launcher.events import (
    Announced,
    Finish,
    Interrupted,
    JoinAgain,
    NodeJoined,
    NodeStopped,
    Order,
    PassOn,
    Report,
    Start,
    StartAgain,
    Stop,
    TakeUpAgain,
    TaskEnded,
)
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_ending import TaskEnding

__all__ = ["order_from_json", "order_to_json", "report_from_json", "report_to_json"]


def report_to_json(report: Report) -> dict[str, Any]:
    """Returns a node's report as JSON.

    >>> from stratagem._src.launcher.events import NodeStopped
    >>> from stratagem._src.launcher.events_as_json import report_from_json, report_to_json
    >>> report_to_json(NodeStopped(3))
    {'kind': 'NodeStopped', 'node': 3}
    >>> report_from_json(report_to_json(NodeStopped(3)))
    NodeStopped(node=3)
    """
    return {"kind": type(report).__name__, **asdict(report)}


def order_to_json(order: Order) -> dict[str, Any]:
    """Returns an order as JSON."""
    said = asdict(order)
    if isinstance(order, TakeUpAgain):
        said["start"] = order_to_json(order.start)
    if isinstance(order, Start):
        # The keys of JSON objects are strings.
        said["plan"]["tasks"] = sorted(order.plan.tasks.items())
    return {"kind": type(order).__name__, **said}


def report_from_json(message: dict[str, Any]) -> Report:
    """Returns the report that a node sent.

    Raises:
        RendezvousError: If it is not one.
    """
    return _decode(_REPORTS, message)


def order_from_json(message: dict[str, Any]) -> Order:
    """Returns the order that node 0 sent.

    Raises:
        RendezvousError: If it is not one.
    """
    return _decode(_ORDERS, message)


def _decode(decoders: dict[str, Callable[..., Any]], message: dict[str, Any]) -> Any:
    said = dict(message)
    kind = said.pop("kind", None)
    try:
        return decoders[kind](**said)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, LaunchError) as error:
        raise RendezvousError(
            f"Nodes of a job must run the same version of stratagem, but a message of kind {kind!r} "
            f"was not understood ({type(error).__name__}: {error})."
        ) from None


def _joined(offer: dict[str, Any]) -> NodeJoined:
    counts = TaskCounts(**offer["counts"])
    ports = tuple(int(port) for port in offer["ports"])
    if len(ports) != counts.num_ports:
        raise ValueError(f"{len(ports)} ports for {counts.num_ports} tasks")
    for port in ports:
        Address(offer["host"], port)
    return NodeJoined(NodeOffer(int(offer["node"]), offer["host"], counts, ports))


def _ended(ending: dict[str, Any]) -> TaskEnded:
    return TaskEnded(
        TaskEnding(
            _task(ending["task"]),
            int(ending["returncode"]),
            bool(ending["by_launcher"]),
            str(ending["output"]),
        )
    )


def _start(attempt: int, job_id: str, plan: dict[str, Any], collector: str) -> Start:
    tasks = {int(node): tuple(map(_task, placed)) for node, placed in plan["tasks"]}
    plan_of_all = ClusterPlan(dict(plan["cluster"]), tasks)
    return Start(int(attempt), str(job_id), plan_of_all, str(collector))


def _task(task: Any) -> Task:
    task_type, task_id = task
    return Task(str(task_type), int(task_id))


_START_FIELDS = tuple(field.name for field in fields(Start))
_REPORTS: dict[str, Callable[..., Report]] = {
    "NodeJoined": _joined,
    "TaskEnded": _ended,
    "NodeStopped": lambda node: NodeStopped(int(node)),
    "Announced": lambda signal: Announced(Signals(signal)),
    "Interrupted": lambda signal: Interrupted(Signals(signal)),
}
_ORDERS: dict[str, Callable[..., Order]] = {
    "Start": _start,
    "StartAgain": lambda task, reason: StartAgain(_task(task), str(reason)),
    "PassOn": lambda signal, tasks: PassOn(Signals(signal), tuple(map(_task, tasks))),
    "TakeUpAgain": lambda node, start, reason: TakeUpAgain(
        int(node), _start(**{key: start[key] for key in _START_FIELDS}), str(reason)
    ),
    "Stop": lambda signal, seconds: Stop(Signals(signal), float(seconds)),
    "JoinAgain": lambda attempt, reason: JoinAgain(int(attempt), str(reason)),
    "Finish": lambda exit_code, message: Finish(int(exit_code), str(message)),
}
