"""``VariableSynchronization`` and ``VariableAggregation``: how replicas' copies are kept in sync."""

from __future__ import annotations

import enum

from stratagem._src.core.reduce_op import ReduceOp

__all__ = ["VariableAggregation", "VariableSynchronization"]


class VariableSynchronization(enum.Enum):
    """When the copies of a variable on several replicas are synchronized.

    * ``AUTO``: the strategy decides; all built-in strategies use ``ON_WRITE``.
    * ``ON_WRITE``: at each update, so the copies are always equal.
    * ``ON_READ``: when read in cross-replica context; until then each replica has its own.
    * ``NONE``: never. No strategy supports it.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How the replicas' values of a variable, or of an update to it, are combined."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3

    @property
    def reduce_op(self) -> ReduceOp | None:
        """The corresponding reduce op, or ``None`` if the aggregation is not a reduction."""
        return {"SUM": ReduceOp.SUM, "MEAN": ReduceOp.MEAN}.get(self.name)
