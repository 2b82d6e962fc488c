"""Seeds: ``set_seed``, the streams that ``tf.random`` draws from, and seeds of stateless functions."""

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
from stratagem._src.tensorflow_api.conversion import known, tensor
from stratagem._src.values.array_operators import operand_of
from stratagem._src.variables.random_state import ALGORITHM, RandomState

__all__ = ["fold_in", "key_of_numbers", "key_of_seed", "next_key", "set_seed", "split"]

# TensorFlow's, for functions that are given a seed while set_seed was not called.
_DEFAULT_SEED = 87654321


def key_of_numbers(numbers: Seed) -> Any:
    """Returns two whole numbers of 32 bits, for a seed of any whole numbers."""
    words = []
    for number in np.ravel(np.asarray(numbers, object)).tolist():
        if isinstance(number, bool) or int(number) != number:
            raise InvalidArgumentError(f"A seed must be whole numbers, got {numbers!r}.")
        # SeedSequence takes none below zero; a bit says which were.
        words += [abs(int(number)), int(number < 0)]
    return np.random.SeedSequence(words).generate_state(2)


_Stream = tuple[int | None, bool]
"""The seed that a function is given, if any; and whether it runs in a thread that reads data ahead."""


class _Streams:
    """A state for each seed that functions are given, and one for those that are given none.

    Threads that read data ahead have streams of their own: how far they are differs from run to run, and a
    step that waits for data may have those of its thread for itself meanwhile.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._states: dict[_Stream, RandomState] = {}
        self._made_for: Any = None
        self._lives = itertools.count()
        self._life = 0

    def set_seed(self, seed: int | None) -> None:
        """Makes every stream begin again, from this seed."""
        with self._lock:
            self._seed = seed
            keys = [(state, self._key(stream)) for stream, state in self._current().items()]
        # Without the lock: a call that uses the state may be waited for, and may need it.
        for state, key in keys:
            state.assign(np.array([*key, 0, 0], np.uint32))

    def get(self, given: int | None) -> RandomState:
        """Returns the state of the stream of functions with this seed, in this thread."""
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
        return key_of_numbers([seed, number, int(given is None), int(is_prefetching), self._life])

    def _current(self) -> dict[_Stream, RandomState]:
        """Returns the states; devices that are gone took theirs with them, so others are made."""
        if self._made_for is None or self._made_for() is None:
            self._made_for = backend_lifetime()
            self._states, self._life = {}, next(self._lives)
        return self._states


_streams = _Streams()


def set_seed(seed: Seed) -> None:
    """Makes the random numbers of this process reproducible from here on.

    Functions of ``tf.random`` draw from one stream, and those that are given a seed from a stream of that
    seed. Each stream begins again, so that the same calls give the same numbers as after an earlier
    ``set_seed`` of the same number. Several workers must set the same seed: each replica still gets
    numbers of its own.

    Differs from TensorFlow: the numbers are others. Functions compiled by ``tf.function`` draw from the
    same streams as everything else, where in TensorFlow each function begins its own.

    Args:
        seed: A whole number; ``None`` for numbers that differ in each run of the program.

    >>> import stratagem as tf
    >>> tf.random.set_seed(1)
    >>> first = tf.random.uniform([2])
    >>> tf.random.set_seed(1)
    >>> bool((tf.random.uniform([2]) == first).all()), bool((tf.random.uniform([2]) == first).any())
    (True, False)
    """
    _streams.set_seed(None if seed is None else int(known(seed)))  # type: ignore[arg-type]


def next_key(seed: Seed = None) -> PRNGKey:
    """Returns a key that no other draw gets.

    Args:
        seed: The seed that a function of TensorFlow's was given, if any.
    """
    return _streams.get(None if seed is None else int(known(seed))).next_key()  # type: ignore[arg-type]


def key_of_seed(op: str, seed: Seed) -> PRNGKey:
    """Returns the key of the two numbers that a stateless function is given."""
    if not isinstance(seed, (list, tuple, np.ndarray)):
        seed = operand_of(seed)
    if not isinstance(seed, jax.Array) and not any(map(is_tracer, jax.tree.leaves(seed))):
        numbers = np.asarray(seed)
        _check_seed(op, numbers)
        if np.any((numbers < -(2**31)) | (numbers >= 2**32)):
            # What 32 bits do not hold must count too.
            numbers = key_of_numbers(numbers)
        seed = numbers.astype(np.int64).astype(np.uint32)
    array = tensor(seed)
    _check_seed(op, array)
    return jax.random.wrap_key_data(array.astype(jnp.uint32), impl=ALGORITHM)


def _check_seed(op: str, seed: Seed) -> None:
    if seed.shape != (2,) or seed.dtype.kind not in "iu":
        raise ShapeMismatchError(
            f"The seed of tf.random.{op} must be two whole numbers, got shape {tuple(seed.shape)} of "
            f"{seed.dtype}."
        )


def _seed_of_key(key: PRNGKey, like: ArrayLike) -> Tensor:
    data = jax.random.key_data(key)
    return data.astype(jnp.uint32 if tensor(like).dtype == jnp.uint32 else jnp.int32)


def fold_in(seed: Seed, data: ScalarLike, alg: object = "auto_select") -> Tensor:
    """Returns a seed made of a seed and a number, for ``stateless_*`` functions.

    Args:
        seed: Two whole numbers.
        data: A whole number, such as that of a step.
        alg: Ignored.

    JAX equivalent: ``jax.random.fold_in``.

    >>> fold_in([1, 2], 3).shape
    (2,)
    """
    made = jax.random.fold_in(key_of_seed("fold_in", seed), tensor(data).astype(jnp.uint32))
    return _seed_of_key(made, seed)


def split(seed: Seed, num: IntegerLike = 2, alg: object = "auto_select") -> Tensor:
    """Returns ``num`` seeds made of a seed, as the rows of an array.

    Args:
        seed: Two whole numbers.
        num: How many.
        alg: Ignored.

    JAX equivalent: ``jax.random.split``.

    >>> split([1, 2], 3).shape
    (3, 2)
    """
    return _seed_of_key(jax.random.split(key_of_seed("split", seed), int(num)), seed)
