"""``OptimizerFunction``: runs an optimizer's step on the parameter server that holds the variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.leaf_paths import leaf_names
from stratagem._src.core.types import PyTree, Tensor
from stratagem._src.jax_compat.tracing import outputs_that_depend_on_inputs
from stratagem._src.parameter_server.client.initial_value import row_blocks
from stratagem._src.parameter_server.server.row_updates import combine_duplicates, drop_out_of_range
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray, aligned_zeros

__all__ = ["OptimizerFunction", "OptimizerState", "StateLeaf"]

_MIN_PADDED_ROWS = 16


@dataclass(slots=True)
class OptimizerState:
    """The optimizer state of one stored array.

    Attributes:
        leaves: The arrays, in the order of the state's structure.
        structure: The treedef of the optimizer's state.
        by_row: For each array, whether it has a row for each row of the variable.
    """

    leaves: list[Any]
    structure: Any
    by_row: list[bool]

    def tree(self, leaves: list[Any]) -> Any:
        """Returns the state with ``leaves``."""
        return jax.tree.unflatten(self.structure, leaves)

    def copy(self) -> OptimizerState:
        """Returns a copy that shares no memory."""
        return OptimizerState(
            [np.array(leaf) for leaf in self.leaves], self.structure, list(self.by_row)
        )

    def make_writable(self) -> None:
        """Replaces read-only arrays that have rows by writable copies."""
        for position, (leaf, by_row) in enumerate(zip(self.leaves, self.by_row, strict=True)):
            if by_row and not (isinstance(leaf, np.ndarray) and leaf.flags.writeable):
                self.leaves[position] = np.array(leaf)


class StateLeaf(NamedTuple):
    """One array of an optimizer's state for a variable.

    Attributes:
        name: Its name.
        shape: Its shape.
        dtype: Its dtype.
        by_row: Whether it has a row for each row of the variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_row: bool = False


