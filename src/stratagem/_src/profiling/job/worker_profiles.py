"""Writes the profiles of synchronous workers, aligned to one clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from stratagem._src.control_plane.join import JoinedCluster
from stratagem._src.profiling.task.clock import ClockOffset, now_ns, offset_from_barriers
from stratagem._src.profiling.task.task_profile import TaskProfile

__all__ = ["compare_clocks", "name_of", "write_together"]

_TOPIC = "profile"
_NUM_MOMENTS = 9


def name_of(joined: JoinedCluster, worker: int) -> str:
    """Returns the name of a worker in a profile."""
    named = joined.workers[worker]
    return f"{named.job} {named.index}"


def compare_clocks(joined: JoinedCluster) -> ClockOffset:
    """Returns the offset of this worker's clock from the leader's; all workers must call it.

    Each round is a barrier, which releases all workers at about the same time; each worker then records
    its own time.
    """
    moments = []
    for number in range(_NUM_MOMENTS):
        joined.watch.all_gather_object(_TOPIC, number, "comparison of clocks")
        moments.append(now_ns())
    every = joined.watch.all_gather_object(_TOPIC, moments, "comparison of clocks")
    return offset_from_barriers(moments, every[0])


def write_together(
    profile: TaskProfile, run_name: Callable[[], str], folder: Path, joined: JoinedCluster
) -> tuple[Path, list[str]]:
    """Writes every worker's profile, with a common time origin; all workers must call it.

    Args:
        profile: The profile of this worker.
        run_name: Returns the leader's name for the run.
        folder: The directory of runs.
        joined: The workers.

    Returns:
        The directory of the run, and the errors of other workers.

    Raises:
        OSError: If this worker cannot write its profile.
    """
    leads = joined.process_id == 0
    said = [profile.machine, run_name() if leads else ""]
    every = joined.watch.all_gather_object(_TOPIC, said, "end of a profile")
    run = folder / every[0][1]
    machines = {machine for machine, _ in every}
    if len(machines) > 1 or "" in machines:
        profile = dataclasses.replace(profile, clock=compare_clocks(joined))
    origin = min(joined.watch.all_gather_object(_TOPIC, profile.began_ns, "end of a profile"))
    failure: OSError | None = None
    try:
        profile.from_origin(origin).write(run)
    except OSError as error:
        failure = error
    told = "" if failure is None else f"{profile.task} could not write its profile: {failure}"
    troubles = joined.watch.all_gather_object(_TOPIC, told, "end of a profile")
    if failure is not None:
        raise failure
    return run, [trouble for trouble in troubles if trouble]
