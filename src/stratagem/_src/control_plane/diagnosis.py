"""Diagnoses why a worker's wait can never end, from the last known state of the others. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stratagem._src.control_plane.worker_status import (
    AGREEING,
    FAILED,
    LEAVING,
    WAITING,
    InputIteration,
    PeerView,
    WorkerStatus,
)

__all__ = [
    "HEARTBEAT_TIMEOUT_SECONDS",
    "Finding",
    "ServerView",
    "Wait",
    "diagnose",
    "find_partition",
]

HEARTBEAT_TIMEOUT_SECONDS = 8.0
"""The heartbeat timeout. Workers and the membership server send heartbeats twice a second."""

_PARTITION_SECONDS = HEARTBEAT_TIMEOUT_SECONDS + 2.0
"""Longer than the heartbeat timeout, so that a worker without heartbeats is reported as such."""

_SETTLED_SECONDS = 2.0
_SERVER_GONE = "the membership server on its host is gone: the host or the process was stopped"


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of a worker for the others.

    Attributes:
        status: The status of the waiting worker.
        seconds: The duration of the wait so far.
        timeout: The maximum duration.
        in_sequence: Whether the wait is part of the common sequence of programs; otherwise it is for input.
        may_compute: Whether a program that all workers have launched may run without a time limit.
        main_begins: The iteration over a dataset whose first step the main thread waits for.
        begun: The number of the latest iteration over each dataset that the worker has begun.
        in_main_thread: Whether the main thread waits, so that it begins no iteration meanwhile.
    """

    status: WorkerStatus
    seconds: float
    timeout: float
    in_sequence: bool = True
    may_compute: bool = False
    main_begins: InputIteration | None = None
    begun: Mapping[str, int] = field(default_factory=dict)
    in_main_thread: bool = False


