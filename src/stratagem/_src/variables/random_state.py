"""``RandomState``: a variable that random numbers are drawn from, the same way in every replica.

It holds a key of ``threefry2x32`` and how often has been drawn. A draw makes a key of both, and of the
replica's number where there are several, so that each draw, step and replica has numbers of its own. In a
compiled function it is an input and an output of the program, as every variable is.
"""

from __future__ import annotations

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError
from stratagem._src.current_strategy import context
from stratagem._src.variables import access as state
from stratagem._src.variables.atomicity import change
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable, _register

__all__ = ["ALGORITHM", "RandomState"]

ALGORITHM = "threefry2x32"
_NAME = "random_state"


class RandomState(Variable):
    """The state of a stream of random numbers: ``[key, key, count, count // 2**32]`` as ``uint32``.

    It belongs to no strategy and is the same in all replicas: each of them counts alike.
    """

    __slots__ = ()

    @classmethod
    def create(cls, value: Any) -> Self:
        """Returns a state with a known value, also while a function is traced."""
        value = np.asarray(value, np.uint32)
        # Not a variable of the function that is traced, and on no replica's device.
        with state.outside_of_frames(), jax.core.eval_context(), jax.default_device(None):
            made: Self = type.__call__(cls, value, trainable=False, name=_NAME)
        return made

    @classmethod
    def of_key(cls, key: Any) -> Self:
        """Returns the state of a stream that begins with a key, two whole numbers."""
        return cls.create([*np.asarray(key, np.uint32), 0, 0])

    def next_key(self) -> Any:
        """Returns a key that no other draw gets, and counts the draw.

        Raises:
            ContextError: Inside a transformation of JAX, which calls a function once for all of its runs.
        """
        replica = context.get_replica_context()
        number = None
        if replica is not None and replica.num_replicas_in_sync > 1:
            number = replica.replica_id_in_sync_group
        frame = state.current_frame()
        if frame is not None:
            if not frame.is_innermost_trace():
                raise _no_state_here()
            key, after = _draw(frame.read(self), number)
            frame.write(self, after)
            return key
        try:
            self.check_not_tracing(())
        except ContextError:
            raise _no_state_here() from None

        if replica is None or replica.replica_index is None:
            return change(self, functools.partial(self._advance, number))
        group, index = replica.strategy.replica_group, replica.replica_index
        if number is not None:
            # The replica has it as an array on its own device, where the state is not.
            number = np.int32(group.first_local + index)
        key = change(self, functools.partial(self._advance, number))
        return jax.device_put(key, group.local_devices[index])

    def _advance(self, number: Any) -> Any:
        key, after = _draw(self._stored(), number)
        self.store(after)
        return key

    def _update(self, update: Update, operand: Any) -> Self:
        # The replicas give it equal values: they need not do so in turn.
        self.apply(update, self.check_operand(update, operand))
        return self


@functools.partial(jax.jit, inline=True)
def _draw(value: Any, replica: Any) -> tuple[Any, Any]:
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
        "which calls the function once for all of its runs. Draw them outside and pass them in, use "
        "tf.random.stateless_* with another seed for each run, or stratagem.function in place of jax.jit."
    )


_register(RandomState)
