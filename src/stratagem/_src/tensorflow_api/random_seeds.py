"""``set_seed``, the random streams of ``tf.random``, and the seeds of stateless functions."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, ShapeMismatchError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import ArrayLike, IntegerLike, PRNGKey, ScalarLike, Seed, Tensor
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.mesh.backend_lifetime import backend_lifetime
from stratagem._src.tensorflow_api.conversion import as_tensor, concrete
from stratagem._src.values.array_operators import operand_of
from stratagem._src.variables.random_state import ALGORITHM, RandomState

__all__ = ["fold_in", "key_from_integers", "key_from_seed", "next_key", "set_seed", "split"]

# TensorFlow's default global seed, for functions with a seed if set_seed was not called.
_DEFAULT_SEED = 87654321


def key_from_integers(numbers: Seed) -> Any:
    """Hashes a seed of any integers to a key of two 32-bit integers."""
    words = []
    for number in np.ravel(np.asarray(numbers, object)).tolist():
        if isinstance(number, bool) or int(number) != number:
            raise InvalidArgumentError(f"A seed must consist of integers, got {numbers!r}.")
        # SeedSequence rejects negative integers: pass the sign separately.
        words += [abs(int(number)), int(number < 0)]
    return np.random.SeedSequence(words).generate_state(2)


_Stream = tuple[int | None, bool]
"""The seed argument of a function, if any, and whether it runs in a thread that prefetches data."""


class _Streams:
    """A random state for each seed argument, and one for functions without a seed.

    Threads that prefetch data have their own streams, because their progress differs from run to run, and a
    step that waits for data may hold the stream of its thread meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._states: dict[_Stream, RandomState] = {}
        self._made_for: Any = None
        self._lives = itertools.count()
        self._life = 0

    def set_seed(self, seed: int | None) -> None:
        """Restarts every stream from this seed."""
        with self._lock:
            self._seed = seed
            keys = [(state, self._key(stream)) for stream, state in self._current().items()]
        # Without the lock: assign may wait for a call that uses the state, and that call may need the lock.
        for state, key in keys:
            state.assign(np.array([*key, 0, 0], np.uint32))

    def get(self, given: int | None) -> RandomState:
        """Returns the state of the stream for a seed argument, in this thread."""
        stream = given, THIS_THREAD.state.is_prefetching
        with self._lock:
            states = self._current()
            if stream not in states:
                states[stream] = RandomState.of_key(self._key(stream))
            return states[stream]

    def _key(self, stream: _Stream) -> Any:
        given, is_prefetching = stream
        if self._seed is None and given is None:
            return np.random.SeedSequence().generate_state(2)
        seed = _DEFAULT_SEED if self._seed is None else self._seed
        number = 0 if given is None else given
        return key_from_integers(
            [seed, number, int(given is None), int(is_prefetching), self._life]
        )

    def _current(self) -> dict[_Stream, RandomState]:
        """Returns the states of the current backend. A new backend starts without states."""
        if self._made_for is None or self._made_for() is None:
            self._made_for = backend_lifetime()
            self._states, self._life = {}, next(self._lives)
        return self._states


_streams = _Streams()


def set_seed(seed: Seed) -> None:
    """Makes the random numbers of this process reproducible from here on.

    Functions of ``tf.random`` draw from one stream, and functions with a ``seed`` argument from a stream
    for that seed. ``set_seed`` restarts every stream, so that the same calls return the same numbers as
    after an earlier ``set_seed`` with the same seed. All workers must set the same seed; replicas still
    draw different numbers.

    Differs from TensorFlow: the numbers are different. Compiled functions draw from the same streams as
    everything else; in TensorFlow, each function starts its own.

    Args:
        seed: An integer, or ``None`` for numbers that differ between runs of the program.

    >>> import stratagem as tf
    >>> tf.random.set_seed(1)
    >>> first = tf.random.uniform([2])
    >>> tf.random.set_seed(1)
    >>> bool((tf.random.uniform([2]) == first).all()), bool((tf.random.uniform([2]) == first).any())
    (True, False)
    """
    _streams.set_seed(None if seed is None else int(concrete(seed)))  # type: ignore[arg-type]


def next_key(seed: Seed = None) -> PRNGKey:
    """Returns a key that is used only once.

    Args:
        seed: The ``seed`` argument of a ``tf.random`` function, if any.
    """
    return _streams.get(None if seed is None else int(concrete(seed))).next_key()  # type: ignore[arg-type]


def key_from_seed(op: str, seed: Seed) -> PRNGKey:
    """Returns the key for the seed of a stateless function: two integers."""
    if not isinstance(seed, (list, tuple, np.ndarray)):
        seed = operand_of(seed)
    if not isinstance(seed, jax.Array) and not any(map(is_tracer, jax.tree.leaves(seed))):
        numbers = np.asarray(seed)
        _check_seed(op, numbers)
        if np.any((numbers < -(2**31)) | (numbers >= 2**32)):
            # Hash all bits: casting to 32 bits would ignore the high ones.
            numbers = key_from_integers(numbers)
        seed = numbers.astype(np.int64).astype(np.uint32)
    array = as_tensor(seed)
    _check_seed(op, array)
    return jax.random.wrap_key_data(array.astype(jnp.uint32), impl=ALGORITHM)


def _check_seed(op: str, seed: Seed) -> None:
    if seed.shape != (2,) or seed.dtype.kind not in "iu":
        raise ShapeMismatchError(
            f"The seed of tf.random.{op} must be two integers, got shape {tuple(seed.shape)} of "
            f"{seed.dtype}."
        )


def _seed_of_key(key: PRNGKey, like: ArrayLike) -> Tensor:
    data = jax.random.key_data(key)
    return data.astype(jnp.uint32 if as_tensor(like).dtype == jnp.uint32 else jnp.int32)


def fold_in(seed: Seed, data: ScalarLike, alg: object = "auto_select") -> Tensor:
    """Derives a seed from a seed and a number, for ``stateless_*`` functions.

    Args:
        seed: Two integers.
        data: An integer, such as the step.
        alg: Ignored.

    JAX equivalent: ``jax.random.fold_in``.

    >>> fold_in([1, 2], 3).shape
    (2,)
    """
    made = jax.random.fold_in(key_from_seed("fold_in", seed), as_tensor(data).astype(jnp.uint32))
    return _seed_of_key(made, seed)


def split(seed: Seed, num: IntegerLike = 2, alg: object = "auto_select") -> Tensor:
    """Derives ``num`` seeds from a seed, as the rows of an array.

    Args:
        seed: Two integers.
        num: The number of seeds.
        alg: Ignored.

    JAX equivalent: ``jax.random.split``.

    >>> split([1, 2], 3).shape
    (3, 2)
    """
    return _seed_of_key(jax.random.split(key_from_seed("split", seed), int(num)), seed)
