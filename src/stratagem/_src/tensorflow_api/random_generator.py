"""``tf.random.Generator``: random numbers from an explicit state, which checkpoints can save."""

from __future__ import annotations

import enum
import threading
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.types import (
    ArrayLike,
    DTypeLike,
    IntegerLike,
    PRNGKey,
    ScalarLike,
    Seed,
    ShapeLike,
    Tensor,
)
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.tensorflow_api import random_samples as samples
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete, integer
from stratagem._src.tensorflow_api.random_seeds import key_from_integers
from stratagem._src.values.array_operators import operand_of
from stratagem._src.variables.foreign_variables import register_trackable
from stratagem._src.variables.random_state import RandomState

__all__ = [
    "Algorithm",
    "Generator",
    "create_rng_state",
    "get_global_generator",
    "set_global_generator",
]


class Algorithm(enum.Enum):
    """The algorithms of TensorFlow. All use JAX's threefry here.

    >>> Algorithm.PHILOX
    <Algorithm.PHILOX: 1>
    """

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


class Generator:
    """A random number generator. Its state is a variable, which a checkpoint can save.

    Every draw returns different numbers, in each step and replica, eagerly and in compiled functions. All
    replicas of a strategy share the generator, and each draws different numbers.

    Args:
        copy_from: A generator whose state to copy.
        state: The state, from ``create_rng_state``.
        alg: Ignored.

    Differs from tf.random.Generator: the state is four 32-bit integers, a key and a counter, and the
    numbers come from JAX's threefry.

    JAX equivalent: ``jax.random.key`` and ``jax.random.fold_in`` for each use.

    >>> import stratagem as tf
    >>> generator = tf.random.Generator.from_seed(1)
    >>> bool((generator.normal([2]) == generator.normal([2])).any())
    False
    >>> checkpoint = tf.train.Checkpoint(generator=generator)
    """

    def __init__(
        self, copy_from: Generator | None = None, state: ArrayLike = None, alg: object = None
    ) -> None:
        if (copy_from is None) == (state is None):
            raise InvalidArgumentError(
                "tf.random.Generator needs either copy_from or state. Use Generator.from_seed(1), or "
                "Generator.from_non_deterministic_state()."
            )
        value = _known_state(copy_from.state if copy_from is not None else state)
        self._state = RandomState.create(value)

    # --- creation and reset -------------------------------------------------------------------------

    @classmethod
    def from_state(cls, state: ArrayLike, alg: object = None) -> Self:
        """Returns a generator with a state, from ``create_rng_state`` or another generator."""
        return cls(state=state, alg=alg)

    @classmethod
    def from_seed(cls, seed: Seed, alg: object = None) -> Self:
        """Returns a generator for a seed, one integer or several."""
        return cls(state=create_rng_state(seed, alg))

    @classmethod
    def from_non_deterministic_state(cls, alg: object = None) -> Self:
        """Returns a generator whose numbers differ between runs of the program."""
        return cls(state=[*np.random.SeedSequence().generate_state(2), 0, 0])

    @classmethod
    def from_key_counter(cls, key: Seed, counter: Seed, alg: object = None) -> Self:
        """Returns a generator with a key and a counter of draws."""
        return cls(state=_state_of(key, counter))

    def reset(self, state: ArrayLike) -> None:
        """Sets the state."""
        self._state.assign(as_tensor(operand_of(state)).astype(jnp.uint32))

    def reset_from_seed(self, seed: Seed) -> None:
        """Sets the state for a seed."""
        self._state.assign(create_rng_state(seed, None))

    def reset_from_key_counter(self, key: Seed, counter: Seed) -> None:
        """Sets the state from a key and a counter, as ``from_key_counter`` does."""
        self._state.assign(_state_of(key, counter))

    # --- the state ----------------------------------------------------------------------------------

    @property
    def state(self) -> RandomState:
        """The variable with the state: key and counter, four 32-bit integers."""
        return self._state

    @property
    def algorithm(self) -> int:
        """The value of the algorithm in ``tf.random.Algorithm``."""
        return Algorithm.THREEFRY.value

    @property
    def key(self) -> Tensor:
        """The key: two integers."""
        return self._state.read_value()[:2]

    def skip(self, delta: ScalarLike) -> RandomState:
        """Advances the counter by ``delta`` draws, and returns the state."""
        count = jnp.asarray(as_tensor(delta)).astype(jnp.uint32)
        value = self._state.read_value()
        low = value[2] + count
        high = value[3] + (low < count).astype(jnp.uint32)
        self._state.assign(jnp.stack([value[0], value[1], low, high]))
        return self._state

    def split(self, count: IntegerLike = 1) -> list[Generator]:
        """Returns ``count`` generators with independent streams.

        >>> import stratagem as tf
        >>> len(tf.random.Generator.from_seed(1).split(3))
        3
        """
        keys = jax.random.split(self._state.next_key(), integer("random.split", "count", count))
        data = jax.random.key_data(keys)
        return [type(self)(state=_state_of(row, 0)) for row in _known("split", data)]

    def make_seeds(self, count: IntegerLike = 1) -> jax.Array:
        """Returns seeds for ``stateless_*`` functions, as columns of an array of shape ``[2, count]``."""
        return self.uniform_full_int([2, integer("random.make_seeds", "count", count)], "int32")

    def next_key(self) -> PRNGKey:
        """Returns a key for ``jax.random`` functions, flax or Equinox, and counts it as a draw.

        Like every draw it differs in each call, step and replica. Differs from tf.random.Generator:
        TensorFlow has no keys.

        >>> import jax
        >>> import stratagem as tf
        >>> generator = tf.random.Generator.from_seed(1)
        >>> keep = jax.random.bernoulli(generator.next_key(), 0.9, (2, 3))  # a dropout mask
        >>> keep.shape
        (2, 3)
        """
        return self._state.next_key()

    # --- samples ------------------------------------------------------------------------------------

    def normal(
        self,
        shape: ShapeLike,
        mean: ArrayLike = 0.0,
        stddev: ArrayLike = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns samples of a normal distribution."""
        return samples.normal(self._state.next_key(), shape, mean, stddev, dtype)

    def truncated_normal(
        self,
        shape: ShapeLike,
        mean: ArrayLike = 0.0,
        stddev: ArrayLike = 1.0,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns samples of a normal distribution within two standard deviations of the mean."""
        return samples.truncated_normal(self._state.next_key(), shape, mean, stddev, dtype)

    def uniform(
        self,
        shape: ShapeLike,
        minval: ArrayLike = 0,
        maxval: ArrayLike = None,
        dtype: DTypeLike = "float32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns uniform samples from ``[minval, maxval)``, as ``tf.random.uniform`` does."""
        return samples.uniform(self._state.next_key(), shape, minval, maxval, dtype)

    def uniform_full_int(
        self, shape: ShapeLike, dtype: DTypeLike = "uint64", name: str | None = None
    ) -> jax.Array:
        """Returns uniform integers over the full range of the dtype."""
        return samples.full_int(self._state.next_key(), shape, dtype)

    def binomial(
        self,
        shape: ShapeLike,
        counts: ArrayLike,
        probs: ArrayLike,
        dtype: DTypeLike = "int32",
        name: str | None = None,
    ) -> jax.Array:
        """Returns samples of binomial distributions with ``counts`` trials of probability ``probs``."""
        return samples.binomial(self._state.next_key(), shape, counts, probs, dtype)


register_trackable(Generator, lambda generator: {"state": generator.state})


def create_rng_state(seed: Seed, alg: object) -> np.ndarray[Any, Any]:
    """Returns the state of a ``Generator`` for a seed.

    Args:
        seed: One integer, or several.
        alg: Ignored.

    >>> create_rng_state(1, "philox").shape
    (4,)
    """
    return np.array([*key_from_integers(_known("from_seed", seed)), 0, 0], np.uint32)


def _state_of(key: Seed, counter: Seed) -> np.ndarray[Any, Any]:
    words = _words(_known("from_key_counter", key))
    counts = _words(_known("from_key_counter", counter))
    if len(words) > 2 or len(counts) > 2:
        raise InvalidArgumentError(
            f"A key and a counter must have at most 64 bits each, got {key!r} and {counter!r}."
        )
    return np.array([*[*words, 0][:2], *[*counts, 0][:2]], np.uint32)


def _words(numbers: ArrayLike) -> list[int]:
    """Splits integers into 32-bit words, lowest first, without a high word of zero."""
    found: list[int] = []
    flat = np.ravel(numbers).tolist()
    for number in flat:
        low, high = int(number) & 0xFFFFFFFF, (int(number) >> 32) & 0xFFFFFFFF
        found += [low, high] if high and len(flat) == 1 else [low]
    return found


def _known_state(state: ArrayLike) -> Any:
    value = _known("Generator", state)
    if value.shape != (4,):
        raise ShapeMismatchError(
            f"The state of a tf.random.Generator must have four numbers, got shape {value.shape}. Create "
            "it with tf.random.create_rng_state(seed, alg)."
        )
    return value


def _known(op: str, value: ArrayLike) -> Any:
    if any(is_tracer(operand_of(leaf)) for leaf in jax.tree.leaves(value)):
        raise InvalidArgumentError(
            f"tf.random.{op} needs concrete numbers, got traced ones. Create generators outside compiled "
            "functions."
        )
    return concrete(value)


_lock = threading.Lock()
_global_generator: Generator | None = None


def get_global_generator() -> Generator:
    """Returns the global generator. By default, its numbers differ between runs.

    >>> import stratagem as tf
    >>> tf.random.get_global_generator().uniform([2]).shape
    (2,)
    """
    global _global_generator
    with _lock:
        if _global_generator is None:
            _global_generator = Generator.from_non_deterministic_state()
        return _global_generator


def set_global_generator(generator: Generator) -> None:
    """Sets the global generator.

    Differs from TensorFlow: compiled functions that used the previous generator draw from it until they are
    retraced. ``get_global_generator().reset_from_seed(seed)`` affects them, too.

    >>> import stratagem as tf
    >>> tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    """
    global _global_generator
    with _lock:
        _global_generator = generator
