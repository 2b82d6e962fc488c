"""Initial values of variables on parameter servers, computed here or on the servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError, ShapeMismatchError, VariableError
from stratagem._src.core.int64_guard import check_fits
from stratagem._src.core.types import DTypeLike, Initializer
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.tracing import is_tracer
from stratagem._src.parameter_server.client.shard_initializer import ShardInitializer
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray
from stratagem._src.values.array_operators import ArrayOperators, array_of

__all__ = ["InitialValue", "RowInitializer"]

_BLOCK_BYTES = 32 << 20


class RowInitializer:
    """An initial value that each parameter server computes for its own rows.

    A table can therefore exceed the coordinator's memory, and no rows are sent. The value of a row
    depends only on its index, not on the number of shards. Under other strategies, all rows are
    computed at once.

    Args:
        fn: Maps a vector of row indices to the rows at these indices. The servers call it for one
            block of rows at a time.
        shape: The shape of the unsharded variable.
        dtype: Its dtype.

    >>> import numpy as np
    >>> import stratagem as sg
    >>> tenths = sg.distribute.experimental.RowInitializer(
    ...     lambda rows: np.tile(rows[:, None] / 10, 2), shape=(3, 2))
    >>> sg.Variable(tenths).numpy()
    array([[0. , 0. ],
           [0.1, 0.1],
           [0.2, 0.2]], dtype=float32)
    """

    def __init__(
        self, fn: Callable[[Array], Any], shape: Sequence[int], dtype: DTypeLike = np.float32
    ) -> None:
        if not shape:
            raise ShapeMismatchError("RowInitializer needs a shape with rows, got ().")
        self.fn = fn
        self.shape: tuple[int, ...] = tuple(int(dim) for dim in shape)
        self.dtype: np.dtype[Any] = jax.dtypes.canonicalize_dtype(dtype)

    def __call__(self) -> Array:
        """Returns all rows."""
        return self.rows(0, self.shape[0])

    def rows(self, start: int, stop: int) -> Array:
        """Returns the rows from ``start`` to ``stop``.

        Raises:
            ShapeMismatchError: If ``fn`` returns another shape.
        """
        rows = np.asarray(self.fn(np.arange(start, stop)))
        if rows.shape != (stop - start, *self.shape[1:]):
            raise ShapeMismatchError(
                f"The function of a RowInitializer must return one row per row index, shape "
                f"{(stop - start, *self.shape[1:])}, got {rows.shape}."
            )
        return rows.astype(self.dtype, copy=False)


class InitialValue:
    """An array, or an initializer of rows, that provides each server's shard.

    Args:
        source: The array or initializer.
    """

    def __init__(self, source: Array | RowInitializer | ShardInitializer) -> None:
        self._source = source
        self.shape: tuple[int, ...] = source.shape
        self.dtype: np.dtype[Any] = source.dtype

    @classmethod
    def of(cls, initial_value: Initializer, dtype: DTypeLike = None) -> InitialValue:
        """Returns the initial value of ``Variable(initial_value, dtype=dtype)``.

        Raises:
            VariableError: If it is neither numeric nor boolean.
            ContextError: If it is traced.
        """
        if isinstance(initial_value, RowInitializer):
            wanted = initial_value.dtype if dtype is None else dtype
            return cls(RowInitializer(initial_value.fn, initial_value.shape, wanted))
        if isinstance(initial_value, ShardInitializer):
            return cls(initial_value)
        if callable(initial_value) and not isinstance(initial_value, ArrayOperators):
            initial_value = evaluate_now(initial_value)
        value = array_of(initial_value)
        if value is None:
            raise VariableError("A variable needs an initial_value, got None.")
        if any(map(is_tracer, jax.tree.leaves(value))):
            raise ContextError(
                "A variable on parameter servers cannot be created from a traced initial value. Create it "
                "outside of functions and JAX transformations."
            )
        if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
            leaves = jax.tree.leaves(value)
            natural = jnp.result_type(*leaves) if leaves else np.float32
            value = np.asarray(value, natural if dtype is None else None)
        dtype = value.dtype if dtype is None else dtype
        for kind in (value.dtype, dtype):
            if not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)):
                raise VariableError(f"A variable holds numbers or booleans, got dtype {kind}.")
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        value = np.asarray(value)
        check_fits(value, dtype)
        return cls(value.astype(dtype, copy=False))

    @property
    def must_fill_in_order(self) -> bool:
        """Whether shards must be filled in order, because a user function is called for each."""
        return isinstance(self._source, ShardInitializer)

    def server_function(self, start: int) -> bytes | None:
        """Returns the pickled ``ServerFunction`` that fills a shard from row ``start``, or ``None``."""
        if isinstance(self._source, RowInitializer):
            return cloudpickle.dumps(_FillRows(self._source, start))
        return None

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, Array]]:
        """Yields the rows from ``start`` to ``stop`` in blocks, each with its offset from ``start``."""
        source = self._source
        assert not isinstance(source, RowInitializer)
        rows = (
            source[start:stop] if isinstance(source, np.ndarray) else source.shard_rows(start, stop)
        )
        for begin, end in row_blocks(self.shape, self.dtype, 0, stop - start):
            yield begin, np.ascontiguousarray(rows[begin:end])

    def small_array(self) -> Array | None:
        """Returns the full array if one message can hold it, else ``None``."""
        small = math.prod(self.shape) * self.dtype.itemsize <= _BLOCK_BYTES
        return self._source if small and isinstance(self._source, np.ndarray) else None


class _FillRows(ServerFunction):
    """Computes all rows of a shard on its server.

    Args:
        initializer: Computes rows of the unsharded variable.
        start: The first row of the shard.
    """

    is_update = False

    def __init__(self, initializer: RowInitializer, start: int) -> None:
        self._initializer = initializer
        self._start = start

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Fills the shard, block by block."""
        for begin, end in row_blocks(stored.shape, stored.dtype, 0, stored.shape[0]):
            rows = self._initializer.rows(self._start + begin, self._start + end)
            stored.write_rows(begin, rows)


def row_blocks(
    shape: Sequence[int], dtype: np.dtype[Any], start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """Yields the start and stop row of blocks of at most ``_BLOCK_BYTES``."""
    row_bytes = max(1, math.prod(shape[1:]) * dtype.itemsize)
    step = max(1, _BLOCK_BYTES // row_bytes)
    for begin in range(start, stop, step):
        yield begin, min(begin + step, stop)
