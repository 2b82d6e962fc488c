"""Encodes and decodes reports and orders as JSON, for transfer between nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from signal import Signals
from typing import Any

from stratagem._src.cluster.address import Address
from stratagem._src.cluster.errors import LaunchError, RendezvousError
from stratagem._src.cluster.leadership import Task
from stratagem._src.launcher.cluster_plan import ClusterPlan, NodeOffer
from stratagem._src.launcher.events import (
    Finish,
    ForwardSignal,
    Interrupted,
    NodeJoined,
    NodeStopped,
    Order,
    Rejoin,
    Report,
    RestartNode,
    RestartTask,
    ShutdownNotice,
    Start,
    Stop,
    TaskEnded,
)
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_exit import TaskExit

__all__ = ["order_from_json", "order_to_json", "report_from_json", "report_to_json"]


def report_to_json(report: Report) -> dict[str, Any]:
    """Returns a node's report as JSON.

    >>> from stratagem._src.launcher.events import NodeStopped
    >>> from stratagem._src.launcher.event_serialization import report_from_json, report_to_json
    >>> report_to_json(NodeStopped(3))
    {'kind': 'NodeStopped', 'node': 3}
    >>> report_from_json(report_to_json(NodeStopped(3)))
    NodeStopped(node=3)
    """
    return {"kind": type(report).__name__, **asdict(report)}


def order_to_json(order: Order) -> dict[str, Any]:
    """Returns an order as JSON."""
    message = asdict(order)
    if isinstance(order, RestartNode):
        message["start"] = order_to_json(order.start)
    if isinstance(order, Start):
        # A list of pairs, because the keys of JSON objects are strings and nodes are integers.
        message["plan"]["tasks"] = sorted(order.plan.tasks.items())
    return {"kind": type(order).__name__, **message}


def report_from_json(message: dict[str, Any]) -> Report:
    """Returns the report in a message of a node.

    Raises:
        RendezvousError: If the message is not a report.
    """
    return _decode(_REPORTS, message)


def order_from_json(message: dict[str, Any]) -> Order:
    """Returns the order in a message of node 0.

    Raises:
        RendezvousError: If the message is not an order.
    """
    return _decode(_ORDERS, message)


def _decode(decoders: dict[str, Callable[..., Any]], message: dict[str, Any]) -> Any:
    fields_of_event = dict(message)
    kind = fields_of_event.pop("kind", None)
    try:
        return decoders[kind](**fields_of_event)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, LaunchError) as error:
        raise RendezvousError(
            f"Nodes of a job must run the same version of stratagem, but a message of kind {kind!r} "
            f"could not be decoded ({type(error).__name__}: {error})."
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
        TaskExit(
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


def _task(task: Iterable[Any]) -> Task:
    task_type, task_id = task
    return Task(str(task_type), int(task_id))


_START_FIELDS = tuple(field.name for field in fields(Start))
_REPORTS: dict[str, Callable[..., Report]] = {
    "NodeJoined": _joined,
    "TaskEnded": _ended,
    "NodeStopped": lambda node: NodeStopped(int(node)),
    "ShutdownNotice": lambda signal: ShutdownNotice(Signals(signal)),
    "Interrupted": lambda signal: Interrupted(Signals(signal)),
}
_ORDERS: dict[str, Callable[..., Order]] = {
    "Start": _start,
    "RestartTask": lambda task, reason: RestartTask(_task(task), str(reason)),
    "ForwardSignal": lambda signal, tasks: ForwardSignal(Signals(signal), tuple(map(_task, tasks))),
    "RestartNode": lambda node, start, reason: RestartNode(
        int(node), _start(**{key: start[key] for key in _START_FIELDS}), str(reason)
    ),
    "Stop": lambda signal, seconds: Stop(Signals(signal), float(seconds)),
    "Rejoin": lambda attempt, reason: Rejoin(int(attempt), str(reason)),
    "Finish": lambda exit_code, message: Finish(int(exit_code), str(message)),
}
