"""Makes Keras's layers for JAX models take variables for leaves of structures.

To JAX functions a variable of a strategy is its value, so that ``jnp.square(layer.kernel)`` works. A
``JaxLayer`` keeps variables in the structure of its model's weights, and maps over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from stratagem._src.core.types import PyTree
from stratagem._src.integrations.keras.keras_internals import replace_jax_of_jax_layers
from stratagem._src.variables.foreign_variables import is_variable

__all__ = ["install_leaf_variables"]


class _TreeUtilities:
    """``jax.tree_util``, for which variables are leaves."""

    def tree_map(self, fn: Callable[..., Any], tree: PyTree, *rest: PyTree) -> Any:
        """Maps a function over leaves and variables."""
        return jax.tree_util.tree_map(fn, tree, *rest, is_leaf=is_variable)

    def tree_flatten(self, tree: PyTree) -> Any:
        """Returns leaves and variables, and the structure."""
        return jax.tree_util.tree_flatten(tree, is_leaf=is_variable)


class _Jax:
    """The module ``jax``, with these utilities."""

    tree_util = _TreeUtilities()

    if not TYPE_CHECKING:  # with it a type checker would accept every name

        def __getattr__(self, name):
            return getattr(jax, name)


def install_leaf_variables() -> None:
    """Gives these utilities to ``JaxLayer`` and ``FlaxLayer``."""
    replace_jax_of_jax_layers(_Jax())
