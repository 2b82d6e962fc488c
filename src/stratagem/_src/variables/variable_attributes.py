"""``VariableAttributes``: a variable's name, shape, dtype, synchronization and aggregation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["UNNAMED", "VariableAttributes"]

UNNAMED = "Variable"
"""Default name of a variable, as in TensorFlow."""


class VariableAttributes:
    """Attributes that are fixed when a variable is created, except that a default name may be replaced."""

    __slots__ = (
        "_aggregation",
        "_constraint",
        "_dtype",
        "_name",
        "_shape",
        "_synchronization",
        "_trainable",
    )

    _aggregation: VariableAggregation
    _constraint: Callable[[Any], Any] | None
    _dtype: Any
    _name: str
    _shape: TensorShape
    _synchronization: VariableSynchronization
    _trainable: bool

    @property
    def name(self) -> str:
        """The name, with the output number that TensorFlow appends.

        A variable without a name takes its path in the first structure that is passed to
        ``value_and_grad``, an ``Optimizer`` or a ``Checkpoint``: in ``{"layer1": {"w": v}}`` it becomes
        ``"layer1/w:0"``.
        """
        return f"{self._name}:0"

    @property
    def is_named(self) -> bool:
        """Whether the variable has a name other than the default."""
        return self._name != UNNAMED

    def take_name(self, name: str) -> None:
        """Sets the name, unless the variable has one."""
        if not self.is_named:
            self._name = name

    @property
    def shape(self) -> TensorShape:
        """The shape."""
        return self._shape

    def get_shape(self) -> TensorShape:
        """Same as ``shape``."""
        return self._shape

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The function that an optimizer may apply to the value after an update, if any."""
        return getattr(self, "_constraint", None)

    def keep_constraint(self, constraint: Callable[[Any], Any] | None) -> None:
        """Sets ``constraint``."""
        self._constraint = constraint

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._shape.num_elements() or 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return np.dtype(self._dtype)

    @property
    def trainable(self) -> bool:
        """Whether optimizers should update it."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When the replicas' copies are synchronized."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How the replicas' updates or copies are combined."""
        return self._aggregation
