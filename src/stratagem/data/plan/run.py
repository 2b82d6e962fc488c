"""``Run``: what one iteration over a plan decides at its start, so that it can be repeated."""

from __future__ import annotations

import secrets

from stratagem.data.errors import InvalidArgumentError
from stratagem.data.plan.node import Epoch, Node, walk

__all__ = ["Run", "ShuffleSeed"]


class ShuffleSeed:
    """The seed of one ``shuffle`` and how often the dataset has been iterated over."""

    def __init__(self, seed: int | None, reshuffle: bool) -> None:
        self._seed = secrets.randbits(62) if seed is None else seed
        self._reshuffle = reshuffle
        self._iterations = 0

    def fork(self) -> ShuffleSeed:
        """Returns the same seed with iterations of its own."""
        return ShuffleSeed(self._seed, self._reshuffle)

    def next_iteration(self) -> list[int]:
        """Returns the numbers that determine the orders of a new iteration."""
        if not self._reshuffle:
            return [self._seed]
        self._iterations += 1
        return [self._seed, self._iterations - 1]


class Run:
    """The random choices of one iteration over a plan.

    Args:
        plan: The plan as the user wrote it.
        state: What ``get_state`` of an earlier run returned, to make the same choices again.
    """

    def __init__(self, plan: Node, state: list[list[int]] | None = None) -> None:
        seeds = [node.seed for node in walk(plan) if isinstance(node, Seeded)]
        if state is None:
            state = [seed.next_iteration() for seed in seeds]
        elif len(state) != len(seeds):
            raise InvalidArgumentError(
                f"The state belongs to another dataset: it has {len(state)} shuffles, "
                f"this one {len(seeds)}."
            )
        self._state = state
        self._keys = {id(seed): key for seed, key in zip(seeds, state, strict=True)}

    def shuffle_key(self, seed: ShuffleSeed, epoch: Epoch) -> list[int]:
        """Returns the numbers that seed the order of one epoch of one shuffle."""
        key = self._keys[id(seed)]
        fixed = len(key) == 1
        return key if fixed else [*key, *epoch]

    def state_of(self, plan: Node) -> list[list[int]]:
        """Returns the choices for one part of the plan."""
        return [self._keys[id(node.seed)] for node in walk(plan) if isinstance(node, Seeded)]

    def get_state(self) -> list[list[int]]:
        """Returns the choices as a JSON-able value."""
        return self._state


class Seeded(Node):
    """A node whose order depends on a seed."""

    seed: ShuffleSeed
