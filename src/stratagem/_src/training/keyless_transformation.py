"""``KeylessTransformation``: an optax transformation whose state contains no ``jax.random`` keys.

Variables, checkpoints and parameter servers hold plain arrays, so keys are stored as their key data.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stratagem._src.core.types import ArrayLike, GradientTransformation, Leaf, PyTree

__all__ = ["KeylessTransformation"]


@jax.tree_util.register_pytree_with_keys_class
class RandomKey:
    """The key data of a random key, in its place in a state."""

    def __init__(self, data: ArrayLike, implementation: str) -> None:
        self.data = data
        self.implementation = implementation

    def tree_flatten_with_keys(self) -> tuple[Any, str]:
        """Returns the children with their keys, and the static data."""
        return ((jax.tree_util.GetAttrKey("data"), self.data),), self.implementation

    @classmethod
    def tree_unflatten(cls, implementation: str, children: tuple[Any]) -> RandomKey:
        """Rebuilds the key data node."""
        return cls(children[0], implementation)


class KeylessTransformation:
    """Wraps a transformation: converts key data to keys before each call, and keys to key data after it.

    Args:
        transformation: An optax ``GradientTransformation``.
    """

    def __init__(self, transformation: GradientTransformation) -> None:
        self._transformation = transformation

    def init(self, params: PyTree) -> Any:
        """Returns the initial state."""
        return _without_keys(self._transformation.init(params))

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[Any, Any]:
        """Returns the transformed updates and the next state."""
        updates, state = self._transformation.update(updates, _with_keys(state), params)
        return updates, _without_keys(state)


def _without_keys(state: PyTree) -> Any:
    def hide(leaf: Leaf) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return RandomKey(jax.random.key_data(leaf), str(jax.random.key_impl(leaf)))

    return jax.tree.map(hide, state)


def _with_keys(state: PyTree) -> Any:
    def show(leaf: Leaf) -> Any:
        if not isinstance(leaf, RandomKey):
            return leaf
        return jax.random.wrap_key_data(leaf.data, impl=leaf.implementation)

    return jax.tree.map(show, state, is_leaf=lambda leaf: isinstance(leaf, RandomKey))
