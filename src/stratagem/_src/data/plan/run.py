"""``Run``: the random seeds of one iteration over a plan, fixed at its start so that it can be replayed."""

from __future__ import annotations

import copy
import secrets
import weakref
from typing import Protocol, Self

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.plan.node import Epoch, Node, walk

__all__ = ["Key", "Run", "Seed", "Seeded", "Threaded"]

Key = list[int]
"""Integers that seed random choices."""


class Seed:
    """The seed of one node, and the number of iterations started so far.

    Args:
        number: The user's seed, or ``None`` for a random one.
        reshuffle: Whether each iteration and each epoch makes different choices.
    """

    def __init__(self, number: int | None, reshuffle: bool = True) -> None:
        self.is_random: bool = number is None
        self.reshuffle = reshuffle
        self._number = secrets.randbits(62) if number is None else number
        self._iterations = 0

    @property
    def identity(self) -> tuple[int | str, bool]:
        """Identifies a seed regardless of iterations; all random seeds are equal."""
        return ("random" if self.is_random else self._number), self.reshuffle

    def fork(self, iterations: int = 0) -> Seed:
        """Returns the same seed with its own iteration count, which starts at ``iterations``."""
        forked = Seed(self._number, self.reshuffle)
        forked.is_random = self.is_random
        forked._iterations = iterations
        return forked

    def next_iteration(self) -> Key:
        """Returns the key of a new iteration."""
        self._iterations += 1
        return [self._number, self._iterations - 1]

    def within(self, outer: Key, place: Key) -> Key:
        """Returns the key of an iteration that is started inside another one with the key ``outer``."""
        return [*outer, *place] if self.is_random else [self._number, *outer[1:], *place]


class Seeded(Node):
    """A node that makes random choices."""

    seed: Seed

    def over(self, inputs: tuple[Node, ...]) -> Self:
        """Returns the node over other elements, with its own iteration count."""
        node = self.with_inputs(inputs)
        return self if node is self else node.fork()

    def fork(self, iterations: int = 0) -> Self:
        """Returns the same node with its own iteration count, which starts at ``iterations``."""
        node = copy.copy(self)
        node.seed = self.seed.fork(iterations)
        return node

    def seeded(self, number: int) -> Self:
        """Returns the same node with a given seed."""
        node = copy.copy(self)
        node.seed = Seed(number, self.seed.reshuffle)
        return node


class Threaded(Protocol):
    """A stream that has background threads."""

    def pause(self) -> None:
        """Stops the threads until the next element is requested."""


class Run:
    """The random choices of one iteration over a plan, and its streams with background threads.

    Args:
        plan: The plan before lowering.
        keys: The result of ``get_state`` of an earlier run, to make the same choices again.
        outer: The run that this one is a part of.
    """

    def __init__(self, plan: Node, keys: list[Key] | None = None, outer: Run | None = None) -> None:
        self._threaded: weakref.WeakSet[Threaded] = (
            weakref.WeakSet() if outer is None else outer._threaded
        )
        seeds = _seeds(plan)
        if keys is None:
            keys = [seed.next_iteration() for seed in seeds]
        elif len(keys) != len(seeds):
            raise InvalidArgumentError(
                f"The state belongs to another dataset: it has {len(keys)} seeds, "
                f"this one {len(seeds)}."
            )
        self._keys = {id(seed): key for seed, key in zip(seeds, keys, strict=True)}
        self._state = keys

    @classmethod
    def within(cls, plan: Node, outer: Run, key: Key, number: int) -> Run:
        """Returns a run whose seeds follow from the key and the position of the outer iteration."""
        seeds = _seeds(plan)
        return cls(plan, [seed.within(key, [number, i]) for i, seed in enumerate(seeds)], outer)

    def register(self, threaded: Threaded) -> None:
        """Registers a stream that has background threads."""
        self._threaded.add(threaded)

    def pause(self) -> None:
        """Stops the threads of the iteration until its next element is requested."""
        for threaded in list(self._threaded):
            threaded.pause()

    def key(self, seed: Seed, epoch: Epoch) -> Key:
        """Returns the key for one epoch of one node."""
        key = self._keys[id(seed)]
        return [*key, *epoch] if seed.reshuffle else key[:1]

    def state_of(self, plan: Node) -> list[Key]:
        """Returns the keys for one part of the plan."""
        return [self._keys[id(seed)] for seed in _seeds(plan)]

    def get_state(self) -> list[Key]:
        """Returns the keys as a JSON-able value."""
        return self._state


def _seeds(plan: Node) -> list[Seed]:
    return [node.seed for node in walk(plan) if isinstance(node, Seeded)]
