"""``JobFollower``: what the pods of a job print and what happens to them, until the job is over."""

from __future__ import annotations

import queue
import time
from typing import Any

from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.backends.kubernetes_manifests import JOB_LABEL
from stratagem._src.launcher.console import Console
from stratagem._src.process.background import Background

__all__ = ["JobFollower"]

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_FOR_LAST_LINES = 10.0
_SECONDS_FOR_A_CALL = 60
_WITHOUT_CODE = 1


class JobFollower:
    """Follows the pods of a job through the Kubernetes API.

    Args:
        core: A ``CoreV1Api`` of the official client.
        namespace: Where the job is.
        name: What it is called.
        num_pods: How many pods it has.
        console: Where their lines and what happens to them are shown.
    """

    def __init__(
        self, core: Any, namespace: str, name: str, num_pods: int, console: Console
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
        self._told: set[str] = set()

    def follow(self) -> int:
        """Shows everything until every pod has ended, and returns the exit code of the job."""
        notice = WaitingNotice()
        while True:
            self._background.check()
            pods = self._pods()
            self._tell_events()
            for pod in pods:
                self._follow_log(pod)
            self._show_lines()
            ended = [pod for pod in pods if pod.status.phase in ("Succeeded", "Failed")]
            if len(ended) == len(pods) >= self._num_pods or _failed_for_good(pods, ended):
                self._background.join(_SECONDS_FOR_LAST_LINES)
                self._show_lines()
                return _exit_code(ended)
            waiting = [pod for pod in pods if pod.status.phase == "Pending"]
            if (waiting or len(pods) < self._num_pods) and notice.is_due():
                self._console.message(
                    f"{notice.seconds:.0f} s: {_state(waiting, pods, self._num_pods)}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _pods(self) -> list[Any]:
        """Returns the pods but for those that were taken away: others come in their place."""
        found = self._core.list_namespaced_pod(
            self._namespace,
            label_selector=self._selector,
            _request_timeout=_SECONDS_FOR_A_CALL,
        )
        return [pod for pod in found.items if not _was_taken_away(pod)]

    def _tell_events(self) -> None:
        """Tells of warnings: what is normal is shown by the output of the tasks."""
        found = self._core.list_namespaced_event(
            self._namespace,
            field_selector="type=Warning",
            _request_timeout=_SECONDS_FOR_A_CALL,
        )
        for event in found.items:
            about = event.involved_object.name or ""
            key = f"{about}: {event.reason}: {event.message}"
            if about.startswith(self._name) and key not in self._told:
                self._told.add(key)
                self._console.message(key)

    def _follow_log(self, pod: Any) -> None:
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


def _was_taken_away(pod: Any) -> bool:
    conditions = pod.status.conditions or []
    return any(found.type == "DisruptionTarget" and found.status == "True" for found in conditions)


def _failed_for_good(pods: list[Any], ended: list[Any]) -> bool:
    """Returns whether a container failed and no pod runs any more, though some never came."""
    return any(_code(pod) for pod in ended) and len(ended) == len(pods)


def _exit_code(pods: list[Any]) -> int:
    # All launchers of a job end with the same code.
    codes = [code for pod in pods if (code := _code(pod)) is not None]
    if not codes:
        return _WITHOUT_CODE
    return next((code for code in codes if code), 0)


def _code(pod: Any) -> int | None:
    statuses = pod.status.container_statuses or []
    codes = [
        status.state.terminated.exit_code
        for status in statuses
        if status.state is not None and status.state.terminated is not None
    ]
    return int(codes[0]) if codes else None


def _state(waiting: list[Any], pods: list[Any], num_pods: int) -> str:
    names = ", ".join(pod.metadata.name for pod in waiting)
    missing = num_pods - len(pods)
    parts = [f"waiting for {names} to start"] * bool(names)
    return "; ".join(parts + [f"{missing} pods are not made yet"] * (missing > 0))