class OptimizerFunction(ServerFunction):
    """Applies gradients with an optax transformation, to a full array or to some of its rows.

    A step on rows reads and writes only these rows and their state. State without rows, such as a step
    count, belongs to the stored array and advances with every step on it.

    Args:
        optimizer: The id of the optimizer's state.
        transformation: An object with ``init`` and ``update`` as in optax.
    """

    # A step that check() could trace does not fail.
    may_refuse = False

    def __init__(self, optimizer: str, transformation: Any) -> None:
        self.optimizer = optimizer
        self.transformation = transformation
        self._step = jax.jit(self._new_value_and_state, donate_argnums=(0,))
        self._step_on_rows = jax.jit(self._new_value_and_state)
        self._traced: set[Any] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizerFunction, (self.optimizer, self.transformation)

    def _new_value_and_state(self, state: PyTree, value: Tensor, gradient: Tensor) -> Any:
        updates, state = self.transformation.update(gradient.astype(value.dtype), state, value)
        return (value + updates).astype(value.dtype), state

    def check(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Checks that a step is possible.

        Raises:
            ShapeMismatchError: If the gradient's shape does not fit.
            Exception: Any error that the transformation raises when it is traced.
        """
        gradient, *indices = operands
        wanted = stored.shape_of_rows("apply_gradients", *indices) if indices else stored.shape
        stored.check_operand("apply_gradients", gradient.shape, wanted)
        shape = (_padded_size(gradient.shape[0]), *gradient.shape[1:]) if indices else stored.shape
        signature = (shape, gradient.dtype, stored.shape, stored.dtype)
        if signature not in self._traced:
            with on_server(stored.dtype):
                jax.eval_shape(
                    self._new_value_and_state,
                    self._state_shapes(stored.dtype, shape),
                    jax.ShapeDtypeStruct(shape, stored.dtype),
                    jax.ShapeDtypeStruct(shape, gradient.dtype),
                )
            self._traced.add(signature)

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Applies a gradient, or the values and indices of a sparse gradient, after ``check``."""
        with stored.lock, on_server(stored.dtype):
            if len(operands) == 1:
                self._apply(stored, operands[0])
            else:
                self._apply_to_rows(stored, *operands)

    def _apply(self, stored: StoredArray, gradient: Array) -> None:
        state = stored.optimizer_states.get(self.optimizer) or self.make_state(stored)
        value, tree = self._step(state.tree(state.leaves), stored.read(), gradient)
        jax.block_until_ready((value, tree))
        state.leaves = jax.tree.leaves(tree)
        stored.replace(np.asarray(value))
        stored.optimizer_states[self.optimizer] = state

    def _apply_to_rows(self, stored: StoredArray, gradients: Array, indices: Array) -> None:
        rows, gradients = combine_duplicates(
            *drop_out_of_range(indices, gradients, stored.shape[0])
        )
        if not rows.size:
            return
        state = stored.optimizer_states.get(self.optimizer) or self.make_row_state(stored)
        state.make_writable()
        # Pad to powers of two by repeating the last row, so that few programs are compiled. The padding's
        # results are cut off below.
        padding = np.full(_padded_size(rows.size) - rows.size, rows[-1], rows.dtype)
        padded = np.concatenate([rows, padding])
        gradients = np.concatenate(
            [gradients, np.zeros((padding.size, *gradients.shape[1:]), gradients.dtype)]
        )
        leaves = [
            np.take(leaf, padded, axis=0, mode="clip") if by_row else leaf
            for leaf, by_row in zip(state.leaves, state.by_row, strict=True)
        ]
        value = stored.read(padded)
        value, tree = self._step_on_rows(state.tree(leaves), value, gradients)
        new_leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        stored.writable()[rows] = np.asarray(value)[: rows.size]
        for position, (leaf, by_row) in enumerate(zip(new_leaves, state.by_row, strict=True)):
            if by_row:
                state.leaves[position][rows] = leaf[: rows.size]
            else:
                state.leaves[position] = leaf
        stored.optimizer_states[self.optimizer] = state

    # --- state ------------------------------------------------------------------------------------

    def make_state(self, stored: StoredArray) -> OptimizerState:
        """Returns the initial state."""
        leaves, structure = jax.tree.flatten(self.transformation.init(stored.read()))
        return OptimizerState(leaves, structure, self._which_have_rows(stored))

    def make_row_state(self, stored: StoredArray) -> OptimizerState:
        """Returns the initial state, without a second copy of it in memory.

        Arrays that do not depend on the variable's value, such as zeros, are broadcast from one row.
        """
        num_rows = stored.shape[0]
        by_row = self._which_have_rows(stored)
        one_row = stored.read(range(min(1, num_rows)))
        sample, structure = jax.tree.flatten(self.transformation.init(one_row))
        depends = outputs_that_depend_on_inputs(self.transformation.init, one_row)
        leaves = [np.array(leaf) for leaf in sample]
        for position, leaf in enumerate(leaves):
            if by_row[position]:
                leaves[position] = aligned_zeros((num_rows, *leaf.shape[1:]), leaf.dtype)
                if leaf.any():
                    leaves[position][:] = leaf
        from_value = [k for k in range(len(leaves)) if by_row[k] and depends[k]]
        if from_value:
            for begin, end in row_blocks(stored.shape, stored.dtype, 0, num_rows):
                block = jax.tree.leaves(self.transformation.init(stored.read(range(begin, end))))
                for position in from_value:
                    leaves[position][begin:end] = block[position]
        return OptimizerState(leaves, structure, by_row)

    def _which_have_rows(self, stored: StoredArray) -> list[bool]:
        """Returns which of the state's arrays have the variable's rows."""
        return [leaf.by_row for leaf in self.describe_state(stored.shape, stored.dtype)]

    def describe_state(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[StateLeaf]:
        """Returns the names, shapes and dtypes of a variable's state, without creating it.

        Raises:
            InvalidArgumentError: If the state's structure depends on the number of rows.
        """
        with on_server(dtype):
            tree = self._state_shapes(dtype, shape)
            here = jax.tree.leaves(tree)
            longer = here
            if shape:
                longer = jax.tree.leaves(self._state_shapes(dtype, (shape[0] + 1, *shape[1:])))
        if len(here) != len(longer):
            raise InvalidArgumentError(
                "The state of an optimizer on parameter servers must have the same structure for any "
                f"number of rows, got {len(here)} arrays for {shape[0]} rows and {len(longer)} for "
                f"{shape[0] + 1}."
            )
        return [
            StateLeaf(name, tuple(leaf.shape), np.dtype(leaf.dtype), leaf.shape != more.shape)
            for name, leaf, more in zip(leaf_names(tree), here, longer, strict=True)
        ]

    def _state_shapes(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        return jax.eval_shape(self.transformation.init, jax.ShapeDtypeStruct(shape, dtype))


def _padded_size(count: int) -> int:
    return max(_MIN_PADDED_ROWS, 1 << (count - 1).bit_length())
