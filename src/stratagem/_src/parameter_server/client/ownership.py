"""``Ownership``: what the coordinator's process knows of the variables that servers hold for it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from stratagem._src.parameter_server.client.fencing import continue_lineage, lineage
from stratagem._src.parameter_server.client.holdings import HeldVariable, Holdings

__all__ = ["Ownership"]


class Ownership:
    """The variables of one coordinator, as far as servers have to be told of them. It talks to nobody.

    Args:
        num_servers: How many servers there are.

    Attributes:
        owner: What the servers call the coordinator.
        replaces: What they called the one that it took over from; empty if it did not.
    """

    def __init__(self, num_servers: int) -> None:
        self.owner: str = uuid.uuid4().hex
        self.replaces: str = ""
        self._incarnations = [""] * num_servers
        self._variables: dict[str, HeldVariable] = {}
        self._holdings: Holdings | None = None
        self._order = itertools.count()

    def introduction(self) -> dict[str, str]:
        """Returns how the coordinator presents itself to a server."""
        return {"owner": self.owner, "lineage": lineage()}

    def attach(self, incarnations: Sequence[str]) -> None:
        """Takes in which servers hold the variables from now on; what others held is lost."""
        for held in list(self._variables.values()):
            if any(incarnations[s.server] != self._incarnations[s.server] for s in held.shards):
                del self._variables[held.id]
        self._incarnations = list(incarnations)

    def take_over(self, holdings: Holdings, incarnations: Sequence[str]) -> None:
        """Takes in what servers hold for an earlier coordinator, to be claimed."""
        continue_lineage(holdings.lineage)
        self.replaces = holdings.owner
        self._incarnations = list(incarnations)
        self._holdings, self._order = holdings, itertools.count(holdings.next_order)

    def claim(self, name: str, shape: tuple[int, ...], dtype: str) -> HeldVariable | None:
        """Returns a variable of this name that was taken over, if there is one that nobody has claimed.

        Raises:
            VariableError: If it is of another shape or type.
        """
        held = None if self._holdings is None else self._holdings.claim(name, shape, dtype)
        if held is not None:
            self._variables[held.id] = held
        return held

    def add(self, variable: HeldVariable) -> HeldVariable:
        """Adds a variable that is complete; returns it with its place among the others."""
        held = variable._replace(order=next(self._order))
        self._variables[held.id] = held
        return held

    def drop(self, variable: str) -> None:
        """Forgets a variable."""
        self._variables.pop(variable, None)

    def is_same(self, server: int, incarnation: str) -> bool:
        """Returns whether a server is the one that holds the variables, not one that was started anew."""
        return incarnation == self._incarnations[server]

    def restarted(self, server: int, incarnation: str) -> None:
        """Takes in that a server was started anew, and has the variables again."""
        self._incarnations[server] = incarnation

    def shards_on(self, server: int) -> Iterator[dict[str, Any]]:
        """Yields what the shards on a server are created with."""
        for held in list(self._variables.values()):
            for index, shard in enumerate(held.shards):
                if shard.server == server:
                    yield held.shard_fields(index)

    def noted_on(self, server: int) -> list[HeldVariable]:
        """Returns the variables whose first shard a server holds, and with it what is noted of them."""
        return [v for v in list(self._variables.values()) if v.shards[0].server == server]
