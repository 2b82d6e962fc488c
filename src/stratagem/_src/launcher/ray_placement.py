"""``RayPlacement``: a Ray placement group for the tasks of a job."""

from __future__ import annotations

import logging
import time
from types import ModuleType
from typing import Any, Self

from stratagem._src.core.errors import UnavailableError
from stratagem._src.core.waiting_notice import WaitingNotice
from stratagem._src.launcher.task_counts import TaskCounts
from stratagem._src.launcher.task_resources import TaskResources

__all__ = ["RayPlacement"]

_log = logging.getLogger("stratagem")
_POLL_INTERVAL = 0.5


class RayPlacement:
    """A placement group with one bundle for each task, while entered.

    Args:
        ray: The ``ray`` module.
        counts: The tasks.
        resources: The resources of each task.
        timeout: Seconds to wait for the placement group.

    Raises:
        UnavailableError: If the cluster does not have the resources in time.
    """

    def __init__(
        self, ray: ModuleType, counts: TaskCounts, resources: TaskResources, timeout: float
    ) -> None:
        self._ray = ray
        self._bundles = [_bundle(job, counts, resources) for job in counts.jobs()]
        self._timeout = timeout
        self._group: Any = None

    def actor_options(self, bundle: int) -> dict[str, Any]:
        """Returns the options of an actor that runs in one of the bundles."""
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
        while not self._group.wait(_POLL_INTERVAL):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"The Ray cluster must place {len(self._bundles)} tasks within "
                    f"{self._timeout:g} s; they need {self._bundles} and it has "
                    f"{self._ray.cluster_resources()} in total. Request fewer resources, or add nodes."
                )
            if notice.is_due():
                _log.warning(
                    "waiting for the Ray cluster to place %d tasks (%.0f s of %g); it has %s available",
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
