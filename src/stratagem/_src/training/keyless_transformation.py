"""``KeylessTransformation``: an optax transformation whose state has no keys of ``jax.random``.

Variables, checkpoints and parameter servers hold numbers, so keys are kept as the numbers they are made
of.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["KeylessTransformation"]


@jax.tree_util.register_pytree_with_keys_class
class RandomKey:
    """The numbers that a key is made of, in its place in a state."""

    def __init__(self, data: Any, implementation: str) -> None:
        self.data = data
        self.implementation = implementation

    def tree_flatten_with_keys(self) -> tuple[Any, str]:
        """Takes it apart."""
        return ((jax.tree_util.GetAttrKey("data"), self.data),), self.implementation

    @classmethod
    def tree_unflatten(cls, implementation: str, children: tuple[Any]) -> RandomKey:
        """Puts it together."""
        return cls(children[0], implementation)


class KeylessTransformation:
    """Calls a transformation with the keys that its state is to have.

    Args:
        transformation: An optax ``GradientTransformation``.
    """

    def __init__(self, transformation: Any) -> None:
        self._transformation = transformation

    def init(self, params: Any) -> Any:
        """Returns the first state."""
        return _without_keys(self._transformation.init(params))

    def update(self, updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        """Returns the updates that the transformation makes of gradients, and the next state."""
        updates, state = self._transformation.update(updates, _with_keys(state), params)
        return updates, _without_keys(state)


def _without_keys(state: Any) -> Any:
    def hide(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return RandomKey(jax.random.key_data(leaf), str(jax.random.key_impl(leaf)))

    return jax.tree.map(hide, state)


def _with_keys(state: Any) -> Any:
    def show(leaf: Any) -> Any:
        if not isinstance(leaf, RandomKey):
            return leaf
        return jax.random.wrap_key_data(leaf.data, impl=leaf.implementation)

    return jax.tree.map(show, state, is_leaf=lambda leaf: isinstance(leaf, RandomKey))
