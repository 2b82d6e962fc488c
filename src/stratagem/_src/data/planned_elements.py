"""``PlannedElements``: what the groups of methods of ``Dataset`` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.plan.node import Node

if TYPE_CHECKING:
    from stratagem._src.data.dataset import Dataset

__all__ = ["PlannedElements", "not_a_dataset", "plan_of"]


class PlannedElements:
    """The plan of a dataset, and how a method makes a dataset of another plan."""

    plan: Node

    @staticmethod
    def _of(plan: Node, name: str | None) -> Dataset:
        raise NotImplementedError


def plan_of(value: Any, name: str) -> Node:
    """Returns the plan of what must be a dataset.

    Raises:
        InvalidArgumentError: If it is something else; the message says that ``name`` is.
    """
    if not isinstance(value, PlannedElements):
        raise InvalidArgumentError(not_a_dataset(name, value))
    return value.plan


def not_a_dataset(name: str, value: Any) -> str:
    """Returns the message about something else in place of a dataset."""
    return f"{name} must be, or return, a Dataset, got {value!r}."
