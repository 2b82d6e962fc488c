"""``DatasetBase``: the common base of the mixins of ``Dataset``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.input_kinds import LoopedOver
from stratagem._src.data.plan.node import Node

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["DatasetBase", "not_a_dataset", "plan_of"]


class DatasetBase(LoopedOver):
    """Holds the plan of a dataset, and creates a dataset from a plan.

    Modules below ``Dataset`` test for this class, to avoid an import cycle.
    """

    plan: Node

    @staticmethod
    def _from_plan(plan: Node, name: str | None) -> Dataset:
        raise NotImplementedError


def plan_of(value: Any, name: str) -> Node:
    """Returns the plan of a dataset.

    Raises:
        InvalidArgumentError: If ``value`` is not a dataset; the message calls it ``name``.
    """
    if not isinstance(value, DatasetBase):
        raise InvalidArgumentError(not_a_dataset(name, value))
    return value.plan


def not_a_dataset(name: str, value: Any) -> str:
    """Returns the error message for a value that is not a dataset."""
    return f"{name} must be, or return, a Dataset, got {value!r}."
