"""``PreemptionWatcher``: reports whether a worker of the cluster is being preempted."""

from __future__ import annotations

import time
import weakref

from stratagem._src.control_plane.coordinated_stop import LocalBroadcast
from stratagem._src.control_plane.join import JoinedCluster, joined_cluster
from stratagem._src.control_plane.membership_client import Broadcast, MembershipClient
from stratagem._src.training.preemption_notices import PreemptionNotices
from stratagem._src.training.termination_config import TerminationConfig

__all__ = ["PreemptionWatcher"]

_TOPICS = "preemption"
_POLL_SECONDS = 0.25


class PreemptionWatcher:
    """Observes preemption notices of this process and of the other synchronous workers.

    Create it after the strategy. While it exists, SIGTERM does not end this process.

    Differs from tf.distribute: works on all platforms, for SIGTERM and for the Slurm signals of
    ``TerminationConfig``; ``block_until_worker_exit`` gives up after the timeout of the strategy.

    Raises:
        RuntimeError: If this is not the main thread.

    >>> import os, signal, time
    >>> import stratagem as sg
    >>> watcher = sg.distribute.experimental.PreemptionWatcher()
    >>> watcher.preemption_message
    >>> os.kill(os.getpid(), signal.SIGTERM)
    >>> while watcher.preemption_message is None:
    ...     time.sleep(0.01)
    >>> watcher.preemption_message
    'worker 0 is being preempted: it received SIGTERM'
    """

    def __init__(self) -> None:
        self._joined = joined_cluster()
        self._heard = _Heard(self._joined)
        membership: MembershipClient | LocalBroadcast = (
            LocalBroadcast() if self._joined is None else self._joined.watch.membership
        )
        membership.add_listener(self._heard.take)
        self._notices = PreemptionNotices(
            TerminationConfig(), lambda why: membership.broadcast(f"{_TOPICS} of a worker", why)
        )
        weakref.finalize(self, _close, self._notices, membership, self._heard).atexit = False

    @property
    def preemption_message(self) -> str | None:
        """Which worker is being preempted, and why; ``None`` if none is."""
        self._notices.check()
        return self._heard.message

    def block_until_worker_exit(self) -> None:
        """Waits until the preempted workers have exited; returns at once if this is one of them."""
        joined, workers = self._joined, set(self._heard.workers)
        if joined is None or joined.process_id in workers:
            return
        membership, deadline = joined.watch.membership, time.monotonic() + joined.watch.timeout
        while not membership.have_ended(workers) and time.monotonic() < deadline:
            membership.wait_for_change(lambda: membership.have_ended(workers), _POLL_SECONDS)


class _Heard:
    """The notices so far. A separate object, so that the listener does not keep the watcher alive."""

    def __init__(self, joined: JoinedCluster | None) -> None:
        self._joined = joined
        self.message: str | None = None
        self.workers: set[int] = set()

    def take(self, broadcast: Broadcast) -> None:
        """Takes in a broadcast."""
        if broadcast.topic.startswith(_TOPICS):
            self.workers.add(broadcast.by)
            name = "worker 0" if self._joined is None else self._joined.workers[broadcast.by]
            self.message = self.message or f"{name} is being preempted: {broadcast.why}"


def _close(
    notices: PreemptionNotices, membership: MembershipClient | LocalBroadcast, heard: _Heard
) -> None:
    notices.close()
    membership.remove_listener(heard.take)
