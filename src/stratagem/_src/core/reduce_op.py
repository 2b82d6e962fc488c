"""``ReduceOp``: how values of several replicas are combined."""

from __future__ import annotations

import enum

__all__ = ["ReduceOp"]


class ReduceOp(enum.Enum):
    """How values of several replicas are combined.

    Strings, in upper or lower case, are accepted wherever a ``ReduceOp`` is.

    Differs from tf.distribute: ``MIN`` and ``MAX`` exist.

    >>> ReduceOp("mean")
    <ReduceOp.MEAN: 'MEAN'>
    """

    SUM = "SUM"
    MEAN = "MEAN"
    MIN = "MIN"
    MAX = "MAX"

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp:
        name = str(getattr(value, "name", value)).upper()
        if name in cls.__members__:
            return cls[name]
        raise ValueError(
            f"A reduce op must be one of {', '.join(cls.__members__)}, got {value!r}. "
            "Use for example ReduceOp.SUM."
        )
