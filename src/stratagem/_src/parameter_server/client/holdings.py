"""``Holdings``: the variables that servers hold for a coordinator that is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.core.errors import VariableError
from stratagem._src.parameter_server.client.shards import VariableShard, shard_name

__all__ = ["HeldVariable", "Holdings"]


class HeldVariable(NamedTuple):
    """What the servers know of a variable that is complete.

    Attributes:
        id: What all processes call it.
        name: Its name.
        shape: Its shape.
        dtype: The name of its element type.
        shards: Where its rows are.
        order: Its place among the variables of the coordinator, in the order they were created.
    """

    id: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[VariableShard, ...]
    order: int = 0

    @classmethod
    def from_json(cls, record: Sequence[Any]) -> HeldVariable:
        """Returns the variable that was noted as JSON."""
        identity, name, shape, dtype, shards, order = record
        parts = tuple(VariableShard(*shard) for shard in shards)
        return cls(identity, name, tuple(shape), dtype, parts, order)

    def shard_fields(self, index: int) -> dict[str, Any]:
        """Returns what a shard is created with."""
        shard, is_whole = self.shards[index], len(self.shards) == 1
        shape = self.shape if is_whole else (shard.stop - shard.start, *self.shape[1:])
        name = self.name if is_whole else shard_name(self.name, index)
        return {"variable": shard.id, "name": name, "shape": list(shape), "dtype": self.dtype}


class Holdings:
    """What servers hold, to be claimed by the program that is started again.

    A variable is found by its name; of several with the same name the program gets them in the order in
    which they were created.

    Args:
        owner: The coordinator that has created them.
        lineage: What it has in common with those that take over from it.
        variables: The variables.
    """

    def __init__(self, owner: str, lineage: str, variables: Sequence[HeldVariable]) -> None:
        self.owner = owner
        self.lineage = lineage
        self._unclaimed: list[HeldVariable] = sorted(variables, key=lambda held: held.order)

    @classmethod
    def of(cls, answers: Sequence[dict[str, Any]]) -> Holdings | None:
        """Returns what servers say that they hold; ``None`` if it does not belong together."""
        owner = answers[0]["owner"]
        if not owner or any(answer["owner"] != owner for answer in answers):
            return None
        records = [record for answer in answers for record in answer["records"]]
        variables = [HeldVariable.from_json(record) for record in records]
        return cls(owner, answers[0]["lineage"], variables)

    @property
    def next_order(self) -> int:
        """The place of a variable that comes after all of these."""
        return 1 + max((held.order for held in self._unclaimed), default=-1)

    def claim(self, name: str, shape: tuple[int, ...], dtype: str) -> HeldVariable | None:
        """Returns the next variable with this name, for whom creates it again; ``None`` if there is none.

        Raises:
            VariableError: If it is of another shape or type.
        """
        held = next((held for held in self._unclaimed if held.name == name), None)
        if held is None:
            return None
        if (held.shape, held.dtype) != (shape, dtype):
            raise VariableError(
                f"Variable {name!r} is to be {dtype}{list(shape)}, but the parameter servers hold one of "
                f"that name that is {held.dtype}{list(held.shape)}. Create the variables as the earlier "
                "coordinator did, or do not take over from it: resume=False."
            )
        self._unclaimed.remove(held)
        return held
