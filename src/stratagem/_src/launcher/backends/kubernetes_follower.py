"""``JobFollower``: shows the logs and warnings of a job's pods until the job ends."""

from __future__ import annotations

import queue
import time
from typing import Any, TypeAlias

from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.backends.kubernetes_manifests import JOB_LABEL
from stratagem._src.launcher.console import Console
from stratagem._src.process.background import Background

__all__ = ["JobFollower"]

CoreApi: TypeAlias = Any
"""``kubernetes.client.CoreV1Api``, which is imported only where it is used."""

Pod: TypeAlias = Any
"""``kubernetes.client.V1Pod``."""

_POLL_INTERVAL = 1.0
_LOG_DRAIN_TIMEOUT = 10.0
_REQUEST_TIMEOUT = 60
_UNKNOWN_EXIT_CODE = 1


class JobFollower:
    """Follows the pods of a job through the Kubernetes API.

    Args:
        core: A ``CoreV1Api`` of the official client.
        namespace: The namespace of the job.
        name: The name of the job.
        num_pods: The number of pods.
        console: Shows their logs and warnings.
    """

    def __init__(
        self, core: CoreApi, namespace: str, name: str, num_pods: int, console: Console
    ) -> None:
        self._core = core
        self._namespace = namespace
        self._selector = f"{JOB_LABEL}={name}"
        self._name = name
        self._num_pods = num_pods
        self._console = console
        self._background = Background(f"the logs of job {name}")
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._followed: set[str] = set()
        self._shown_events: set[str] = set()

    def follow(self) -> int:
        """Shows logs and warnings until every pod has ended, and returns the exit code of the job."""
        notice = WaitingNotice()
        while True:
            self._background.check()
            pods = self._pods()
            self._show_warnings()
            for pod in pods:
                self._follow_log(pod)
            self._show_lines()
            ended = [pod for pod in pods if pod.status.phase in ("Succeeded", "Failed")]
            if len(ended) == len(pods) >= self._num_pods or _failed_for_good(pods, ended):
                self._background.join(_LOG_DRAIN_TIMEOUT)
                self._show_lines()
                return _exit_code(ended)
            waiting = [pod for pod in pods if pod.status.phase == "Pending"]
            if (waiting or len(pods) < self._num_pods) and notice.is_due():
                self._console.message(
                    f"{notice.seconds:.0f} s: {_state(waiting, pods, self._num_pods)}"
                )
            time.sleep(_POLL_INTERVAL)

    def _pods(self) -> list[Pod]:
        """Returns the pods, without those that were evicted: replacements are created for them."""
        found = self._core.list_namespaced_pod(
            self._namespace,
            label_selector=self._selector,
            _request_timeout=_REQUEST_TIMEOUT,
        )
        return [pod for pod in found.items if not _was_evicted(pod)]

    def _show_warnings(self) -> None:
        """Shows new warning events; normal events are not shown."""
        found = self._core.list_namespaced_event(
            self._namespace,
            field_selector="type=Warning",
            _request_timeout=_REQUEST_TIMEOUT,
        )
        for event in found.items:
            about = event.involved_object.name or ""
            key = f"{about}: {event.reason}: {event.message}"
            if about.startswith(self._name) and key not in self._shown_events:
                self._shown_events.add(key)
                self._console.message(key)

    def _follow_log(self, pod: Pod) -> None:
        name = pod.metadata.name
        if name in self._followed or pod.status.phase == "Pending":
            return
        self._followed.add(name)
        self._background.start(self._read_log, name, name=f"log-{name}")

    def _read_log(self, pod: str) -> None:
        response = self._core.read_namespaced_pod_log(
            pod, self._namespace, follow=True, _preload_content=False
        )
        unfinished = b""
        for chunk in response.stream():
            *lines, unfinished = (unfinished + chunk).split(b"\n")
            for line in lines:
                self._lines.put(line.decode("utf-8", "replace"))
        if unfinished:
            self._lines.put(unfinished.decode("utf-8", "replace"))

    def _show_lines(self) -> None:
        while not self._lines.empty():
            self._console.foreign_line(self._lines.get(), is_error=False)


def _was_evicted(pod: Pod) -> bool:
    conditions = pod.status.conditions or []
    return any(found.type == "DisruptionTarget" and found.status == "True" for found in conditions)


def _failed_for_good(pods: list[Pod], ended: list[Pod]) -> bool:
    """Returns whether a container failed and no pod runs any more, even if some were never created."""
    return any(_code(pod) for pod in ended) and len(ended) == len(pods)


def _exit_code(pods: list[Pod]) -> int:
    # All launchers of a job exit with the same code.
    codes = [code for pod in pods if (code := _code(pod)) is not None]
    if not codes:
        return _UNKNOWN_EXIT_CODE
    return next((code for code in codes if code), 0)


def _code(pod: Pod) -> int | None:
    statuses = pod.status.container_statuses or []
    codes = [
        status.state.terminated.exit_code
        for status in statuses
        if status.state is not None and status.state.terminated is not None
    ]
    return int(codes[0]) if codes else None


def _state(waiting: list[Pod], pods: list[Pod], num_pods: int) -> str:
    names = ", ".join(pod.metadata.name for pod in waiting)
    missing = num_pods - len(pods)
    parts = [f"waiting for {names} to start"] * bool(names)
    return "; ".join(parts + [f"{missing} pods are not created yet"] * (missing > 0))
