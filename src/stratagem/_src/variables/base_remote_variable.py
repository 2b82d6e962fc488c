"""``BaseRemoteVariable``: base of variables whose value is stored in another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError, ShapeMismatchError, VariableError
from stratagem._src.core.tensor_shape import TensorShape
from stratagem._src.core.types import ArrayLike, DTypeLike, PyTree
from stratagem._src.current_strategy.protocols import ReplicaContextProtocol, StrategyProtocol
from stratagem._src.jax_compat.tracing import is_tracer, under_jit
from stratagem._src.mesh.replica_group import ReplicaGroup
from stratagem._src.values.array_operators import array_of
from stratagem._src.variables import frames
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["BaseRemoteVariable", "RemoteStorage", "operand_arrays"]


class RemoteStorage(Protocol):
    """The connection to the processes that store variables. Only it interprets the requests."""

    def pull(self, requests: Sequence[Any]) -> Sequence[np.ndarray[Any, Any]]:
        """Returns the array for each request, with one message to each process."""

    def push(self, requests: Sequence[Any]) -> None:
        """Sends updates, those of one variable in order, with one message to each process."""


class BaseRemoteVariable(AggregatingVariable):
    """A variable whose value is stored in another process.

    Outside of compiled functions each read and each update is a message. A compiled function fetches
    everything that it reads before it runs, and sends all of its updates afterwards. The operation is
    sent, never the new value, so that concurrent updates of several workers add up.

    Args:
        strategy: The strategy whose replicas use it.
        name: Its name.
        shape: Its shape.
        dtype: Its element type.
        trainable: Whether optimizers should update it.
        synchronization: As for ``Variable``.
        aggregation: How the updates of this process's replicas are combined.
    """

    __slots__ = ()

    def __init__(
        self,
        strategy: StrategyProtocol,
        *,
        name: str,
        shape: Sequence[int],
        dtype: DTypeLike,
        trainable: bool,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> None:
        self._strategy = strategy
        self._name = name
        self._shape = TensorShape(shape)
        self._dtype = np.dtype(dtype)
        self._trainable = trainable
        self._synchronization = synchronization
        self._aggregation = aggregation
        self._array = self._on_mesh = None
        self._shared = False
        self._check_aggregation_of_dtype()

    def restart_at_zero(self) -> None:
        """Makes zeros the value after a loss of the storage, if no checkpoint has another one."""

    # --- storage: defined by subclasses -----------------------------------------------------------

    @property
    def storage(self) -> RemoteStorage:
        """The connection to the processes that store the value."""
        raise NotImplementedError

    def read_requests(self, rows: np.ndarray[Any, Any] | None) -> list[Any]:
        """Returns the requests for the full value, or for rows, whose indices have been checked."""
        raise NotImplementedError

    def assemble(
        self, parts: Sequence[np.ndarray[Any, Any]], rows: np.ndarray[Any, Any] | None
    ) -> np.ndarray[Any, Any]:
        """Returns the value, or the rows, from the responses to ``read_requests``."""
        raise NotImplementedError

    def update_requests(
        self, update: Update, operands: tuple[np.ndarray[Any, Any], ...]
    ) -> list[Any]:
        """Returns the requests for ``update``.

        Args:
            update: The update.
            operands: The arrays of its operand: the value; or values and indices, where indices out of
                range are ignored.
        """
        raise NotImplementedError

    @property
    def table(self) -> BaseRemoteVariable | None:
        """The variable that this one is a shard of; ``None`` if it is not a shard."""
        return None

    @property
    def first_row(self) -> int:
        """The row of ``table`` at which this shard begins."""
        return 0

    def overlaps(self, other: BaseRemoteVariable) -> bool:
        """Returns whether both have elements in common: they are the same, or one is the other's shard."""
        return self is other or (other.table is not None and other.overlaps(self))

    # --- reading ----------------------------------------------------------------------------------

    @property
    def values(self) -> tuple[Any, ...]:
        """The one value."""
        return (self._value(),)

    def pull(self) -> np.ndarray[Any, Any]:
        """Fetches and returns the value."""
        return self.assemble(self.storage.pull(self.read_requests(None)), None)

    def pull_rows(self, indices: ArrayLike) -> np.ndarray[Any, Any]:
        """Fetches and returns the rows at ``indices``."""
        rows = self.row_numbers(indices)
        fetched = self.assemble(self.storage.pull(self.read_requests(rows)), rows)
        return fetched.reshape(np.shape(indices) + self.row_shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.program_shape[1:]

    def row_numbers(self, indices: ArrayLike) -> np.ndarray[Any, Any]:
        """Returns concrete indices as a checked vector.

        Raises:
            VariableError: If one is out of range.
        """
        rows = np.asarray(indices).reshape(-1).astype(np.int64, copy=False)
        if rows.size:
            low, high = int(rows.min()), int(rows.max())
            if low < 0 or high >= self.program_shape[0]:
                raise VariableError(
                    f"Row indices of {self.name!r} must be in [0, {self.program_shape[0]}), got {low} to "
                    f"{high}."
                )
        return rows

    def sparse_read(self, indices: ArrayLike, name: str | None = None) -> Any:
        """Returns the rows at ``indices``, and fetches no others.

        Args:
            indices: Integer array of any shape.
            name: Ignored.

        Returns:
            An array of shape ``indices.shape + self.shape[1:]``.
        """
        self.check_own_replica()
        indices = array_of(indices)
        indices = indices if isinstance(indices, (jax.Array, np.ndarray)) else np.asarray(indices)
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise VariableError(
                f"sparse_read() of {self.name!r} needs integer row indices, got {indices.dtype.name}."
            )
        if not self._shape:
            raise ShapeMismatchError(
                f"sparse_read() needs a variable with rows, but {self.name!r} is a scalar."
            )
        frame = frames.current_frame()
        if frame is None:
            rows = self.rows_now(indices)
        else:
            rows = frame.as_computed(self, frame.read_rows(self, indices))
        return frames.record_read(self, rows, indices)

    def rows_now(self, indices: ArrayLike) -> jax.Array:
        """Fetches the rows at ``indices`` to the current replica's device.

        Raises:
            ContextError: Inside a JAX trace, which could fetch them only once.
        """
        if is_tracer(indices) or under_jit():
            raise ContextError(
                f"Rows of variable {self.name!r} are read inside jax.jit (or lax.scan, jax.vmap, ...) "
                "outside of a stratagem.function. Use stratagem.function in place of jax.jit, or read "
                "the rows outside and pass them."
            )
        return self._on_device(self.pull_rows(indices))

    def gather(self, indices: ArrayLike) -> Any:
        """Same as ``sparse_read``."""
        return self.sparse_read(indices)

    def __getitem__(self, key: ArrayLike) -> Any:
        """Returns a slice of the value; fetches only the rows that an index, array or slice selects."""
        first, *rest = key if isinstance(key, tuple) else (key,)
        rows = self._chosen_rows(first)
        if rows is None:
            return self._value()[key]
        chosen = self.sparse_read(rows)
        return chosen[(*(slice(None) for _ in range(rows.ndim)), *rest)] if rest else chosen

    def _chosen_rows(self, key: ArrayLike) -> Any:
        """Returns the indices of the rows that a key of the first dimension selects; ``None`` for all."""
        if not self._shape or key is None or isinstance(key, (bool, np.bool_)):
            return None
        size = self.program_shape[0]
        key = array_of(key)
        if isinstance(key, slice):
            all_rows = range(size)[key] == range(size)
            return None if all_rows else np.arange(size)[key]
        if isinstance(key, (int, np.integer)):
            if not -size <= key < size:
                raise IndexError(
                    f"row {key} is out of range for {self.name!r}, which has {size} rows"
                )
            return np.asarray(int(key) % size)
        if isinstance(key, list):
            key = np.asarray(key)
        if isinstance(key, (jax.Array, np.ndarray)) and jnp.issubdtype(key.dtype, jnp.integer):
            return key
        return None

    def _eager_value(self) -> Any:
        return self._on_device(self.pull())

    def value_on_host(self) -> np.ndarray[Any, Any]:
        """Returns the current value as a NumPy array, even while a function is traced."""
        return np.asarray(self.pull())

    def _on_device(self, value: np.ndarray[Any, Any]) -> jax.Array:
        replica = self.check_own_replica()
        index = replica.replica_index if replica is not None else None
        return jax.device_put(value, self.group.local_devices[index or 0])

    # --- updating ---------------------------------------------------------------------------------

    def apply_update(self, update: Update, operand: PyTree) -> BaseRemoteVariable:
        """Applies an update that has no method of its own, and returns the variable.

        Args:
            update: The update, for example from ``update_on_server``.
            operand: An array, ``IndexedSlices``, or for ``update_on_server`` any structure of arrays.
        """
        self._update(update, operand)
        return self

    def _update_from_replica(
        self, replica: ReplicaContextProtocol, update: Update, operand: ArrayLike
    ) -> None:
        if self._synchronization is VariableSynchronization.ON_READ:
            # ON_READ: each replica updates a value of its own, so a Python number counts once per replica
            # and is not ambiguous. As an array it passes the check of the base class.
            operand = array_of(operand)
            operand = np.asarray(operand) if isinstance(operand, (int, float, complex)) else operand
        super()._update_from_replica(replica, update, operand)

    def check_operand(self, update: Update, operand: ArrayLike) -> Any:
        """As for ``Variable``; operands of server-only updates are not checked."""
        if not update.server_only:
            return super().check_operand(update, operand)
        return jax.tree.map(
            lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), operand
        )

    def apply(self, update: Update, operand: ArrayLike) -> None:
        """Sends the update, or records it to be sent when the compiled function has run."""
        frame = frames.current_frame()
        if frame is not None:
            self._update_traced(frame, update, operand)
            return
        self.check_not_tracing(operand)
        self.storage.push(self.update_requests(update, operand_arrays(operand)))

    def _update_traced(self, frame: frames.StateFrame, update: Update, operand: ArrayLike) -> None:
        frame.check_writable(self)
        frame.update_remotely(self, update, operand)

    def commit_update(self, update: Update, operand: PyTree) -> None:
        """Sends once an update that ``value_and_grad`` deferred, which is the same in every replica."""
        replica = self.check_own_replica()
        if replica is None or replica.num_replicas_in_sync == 1:
            self.apply(update, operand)
            return
        replica.merge_per_replica(
            f"{update.name} of {self.name!r}",
            lambda strategy, values: self.apply(update, strategy.extended.first_replica(values)),
            operand,
        )

    # --- in compiled programs ---------------------------------------------------------------------

    def stores_program_results(self, group: ReplicaGroup | None) -> bool:
        """Returns ``False``: a program's result is not stored in this process."""
        return False

    def passes_as_stored(self, group: ReplicaGroup | None) -> bool:
        """Returns ``False``: the value is not stored in this process."""
        return False

    def take_for_program(self, group: ReplicaGroup | None, donate: bool) -> Any:
        """Fetches the value to the program's devices."""
        value = self.pull()
        return jnp.asarray(value) if group is None else group.replicate(value)


def operand_arrays(operand: PyTree) -> tuple[np.ndarray[Any, Any], ...]:
    """Returns the arrays of an update's operand, as they are sent."""
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(operand))
