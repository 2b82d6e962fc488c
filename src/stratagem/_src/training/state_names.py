"""Names for the variables that hold an optimizer's state: their role and their variable."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import jax

from stratagem._src.core.types import ArrayLike, PyTree

__all__ = ["state_variable_names"]


def state_variable_names(state: PyTree, names: Sequence[str]) -> list[str]:
    """Returns a name for each leaf of an optimizer's state.

    Args:
        state: The state, initialized for a list of values.
        names: The names of the variables of these values.

    >>> import optax
    >>> state = {"iterations": 0, "transformation": optax.adam(0.1).init([0.0])}
    >>> state_variable_names(state, ["kernel"])
    ['iterations', 'count', 'mu/kernel', 'nu/kernel']
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    found = [_name(path, names) for path in paths]
    counts = collections.Counter(found)
    seen: collections.Counter[str] = collections.Counter()
    unique = []
    for name in found:
        seen[name] += 1
        unique.append(f"{name}_{seen[name]}" if counts[name] > 1 and seen[name] > 1 else name)
    return unique


def _name(path: Sequence[Any], names: Sequence[str]) -> str:
    words = [_word(key) for key in path if not isinstance(key, jax.tree_util.SequenceKey)]
    if words[:1] == ["transformation"] and len(words) > 1:
        words = words[1:]
    last = path[-1]
    # The values are a list, so an index at the end of a path is that of a variable.
    if isinstance(last, jax.tree_util.SequenceKey) and last.idx < len(names):
        words.append(names[last.idx])
    return "/".join(words)


def _word(key: ArrayLike) -> str:
    for attribute in ("name", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
