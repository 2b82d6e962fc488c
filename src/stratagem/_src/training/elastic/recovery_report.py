"""``RecoveryReport``: tells the monitoring what an elastic job recovered, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterable

from stratagem._src.control_plane.generation import Generation, Member
from stratagem._src.telemetry.measurement.recorder import recorder
from stratagem._src.training.elastic.boundary import Boundary

__all__ = ["RecoveryReport"]


class RecoveryReport:
    """One interruption of an elastic job.

    It begins with the loss of workers, or the arrival of others, and ends at the next boundary that all
    workers reach together.

    Args:
        before: The generation that was interrupted.
    """

    def __init__(self, before: Generation | None) -> None:
        self._before = () if before is None else before.members
        self._began = time.monotonic()
        self._text = ""

    def resume(self, generation: Generation | None, me: Member, boundary: Boundary) -> None:
        """Describes what the workers resume from. One of them reports it: the first.

        Args:
            generation: The generation that continues.
            me: This worker.
            boundary: Where all of them continue.
        """
        members = () if generation is None else generation.members
        if not members or members[0] != me:
            return
        re_formed = time.monotonic() - self._began
        changes = [
            *_describe("lost", _without(self._before, members)),
            *_describe("admitted", _without(members, self._before)),
        ]
        arrays = boundary.values.arrays()
        size = sum(array.nbytes for array in arrays)
        workers = f"{len(members)} worker{'s' * (len(members) > 1)}"
        self._text = (
            f"{', '.join(changes) or 'the workers re-formed'}: {workers} resumed at step "
            f"{boundary.place['step']} with {len(arrays)} variables ({size:,} bytes); re-formed after "
            f"{re_formed:.1f} s"
        )

    def finish(self) -> None:
        """Publishes the report: the workers have completed a step together."""
        current = recorder()
        if current is not None and self._text:
            seconds = time.monotonic() - self._began
            current.note("recovery", f"{self._text}, trained again after {seconds:.1f} s")


def _without(members: Iterable[Member], others: Iterable[Member]) -> list[Member]:
    incarnations = {member.incarnation for member in others}
    return [member for member in members if member.incarnation not in incarnations]


def _describe(what: str, members: Iterable[Member]) -> list[str]:
    names = [f"{member.job} {member.index}" for member in members]
    return [f"{what} {', '.join(names)}"] if names else []