@dataclass(frozen=True, slots=True)
class ServerView:
    """The state of the membership server, as a worker sees it.

    Attributes:
        worker: The rank of the worker on whose host it runs.
        heartbeat_age: Seconds since its last heartbeat.
        gone: Whether the connection to it has ended.
    """

    worker: int = 0
    heartbeat_age: float = 0.0
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The reason why a wait can never end.

    Attributes:
        culprit: The rank of the worker that causes it; ``None`` if the programs differ.
        text: The reason, as text for the user.
        is_lost: Whether a worker is gone or unresponsive, so that the others could continue without it.
    """

    culprit: int | None
    text: str
    is_lost: bool = False


_HEARD = ServerView()


def diagnose(
    me: int,
    wait: Wait,
    views: Sequence[PeerView],
    names: Sequence[str],
    server: ServerView = _HEARD,
) -> Finding | None:
    """Returns why the wait of ``me`` can never end, or ``None`` if it still may.

    The order of the checks matters: a direct cause (another worker's own finding, a dead process) comes
    before consequences of it (missing heartbeats, a worker that is late).

    >>> views = [PeerView(absent=False), PeerView(absent=False, gone=True)]
    >>> diagnose(0, Wait(WorkerStatus(WAITING, 3, "step"), 0.1, 60.0), views, ["worker 0", "worker 1"])
    Finding(culprit=1, text='worker 1 is gone: its process was killed or crashed', is_lost=True)

    Args:
        me: The rank of the waiting worker.
        wait: The wait.
        views: The last known state of every worker.
        names: The names of all workers.
        server: The state of the membership server, which sent the views.
    """
    peers = [index for index in range(len(views)) if index != me]
    # First, because a worker that gave up knows the cause, and may be gone by now.
    for index in peers:
        status = views[index].status
        if status.phase == FAILED and status.culprit != me:
            text = f"{names[index]} gave up: {status.reason}"
            return Finding(status.culprit, text, is_lost=status.culprit is not None)
    for index in peers:
        status = views[index].status
        if status.phase == FAILED and status.culprit == me:
            text = f"{names[index]} gave up on {names[me]}: {status.reason}"
            return Finding(me, text, is_lost=True)
    for index in peers:
        if views[index].gone and views[index].left is None:
            text = f"{names[index]} is gone: its process was killed or crashed"
            return Finding(index, text, is_lost=True)
    for index in peers:
        left = views[index].left
        if left is not None:
            return Finding(index, f"{names[index]} has left: {left}")
    for index in peers:
        age = views[index].heartbeat_age
        if age >= HEARTBEAT_TIMEOUT_SECONDS:
            return Finding(
                index,
                f"{names[index]} has sent no heartbeat for {age} s: its process is suspended, its host "
                "hangs, or the network is down",
                is_lost=True,
            )
    if server.heartbeat_age >= HEARTBEAT_TIMEOUT_SECONDS:
        # The views are as old as the server's last heartbeat: they prove no worker alive, or late.
        return Finding(server.worker, _server_timeout_text(server, me, names), is_lost=True)
    for index in peers:
        status = views[index].status
        if status.phase == LEAVING and _will_never_arrive(status, wait):
            return Finding(index, f"{names[index]} has reached the end of its program")
    if wait.in_sequence and wait.seconds > _SETTLED_SECONDS:
        finding = _find_mismatch(me, wait, views, names)
        if finding is None and wait.in_main_thread:
            finding = _find_input_elsewhere(me, wait, views, names)
        if finding is not None:
            return finding
    if wait.main_begins is not None and wait.seconds > _SETTLED_SECONDS:
        finding = _find_other_input(me, wait.main_begins, wait.begun, views, names)
        if finding is not None:
            return finding
    if server.gone:
        text = f"{names[server.worker]} is gone: {_SERVER_GONE}"
        return Finding(server.worker, text, is_lost=True)
    if wait.seconds > wait.timeout:
        return _find_late(wait, views, peers, names)
    return None


def find_partition(
    me: int, unacknowledged: Mapping[int, float], names: Sequence[str]
) -> Finding | None:
    """Returns the finding that another worker is alive, but unreachable from ``me`` (network partition).

    >>> find_partition(0, {1: 1.0}, ["worker 0", "worker 1"])
    >>> find_partition(0, {1: 12.0}, ["worker 0", "worker 1"]).culprit
    1

    Args:
        me: The rank of the waiting worker.
        unacknowledged: By rank, the seconds for which a worker has acknowledged nothing that was sent to
            it.
        names: The names of all workers.
    """
    for index, seconds in unacknowledged.items():
        if seconds >= _PARTITION_SECONDS:
            return Finding(
                index,
                f"{names[me]} and {names[index]} cannot reach each other, although the leader reaches "
                f"both: no data between them has been acknowledged for {seconds:.0f} s. Check for a "
                "firewall or a network partition",
                is_lost=True,
            )
    return None


def _server_timeout_text(server: ServerView, me: int, names: Sequence[str]) -> str:
    where = "its own host" if server.worker == me else "its host"
    return (
        f"{names[server.worker]} has sent no heartbeat for {server.heartbeat_age:.0f} s: the membership "
        f"server on {where} does not respond. The host is off or hangs, or the network is down"
    )


def _will_never_arrive(leaving: WorkerStatus, wait: Wait) -> bool:
    """Returns whether a worker at the end of its program is still needed for this wait."""
    mine = wait.status
    if mine.phase == LEAVING:
        return False
    return mine.phase != WAITING or leaving.launched < mine.launched


def _find_mismatch(
    me: int, wait: Wait, views: Sequence[PeerView], names: Sequence[str]
) -> Finding | None:
    """Finds a worker that waits for ``me`` at another place of the common sequence."""
    mine = wait.status
    for index, view in enumerate(views):
        theirs = view.status
        if index != me and _have_diverged(mine, theirs):
            return Finding(
                None,
                f"{names[index]} is at {theirs.at}, and {names[me]} at {mine.at}. Every worker must "
                "run the same steps, with the same shapes, in the same order",
            )
    return None


def _have_diverged(mine: WorkerStatus, theirs: WorkerStatus) -> bool:
    """Returns whether two workers with the same history are at different places of the sequence."""
    if mine.agreed != theirs.agreed:
        # One of them has not received the last gather yet: its view is old, or it is partitioned.
        return False
    if mine.phase == theirs.phase == AGREEING:
        return mine.awaits != theirs.awaits
    if mine.phase == WAITING and theirs.phase == AGREEING:
        # This worker waits in program 5 (launched 5), the other one in a gather after program 4 (launched
        # 4), and both have completed the same gathers: each waits for the other to come where it is.
        return mine.launched == theirs.launched + 1
    if mine.phase == AGREEING and theirs.phase == WAITING:
        return theirs.launched == mine.launched + 1
    return False


def _find_other_input(
    me: int,
    mine: InputIteration,
    begun: Mapping[str, int],
    views: Sequence[PeerView],
    names: Sequence[str],
) -> Finding | None:
    """Finds a worker whose main thread waits for ``me`` to begin an iteration, while ``me`` waits for it.

    The status of that worker may be old, but it cannot have changed since: the iteration in which it waits
    has no first step before ``me`` begins it.
    """
    for index, view in enumerate(views):
        theirs = view.status.main_begins
        if index == me or theirs is None or theirs == mine or mine in view.status.begins:
            continue
        if begun.get(theirs.dataset, -1) < theirs.number:
            return Finding(
                None,
                f"{names[index]} draws from {theirs}, and {names[me]} from {mine}. Every worker must "
                "draw from the same iterators, in the same order",
            )
    return None


def _find_input_elsewhere(
    me: int, wait: Wait, views: Sequence[PeerView], names: Sequence[str]
) -> Finding | None:
    """Finds a worker that waits for the main thread of ``me`` to begin an iteration over a dataset."""
    mine = wait.status
    for index, view in enumerate(views):
        theirs = view.status.main_begins
        if index == me or theirs is None or _has_arrived(view.status, wait):
            continue
        if wait.begun.get(theirs.dataset, -1) < theirs.number:
            return Finding(
                None,
                f"{names[index]} draws from {theirs}, and {names[me]} is at {mine.at}. Every worker must "
                "create the same variables, run the same steps and draw from the same iterators, in the "
                "same order",
            )
    return None


def _find_late(
    wait: Wait, views: Sequence[PeerView], peers: Sequence[int], names: Sequence[str]
) -> Finding | None:
    late = [i for i in peers if not _has_arrived(views[i].status, wait)]
    if late:
        doing = "; ".join(
            f"{names[i]} is alive but has not arrived: {_doing(views[i].status)}" for i in late
        )
        return Finding(late[0], f"{doing} (waited {wait.seconds:.0f} s)")
    if wait.may_compute:
        return None
    all_workers = ", ".join(names[i] for i in peers)
    return Finding(
        peers[0],
        f"it did not end within {wait.seconds:.0f} s, although {all_workers} reached it too: it takes "
        "longer than that, or the workers cannot reach each other",
    )


def _has_arrived(theirs: WorkerStatus, wait: Wait) -> bool:
    """Returns whether a worker is at the place of the wait, or has passed it."""
    mine = wait.status
    if mine.phase == WAITING:
        return theirs.launched >= mine.launched
    if mine.phase != AGREEING:
        return theirs.phase == mine.phase
    if not wait.in_sequence:
        return mine.at in theirs.inputs
    return theirs.agreed > mine.agreed or (
        theirs.phase == AGREEING and theirs.awaits == mine.awaits
    )


def _doing(status: WorkerStatus) -> str:
    if status.phase in (AGREEING, WAITING, LEAVING):
        doing = f"it is at {status.at}"
    else:
        doing = "it is busy in its own code" + (f" after {status.at}" if status.at else "")
    if status.inputs:
        doing += f", and its input waits for {', '.join(status.inputs)}"
    return doing
