"""Reads the first element of a plan, to infer its spec."""

from __future__ import annotations

from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.plan.node import Node, walk
from stratagem._src.data.plan.run import Run, Seeded
from stratagem._src.data.plan.stream import Stream

__all__ = ["first_element", "peek"]


def peek(node: Node) -> Stream:
    """Starts a pass that does not count as an iteration, so that it does not change later shuffles."""
    choices = [[0] for part in walk(node) if isinstance(part, Seeded)]
    return node.open(Run(node, choices), ())


def first_element(node: Node, needed_by: str) -> Any:
    """Returns the first element of a plan.

    Raises:
        InvalidArgumentError: If the plan is empty.
    """
    access = node.random_access()
    if access is not None and len(access):
        return access.element(0)
    stream = peek(node)
    try:
        return next(stream)
    except StopIteration:
        raise InvalidArgumentError(
            f"The element_spec after {needed_by} is inferred from its first element, but there is none."
        ) from None
    finally:
        stream.close()
