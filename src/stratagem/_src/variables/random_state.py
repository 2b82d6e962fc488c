"""``RandomState``: the variable behind stateful random numbers.

It holds a ``threefry2x32`` key and a counter of draws. A draw folds the counter into the key, and the
replica index too if there are several replicas, so that each draw, step and replica gets its own numbers.
Like every variable, it is an input and an output of a compiled program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.core.thread_state import THIS_THREAD
from stratagem._src.core.types import ArrayLike
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.concrete_array import uncommitted
from stratagem._src.variables import frames
from stratagem._src.variables.locking import change
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable, _register

__all__ = ["ALGORITHM", "RandomState", "register_shape_inference"]

ALGORITHM = "threefry2x32"
_NAME = "random_state"
_shape_inferences: list[Callable[[], bool]] = []


def register_shape_inference(is_active: Callable[[], bool]) -> None:
    """Makes states return a fixed key, and stay as they are, while ``is_active()``.

    Args:
        is_active: Returns whether a library traces in this thread only to infer shapes and dtypes.
    """
    _shape_inferences.append(is_active)


class RandomState(Variable):
    """The state of a stream of random numbers: ``[key, key, count, count // 2**32]`` as ``uint32``.

    It does not belong to a strategy. All replicas count alike, so it stays equal in all of them.
    """

    __slots__ = ()

    @classmethod
    def create(cls, value: ArrayLike) -> Self:
        """Returns a state with a concrete value, even while a function is traced."""
        value = np.asarray(value, np.uint32)
        # Outside of the trace: it is not a variable of the traced function, nor on a replica's device.
        with frames.outside_of_frames(), jax.core.eval_context(), jax.default_device(None):
            made: Self = type.__call__(cls, value, trainable=False, name=_NAME)
        return made

    @classmethod
    def of_key(cls, key: ArrayLike) -> Self:
        """Returns the state of a stream that starts with a key, two integers."""
        return cls.create([*np.asarray(key, np.uint32), 0, 0])

    def next_key(self) -> Any:
        """Returns a unique key and increments the counter of draws.

        Raises:
            ContextError: Inside a JAX transformation, which traces a function once for all of its runs.
        """
        if any(is_active() for is_active in _shape_inferences):
            return jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=ALGORITHM)
        replica = context.get_replica_context()
        number = None
        if replica is not None and replica.num_replicas_in_sync > 1:
            number = replica.replica_id_in_sync_group
        frame = frames.current_frame()
        if frame is not None:
            if not frame.is_innermost_trace():
                raise _no_state_here()
            key, after = _draw(frame.read(self), number)
            frame.write(self, after)
            return key
        step_keys = THIS_THREAD.state.step_keys
        if step_keys is not None and step_keys.is_current():
            return step_keys.next_key(self, ALGORITHM)
        try:
            self.check_not_tracing(())
        except ContextError:
            raise _no_state_here() from None

        if replica is None or replica.replica_index is None or not context.has_strategy():
            key = change(self, functools.partial(self._advance, number))
            # Numbers of no replica combine with arrays of any device.
            return jax.random.wrap_key_data(uncommitted(jax.random.key_data(key)), impl=ALGORITHM)
        group, index = replica.strategy.replica_group, replica.replica_index
        if number is not None:
            # The replica's index is an array on its own device; the state is elsewhere.
            number = np.int32(group.first_local + index)
        key = change(self, functools.partial(self._advance, number))
        return jax.device_put(key, group.local_devices[index])

    def _advance(self, number: ArrayLike) -> Any:
        key, after = _draw(self._stored(), number)
        self.store(after)
        return key

    def _update(self, update: Update, operand: ArrayLike) -> Self:
        # All replicas assign the same value: no need to apply their updates one by one.
        self.apply(update, self.check_operand(update, operand))
        return self


@functools.partial(jax.jit, inline=True)
def _draw(value: ArrayLike, replica: Any) -> tuple[Any, Any]:
    """Returns a key, and the state after it was drawn."""
    low, high = value[2], value[3]
    key = jax.random.wrap_key_data(value[:2], impl=ALGORITHM)
    key = jax.random.fold_in(jax.random.fold_in(key, high), low)
    if replica is not None:
        key = jax.random.fold_in(key, replica)
    low = low + jnp.uint32(1)
    high = high + (low == 0).astype(jnp.uint32)
    return key, jnp.stack([value[0], value[1], low, high])


def _no_state_here() -> ContextError:
    return ContextError(
        "Random numbers with a state (tf.random.normal, tf.random.Generator, tf.nn.dropout, ...) cannot be "
        "drawn inside a JAX transformation (jax.jit, jax.vmap, lax.scan, tf.while_loop, tf.map_fn, ...), "
        "which traces the function once for all of its runs. Draw them outside and pass them in, use "
        "tf.random.stateless_* with another seed for each run, or stratagem.function in place of jax.jit. "
        "A Keras layer under fit may draw them, but not inside such a transformation."
    )


_register(RandomState)
