"""``PreemptionWatcher``: says whether a worker of the cluster was told to end."""

from __future__ import annotations

import time
import weakref

from stratagem._src.control_plane.coordinated_stop import LonelyLine
from stratagem._src.control_plane.join import JoinedCluster, joined_cluster
from stratagem._src.control_plane.membership_client import Call, MeetingClient
from stratagem._src.training.preemption_notices import PreemptionNotices
from stratagem._src.training.termination_config import TerminationConfig

__all__ = ["PreemptionWatcher"]

_TOPICS = "preemption"
_POLL_SECONDS = 0.25


class PreemptionWatcher:
    """Notes when this process, or any worker that trains in step with it, is told to end.

    Make it after the strategy. While it exists SIGTERM does not end this process.

    Differs from tf.distribute: works on all platforms, for SIGTERM and what ``TerminationConfig`` says
    of Slurm; ``block_until_worker_exit`` gives up after the timeout of the strategy.

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
    'worker 0 is to end: it got SIGTERM'
    """

    def __init__(self) -> None:
        self._joined = joined_cluster()
        self._heard = _Heard(self._joined)
        line: MeetingClient | LonelyLine = (
            LonelyLine() if self._joined is None else self._joined.watch.line
        )
        line.listen(self._heard.take)
        self._notices = PreemptionNotices(
            TerminationConfig(), lambda why: line.call(f"{_TOPICS} of a worker", why)
        )
        weakref.finalize(self, _close, self._notices, line, self._heard).atexit = False

    @property
    def preemption_message(self) -> str | None:
        """Who is to end, and why; ``None`` while nobody is."""
        self._notices.check()
        return self._heard.message

    def block_until_worker_exit(self) -> None:
        """Waits until the workers that are to end have done so; returns at once if this is one of them."""
        joined, workers = self._joined, set(self._heard.workers)
        if joined is None or joined.process_id in workers:
            return
        line, deadline = joined.watch.line, time.monotonic() + joined.watch.timeout
        while not line.have_ended(workers) and time.monotonic() < deadline:
            line.wait_for_change(lambda: line.have_ended(workers), _POLL_SECONDS)


class _Heard:
    """What was heard, apart from the watcher, so that listening does not keep that alive."""

    def __init__(self, joined: JoinedCluster | None) -> None:
        self._joined = joined
        self.message: str | None = None
        self.workers: set[int] = set()

    def take(self, call: Call) -> None:
        """Takes in a call."""
        if call.topic.startswith(_TOPICS):
            self.workers.add(call.by)
            name = "worker 0" if self._joined is None else self._joined.workers[call.by]
            self.message = self.message or f"{name} is to end: {call.why}"


def _close(notices: PreemptionNotices, line: MeetingClient | LonelyLine, heard: _Heard) -> None:
    notices.close()
    line.ignore(heard.take)
