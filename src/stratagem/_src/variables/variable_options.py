"""How a variable's copies are kept together."""

from __future__ import annotations

import enum

from stratagem._src.core.reduce_op import ReduceOp

__all__ = ["VariableAggregation", "VariableSynchronization"]


class VariableSynchronization(enum.Enum):
    """When the copies of a variable on several replicas are brought together.

    * ``AUTO``: the strategy decides; all of ours mean ``ON_WRITE``.
    * ``ON_WRITE``: at each update, so the copies are always equal.
    * ``ON_READ``: when read in cross-replica context; until then each replica has its own.
    * ``NONE``: never. No strategy supports it.
    """

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(enum.Enum):
    """How the replicas' values of a variable, or of an update to it, become one."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3

    @property
    def reduce_op(self) -> ReduceOp | None:
        """The reduce op that does it, or ``None`` if none is involved."""
        return {"SUM": ReduceOp.SUM, "MEAN": ReduceOp.MEAN}.get(self.name)
