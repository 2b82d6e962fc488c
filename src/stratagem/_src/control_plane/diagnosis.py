"""Why a worker waits in vain: from what is known of the others to a finding, without any I/O."""

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

__all__ = ["SILENT_SECONDS", "Finding", "ServerView", "Wait", "diagnose", "find_cut"]

SILENT_SECONDS = 8.0
"""The heartbeat timeout. Workers and the membership server send heartbeats twice a second."""

_CUT_SECONDS = SILENT_SECONDS + 2.0
"""Longer than the heartbeat timeout: of a worker that is silent altogether, that is to be said."""

_SETTLED_SECONDS = 2.0
_SERVER_GONE = "the meeting point beside the leader is gone: its machine or process was ended"


@dataclass(frozen=True, slots=True)
class Wait:
    """What a worker waits for.

    Attributes:
        status: Where it stands itself.
        seconds: How long it has been waiting.
        timeout: How long it may.
        in_sequence: Whether it waits in the common sequence of programs; else beside it, for input.
        may_compute: Whether a program that all have launched may take as long as it likes.
        main_begins: The iteration over a dataset in which its main thread waits for the first step.
        begun: For each dataset the number of the latest iteration that it has begun.
    """

    status: WorkerStatus
    seconds: float
    timeout: float
    in_sequence: bool = True
    may_compute: bool = False
    main_begins: InputIteration | None = None
    begun: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a worker knows of the membership server.

    Attributes:
        worker: The worker on whose host it runs.
        silent: Seconds since it was last heard of.
        gone: Whether the connection to it has ended.
    """

    worker: int = 0
    silent: float = 0.0
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the wait is in vain.

    Attributes:
        culprit: The worker because of which; ``None`` if it is the program that differs.
        text: The reason, to be shown.
        is_lost: Whether a worker is gone or not heard of, so that the others could go on without it.
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
    """Returns why ``me`` waits in vain, or ``None`` while there is hope.

    >>> views = [PeerView(absent=False), PeerView(absent=False, gone=True)]
    >>> diagnose(0, Wait(WorkerStatus(WAITING, 3, "step"), 0.1, 60.0), views, ["worker 0", "worker 1"])
    Finding(culprit=1, text='worker 1 is gone: its process was killed or crashed', is_lost=True)

    Args:
        me: The waiting worker.
        wait: What it waits for.
        views: What is known of every worker.
        names: What every worker is called.
        server: What is known of the membership server, which the views come from.
    """
    peers = [index for index in range(len(views)) if index != me]
    # First, because who gave up knows the cause, and may be gone by now.
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
        silent = views[index].silent
        if silent >= SILENT_SECONDS:
            return Finding(
                index,
                f"{names[index]} has not been heard of for {silent} s: its process is stopped, "
                "its machine hangs, or the network is down",
                is_lost=True,
            )
    if server.silent >= SILENT_SECONDS:
        # The views are as old as that: nobody in them may be called alive, or late.
        return Finding(server.worker, _silence_of(server, me, names), is_lost=True)
    for index in peers:
        status = views[index].status
        if status.phase == LEAVING and _never_comes(status, wait):
            return Finding(index, f"{names[index]} has come to the end of its program")
    if wait.in_sequence and wait.seconds > _SETTLED_SECONDS:
        finding = _find_mismatch(me, wait, views, names)
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


def find_cut(me: int, unacknowledged: Mapping[int, float], names: Sequence[str]) -> Finding | None:
    """Returns why ``me`` waits in vain for a worker that is alive, but out of its reach.

    >>> find_cut(0, {1: 1.0}, ["worker 0", "worker 1"])
    >>> find_cut(0, {1: 12.0}, ["worker 0", "worker 1"]).culprit
    1

    Args:
        me: The waiting worker.
        unacknowledged: For how many seconds other workers have acknowledged nothing that they were sent.
        names: What every worker is called.
    """
    for index, seconds in unacknowledged.items():
        if seconds >= _CUT_SECONDS:
            return Finding(
                index,
                f"{names[me]} and {names[index]} cannot reach each other, though the leader reaches both: "
                f"nothing that one sent the other was acknowledged for {seconds:.0f} s. A firewall or a "
                "network is in the way",
                is_lost=True,
            )
    return None


def _silence_of(server: ServerView, me: int, names: Sequence[str]) -> str:
    where = "its own host" if server.worker == me else "its host"
    return (
        f"{names[server.worker]} has not been heard of for {server.silent:.0f} s: the membership server "
        f"on {where} does not answer. The host is off or hangs, or the network is down"
    )


def _never_comes(leaving: WorkerStatus, wait: Wait) -> bool:
    """Returns whether a worker at the end of its program is still needed here."""
    mine = wait.status
    if mine.phase == LEAVING:
        return False
    return mine.phase != WAITING or leaving.launched < mine.launched


def _find_mismatch(
    me: int, wait: Wait, views: Sequence[PeerView], names: Sequence[str]
) -> Finding | None:
    """Finds a worker that waits for me in the common sequence, while I wait elsewhere in it."""
    mine = wait.status
    for index, view in enumerate(views):
        theirs = view.status
        if index != me and _have_parted(mine, theirs):
            return Finding(
                None,
                f"{names[index]} is at {theirs.at}, and {names[me]} at {mine.at}. Every worker must "
                "run the same steps, with the same shapes, in the same order",
            )
    return None


def _have_parted(mine: WorkerStatus, theirs: WorkerStatus) -> bool:
    """Returns whether two workers have come to different places after the same way."""
    if mine.agreed != theirs.agreed:
        # One of them has not heard yet what was agreed on: its view is old, or it is cut off.
        return False
    if mine.phase == theirs.phase == AGREEING:
        return mine.awaits != theirs.awaits
    if mine.phase == WAITING and theirs.phase == AGREEING:
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
    """Finds a worker whose main thread waits for me to begin an iteration, while I wait for it.

    What it said last of itself may be old. But it cannot have gone on since: the iteration in which it
    waits has no first step before I begin it.
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


def _find_late(
    wait: Wait, views: Sequence[PeerView], peers: Sequence[int], names: Sequence[str]
) -> Finding | None:
    late = [i for i in peers if not _has_come(views[i].status, wait)]
    if late:
        doing = "; ".join(
            f"{names[i]} is alive but has not come: {_doing(views[i].status)}" for i in late
        )
        return Finding(late[0], f"{doing} (waited {wait.seconds:.0f} s)")
    if wait.may_compute:
        return None
    everybody = ", ".join(names[i] for i in peers)
    return Finding(
        peers[0],
        f"it did not end within {wait.seconds:.0f} s, though {everybody} came to it too: it takes "
        "longer than that, or the workers cannot reach each other",
    )


def _has_come(theirs: WorkerStatus, wait: Wait) -> bool:
    """Returns whether a worker is where another waits for it, or has been there."""
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
