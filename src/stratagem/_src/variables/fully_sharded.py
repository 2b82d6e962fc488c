"""``FullySharded``: shards the variables that are created in a block over the replicas (FSDP, ZeRO-3)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Self

from stratagem._src.core.errors import InvalidArgumentError

__all__ = ["MIN_SIZE", "FullySharded", "current_placement", "placing"]

MIN_SIZE = 1024
"""Default minimum number of elements of an array to be sharded."""


class FullySharded:
    """Shards the large variables that are created in the block over the replicas (FSDP, ZeRO-3).

    Each replica stores one shard of each variable and gathers the others when it reads the variable. The
    code of a step and its results do not change. Enter it together with the scope of a
    ``MirroredStrategy``, a ``MultiWorkerMirroredStrategy`` or a ``TPUStrategy``. The state that an
    ``Optimizer`` keeps for such variables is sharded too.

    Args:
        min_size: Minimum number of elements of a variable to be sharded. Smaller ones, and those that
            synchronize on read, are placed as without this block.

    JAX equivalent: a ``NamedSharding`` over the data axis, and ``jax.lax.all_gather`` at each use.

    >>> import numpy as np
    >>> import stratagem as sg
    >>> strategy = sg.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope(), sg.distribute.experimental.FullySharded():
    ...     kernel = sg.Variable(np.ones((64, 64), np.float32))
    ...     bias = sg.Variable(np.zeros(64, np.float32))
    >>> type(kernel).__name__, type(bias).__name__
    ('FullyShardedVariable', 'MirroredVariable')
    >>> int(kernel.numpy().sum())
    4096
    """

    def __init__(self, min_size: int = MIN_SIZE) -> None:
        if min_size < 1:
            raise InvalidArgumentError(
                f"min_size must be a number of elements, at least 1, got {min_size}."
            )
        self.min_size = min_size

    def __enter__(self) -> Self:
        _stack.placements.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _stack.placements.pop()

    def __repr__(self) -> str:
        return f"FullySharded(min_size={self.min_size})"


class _Stack(threading.local):
    def __init__(self) -> None:
        self.placements: list[FullySharded | None] = []


_stack = _Stack()


def current_placement() -> FullySharded | None:
    """Returns this thread's innermost ``FullySharded`` block, if any."""
    return _stack.placements[-1] if _stack.placements else None


@contextlib.contextmanager
def placing(placement: FullySharded | None) -> Iterator[None]:
    """Places the variables of the block as ``placement`` does, or for ``None`` as the strategy does."""
    _stack.placements.append(placement)
    try:
        yield
    finally:
        _stack.placements.pop()
