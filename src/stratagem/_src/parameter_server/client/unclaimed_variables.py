"""``UnclaimedVariables``: the variables that parameter servers hold for a lost coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stratagem._src.core.errors import VariableError
from stratagem._src.parameter_server.client.shards import VariableShard, shard_name

__all__ = ["UnclaimedVariables", "VariableRecord"]


class VariableRecord(NamedTuple):
    """The record of an initialized variable that the servers keep for a coordinator that takes over.

    Attributes:
        id: Its id in all processes.
        name: Its name.
        shape: Its shape.
        dtype: The name of its dtype.
        shards: Its shards.
        order: Its position in the coordinator's order of creation.
    """

    id: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[VariableShard, ...]
    order: int = 0

    @classmethod
    def from_json(cls, record: Sequence[Any]) -> VariableRecord:
        """Returns the record from its JSON form."""
        identity, name, shape, dtype, shards, order = record
        placed = tuple(VariableShard(*shard) for shard in shards)
        return cls(identity, name, tuple(shape), dtype, placed, order)

    def shard_fields(self, index: int) -> dict[str, Any]:
        """Returns the ``ps/create`` fields of a shard."""
        shard, is_unsharded = self.shards[index], len(self.shards) == 1
        shape = self.shape if is_unsharded else (shard.stop - shard.start, *self.shape[1:])
        name = self.name if is_unsharded else shard_name(self.name, index)
        return {"variable": shard.id, "name": name, "shape": list(shape), "dtype": self.dtype}


class UnclaimedVariables:
    """The variables of a lost coordinator, for the restarted program to claim by name.

    Variables with the same name are claimed in the order in which they were created.

    Args:
        owner: The id of the coordinator that created them.
        lineage: The lineage id of that coordinator.
        variables: The variables.
    """

    def __init__(self, owner: str, lineage: str, variables: Sequence[VariableRecord]) -> None:
        self.owner = owner
        self.lineage = lineage
        self._unclaimed: list[VariableRecord] = sorted(variables, key=lambda record: record.order)

    @classmethod
    def from_replies(cls, replies: Sequence[dict[str, Any]]) -> UnclaimedVariables | None:
        """Returns the variables in the servers' replies; ``None`` if their owners differ."""
        owner = replies[0]["owner"]
        if not owner or any(reply["owner"] != owner for reply in replies):
            return None
        records = [record for reply in replies for record in reply["records"]]
        variables = [VariableRecord.from_json(record) for record in records]
        return cls(owner, replies[0]["lineage"], variables)

    @property
    def next_order(self) -> int:
        """The ``order`` of the next variable to be created."""
        return 1 + max((record.order for record in self._unclaimed), default=-1)

    def claim(self, name: str, shape: tuple[int, ...], dtype: str) -> VariableRecord | None:
        """Returns the next unclaimed variable with this name, or ``None``.

        Raises:
            VariableError: If its shape or dtype differs.
        """
        record = next((record for record in self._unclaimed if record.name == name), None)
        if record is None:
            return None
        if (record.shape, record.dtype) != (shape, dtype):
            raise VariableError(
                f"Variable {name!r} is created as {dtype}{list(shape)}, but the parameter servers hold it "
                f"as {record.dtype}{list(record.shape)}. Create the variables as the earlier coordinator "
                "did, or pass resume=False to discard them."
            )
        self._unclaimed.remove(record)
        return record
