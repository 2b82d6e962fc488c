"""``VariableRegistry``: the coordinator's record of the variables that parameter servers hold for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._src.parameter_server.client.fencing import adopt_lineage, lineage_id
from stratagem._src.parameter_server.client.unclaimed_variables import (
    UnclaimedVariables,
    VariableRecord,
)

__all__ = ["VariableRegistry"]


class VariableRegistry:
    """The variables of one coordinator, and the server incarnations that hold them. Does no I/O.

    Args:
        num_servers: Number of parameter servers.

    Attributes:
        owner: The coordinator's id on the servers.
        replaces: The id of the coordinator that this one took over from; empty if there is none.
    """

    def __init__(self, num_servers: int) -> None:
        self.owner: str = uuid.uuid4().hex
        self.replaces: str = ""
        self._incarnations = [""] * num_servers
        self._variables: dict[str, VariableRecord] = {}
        self._unclaimed: UnclaimedVariables | None = None
        self._order = itertools.count()

    def identification(self) -> dict[str, str]:
        """Returns the fields by which the coordinator identifies itself to a server."""
        return {"owner": self.owner, "lineage": lineage_id()}

    def attach(self, incarnations: Sequence[str]) -> None:
        """Sets the server incarnations; drops the variables of servers whose incarnation changed."""
        for record in list(self._variables.values()):
            if any(incarnations[s.server] != self._incarnations[s.server] for s in record.shards):
                del self._variables[record.id]
        self._incarnations = list(incarnations)

    def take_over(self, unclaimed: UnclaimedVariables, incarnations: Sequence[str]) -> None:
        """Takes over the variables of an earlier coordinator, for ``claim``."""
        adopt_lineage(unclaimed.lineage)
        self.replaces = unclaimed.owner
        self._incarnations = list(incarnations)
        self._unclaimed, self._order = unclaimed, itertools.count(unclaimed.next_order)

    def claim(self, name: str, shape: tuple[int, ...], dtype: str) -> VariableRecord | None:
        """Returns an unclaimed variable with this name from the earlier coordinator, or ``None``.

        Raises:
            VariableError: If its shape or dtype differs.
        """
        record = None if self._unclaimed is None else self._unclaimed.claim(name, shape, dtype)
        if record is not None:
            self._variables[record.id] = record
        return record

    def add(self, variable: VariableRecord) -> VariableRecord:
        """Adds an initialized variable; returns its record with the creation order set."""
        record = variable._replace(order=next(self._order))
        self._variables[record.id] = record
        return record

    def drop(self, variable: str) -> None:
        """Removes a variable."""
        self._variables.pop(variable, None)

    def is_same(self, server: int, incarnation: str) -> bool:
        """Returns whether a server is the incarnation that holds the variables, not a restarted one."""
        return incarnation == self._incarnations[server]

    def mark_restarted(self, server: int, incarnation: str) -> None:
        """Records the incarnation of a restarted server that holds the variables again."""
        self._incarnations[server] = incarnation

    def shards_on(self, server: int) -> Iterator[dict[str, Any]]:
        """Yields the ``ps/create`` fields of each shard on a server."""
        for record in list(self._variables.values()):
            for index, shard in enumerate(record.shards):
                if shard.server == server:
                    yield record.shard_fields(index)

    def records_on(self, server: int) -> list[VariableRecord]:
        """Returns the records that a server stores: those of variables whose first shard it holds."""
        return [v for v in list(self._variables.values()) if v.shards[0].server == server]
