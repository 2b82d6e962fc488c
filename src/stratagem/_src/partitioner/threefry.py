"""The random bits of partitionable ``jax.random``, for any contiguous range of an array.

They are the Threefry-2x32 hash (20 rounds) of each element's index: J. Salmon and others, "Parallel
random numbers: as easy as 1, 2, 3", 2011. On CPU JAX runs its own implementation as a loop of small steps;
for the rows of one replica the loop costs more than the arithmetic.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["random_words"]

_DISTANCES = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def random_words(key: jax.Array, start: jax.Array, num_words: int) -> jax.Array:
    """Returns the random words of ``num_words`` elements, beginning with element ``start``.

    Args:
        key: The two words of a key, ``uint32`` like all words here.
        start: The index of the first element.
        num_words: The number of elements.
    """
    # A scan of two steps: XLA would recompute a single expression for each of its uses.
    half = -(-num_words // 2)

    def step(first: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        numbers = jax.lax.iota(jnp.uint32, half) + first
        high, low = _hash(key, jnp.zeros_like(numbers), numbers)
        return first + np.uint32(half), high ^ low

    _, words = jax.lax.scan(step, start, length=2)
    return words.reshape(-1)[:num_words]


def _hash(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    high, low = high + keys[0], low + keys[1]
    for block in range(1, 6):
        for distance in _DISTANCES[1 - block % 2]:
            high = high + low
            low = high ^ _rotated(low, distance)
        high = high + keys[block % 3]
        low = low + keys[(block + 1) % 3] + np.uint32(block)
    return high, low


def _rotated(words: jax.Array, distance: int) -> jax.Array:
    return (words << np.uint32(distance)) | (words >> np.uint32(32 - distance))
