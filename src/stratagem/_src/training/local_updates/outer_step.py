"""``OuterStep``: computes the next global parameters from the mean of the islands' parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import GradientTransformation, PyTree
from stratagem._src.training.local_updates.outer_state import Array, OuterState

__all__ = ["OuterStep"]


class OuterStep:
    """The outer optimizer step of local SGD.

    Without an optimizer the mean becomes the global parameters: local SGD, FedAvg. With one, its gradient
    is the difference between the global parameters and the mean: DiLoCo with
    ``optax.sgd(0.7, momentum=0.9, nesterov=True)``.

    Args:
        optimizer: An optax gradient transformation, or ``None``.

    Raises:
        InvalidArgumentError: If it is not an optax transformation.
    """

    def __init__(self, optimizer: GradientTransformation) -> None:
        if optimizer is not None and not (
            hasattr(optimizer, "init") and hasattr(optimizer, "update")
        ):
            raise InvalidArgumentError(
                "outer_optimizer must be an optax transformation, such as optax.sgd(0.7, momentum=0.9, "
                f"nesterov=True), or None for plain averaging, got {type(optimizer).__name__}."
            )
        self._optimizer = optimizer
        self._structure: Any = None
        self._update = jax.jit(self._compute)

    def begin(self, parameters: Sequence[Array]) -> OuterState:
        """Returns the state before the first outer step."""
        if self._optimizer is None:
            return OuterState(0, 0, tuple(parameters), ())
        leaves, self._structure = jax.tree.flatten(self._optimizer.init(list(parameters)))
        return OuterState(0, 0, tuple(parameters), tuple(map(np.asarray, leaves)))

    def signature(self, parameters: Sequence[Array]) -> str:
        """Returns a fingerprint of the optimizer's settings: the result of two updates on ones.

        Each island applies the outer optimizer itself. An island with another learning rate would silently
        diverge from the others.
        """
        if self._optimizer is None:
            return "none"
        ones = tuple(np.ones_like(value) for value in parameters)
        state = self.begin(ones)
        for _ in range(2):  # the first does not show momentum
            state = self.take(state, tuple(value * value.dtype.type(0.5) for value in ones), 0)
        return f"{float(sum(np.mean(p, dtype=np.float64) for p in state.parameters)):.4g}"

    def take(self, state: OuterState, mean: Sequence[Array], num_steps: int) -> OuterState:
        """Returns the state after an outer step."""
        if self._optimizer is None:
            return OuterState(state.round + 1, num_steps, tuple(mean), ())
        parameters, leaves = self._update(state.parameters, state.optimizer, tuple(mean))
        return OuterState(
            state.round + 1,
            num_steps,
            tuple(map(np.asarray, parameters)),
            tuple(map(np.asarray, leaves)),
        )

    def _compute(self, parameters: PyTree, leaves: PyTree, mean: PyTree) -> tuple[Any, Any]:
        assert self._optimizer is not None
        gradients = [p - m for p, m in zip(parameters, mean, strict=True)]
        inner = jax.tree.unflatten(self._structure, leaves)
        updates, inner = self._optimizer.update(gradients, inner, list(parameters))
        # As in optax.apply_updates: updates may have a wider type than the parameters.
        moved = [(p + u).astype(p.dtype) for p, u in zip(parameters, updates, strict=True)]
        return moved, jax.tree.leaves(inner)
