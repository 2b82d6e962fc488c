"""``SampledChoices``: random indices of datasets, drawn by weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike
from stratagem._src.data.checks import as_integer
from stratagem._src.data.options import INFINITE_CARDINALITY
from stratagem._src.data.plan.node import Epoch, Node
from stratagem._src.data.plan.run import Run, Seed, Seeded
from stratagem._src.data.plan.stream import State, Stream
from stratagem._src.data.sources.random_numbers import RandomBlocks
from stratagem._src.data.structure import flatten
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["SampledChoices", "cumulative_weights"]


def cumulative_weights(weights: ArrayLike, num_choices: int) -> np.ndarray[Any, Any]:
    """Returns the cumulative distribution of the choices.

    Raises:
        InvalidArgumentError: If a weight is invalid, or there is not one weight per choice.
    """
    numbers = np.asarray(weights, np.float64).reshape(-1)
    if len(numbers) != num_choices:
        raise InvalidArgumentError(
            f"weights must be one for each dataset, got {len(numbers)} for {num_choices} datasets."
        )
    if not (np.isfinite(numbers).all() and (numbers >= 0).all() and numbers.any()):
        raise InvalidArgumentError(
            f"weights must be finite, not negative and not all 0, got {numbers.tolist()}."
        )
    bounds = np.cumsum(numbers)
    return bounds / bounds[-1]


class SampledChoices(Seeded):
    """Random integers from 0 to ``num_choices - 1``, with probabilities proportional to the weights.

    Args:
        num_choices: The number of choices.
        weights: The weights, or a plan that yields weights for each choice.
        seed: Makes the choices reproducible.
        rerandomize_each_iteration: Whether each iteration and each epoch makes different choices.
    """

    def __init__(
        self,
        num_choices: int,
        weights: ArrayLike,
        seed: int | None,
        rerandomize_each_iteration: bool | None,
    ) -> None:
        self._num_choices = num_choices
        self._bounds = None
        if isinstance(weights, Node):
            self.inputs = (weights,)
        else:
            self._bounds = cumulative_weights(weights, num_choices)
        number = None if seed is None else as_integer("seed", seed)
        self.seed = Seed(number, bool(rerandomize_each_iteration))
        self._spec = TensorSpec((), np.int64)

    def cardinality(self) -> int:
        """Returns infinite, or the number of weights."""
        return self.inputs[0].cardinality() if self.inputs else INFINITE_CARDINALITY

    def open(self, run: Run, epoch: Epoch) -> Stream:
        """Starts a pass."""
        weights = self.inputs[0].open(run, epoch) if self.inputs else None
        blocks = RandomBlocks(run.key(self.seed, epoch))
        return _ChoiceStream(blocks, weights, self._bounds, self._num_choices)


class _ChoiceStream(Stream):
    def __init__(
        self, blocks: RandomBlocks, weights: Stream | None, bounds: ArrayLike, num_choices: int
    ) -> None:
        self._blocks = blocks
        self._weights = weights
        self._bounds = bounds
        self._num_choices = num_choices
        self._next = 0

    def __next__(self) -> Any:
        bounds = self._bounds
        if self._weights is not None:
            leaves = [np.ravel(leaf) for leaf in flatten(next(self._weights))]
            bounds = cumulative_weights(np.concatenate(leaves), self._num_choices)
        place = self._blocks.at(self._next)[0] / 2**32
        self._next += 1
        return np.searchsorted(bounds, place, side="right")

    def get_state(self) -> State:
        weights = None if self._weights is None else self._weights.get_state()
        return {"next": self._next, "weights": weights}

    def set_state(self, state: State) -> None:
        self._next = state["next"]
        if self._weights is not None:
            self._weights.set_state(state["weights"])

    def skip_past_error(self) -> None:
        if self._weights is not None:
            self._weights.skip_past_error()

    def close(self) -> None:
        if self._weights is not None:
            self._weights.close()
