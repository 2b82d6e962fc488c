"""``RayPlacement``: room for the tasks of a job on a Ray cluster."""

from __future__ import annotations

import logging
import time
from typing import Any, Self

from stratagem._src.core.errors import UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources

__all__ = ["RayPlacement"]

_log = logging.getLogger("stratagem")
_SECONDS_BETWEEN_LOOKS = 0.5


class RayPlacement:
    """A placement group with a bundle for each task, as long as it is entered.

    Args:
        ray: The module.
        counts: The tasks.
        resources: What each of them is to have.
        timeout: Seconds until there must be room.

    Raises:
        UnavailableError: If there is not.
    """

    def __init__(
        self, ray: Any, counts: TaskCounts, resources: TaskResources, timeout: float
    ) -> None:
        self._ray = ray
        self._bundles = [_bundle(job, counts, resources) for job in counts.jobs()]
        self._timeout = timeout
        self._group: Any = None

    def actor_options(self, bundle: int) -> dict[str, Any]:
        """Returns the options of an actor that lives in one of the bundles."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        wanted = self._bundles[bundle]
        return {
            "num_cpus": wanted["CPU"],
            "num_gpus": wanted.get("GPU", 0),
            "memory": wanted.get("memory"),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            ),
        }

    def __enter__(self) -> Self:
        self._group = self._ray.util.placement_group(self._bundles, strategy="SPREAD")
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline, notice = time.monotonic() + self._timeout, WaitingNotice()
        while not self._group.wait(_SECONDS_BETWEEN_LOOKS):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"The Ray cluster must have room for {len(self._bundles)} tasks within "
                    f"{self._timeout:g} s; they need {self._bundles} and it has "
                    f"{self._ray.cluster_resources()} in all. Ask for less, or add nodes."
                )
            if notice.is_due():
                _log.warning(
                    "waiting for room for %d tasks on the Ray cluster (%.0f s of %g), which has %s left",
                    len(self._bundles),
                    notice.seconds,
                    self._timeout,
                    self._ray.available_resources(),
                )

    def __exit__(self, *_: object) -> None:
        self._ray.util.remove_placement_group(self._group)


def _bundle(job: str, counts: TaskCounts, resources: TaskResources) -> dict[str, float]:
    bundle: dict[str, float] = {"CPU": resources.cpus or 1}
    if resources.memory_bytes is not None:
        bundle["memory"] = resources.memory_bytes
    serves = job == "ps" or (job == "chief" and counts.ps > 0)
    if resources.gpus is not None and not serves:
        bundle["GPU"] = resources.gpus
    return bundle
