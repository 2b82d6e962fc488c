"""``OptimizerFunction``: an optimizer's step on a parameter server, beside the variable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.leaf_names import leaf_names
from stratagem._src.jax_compat.tracing import outputs_that_depend_on_inputs
from stratagem._src.parameter_server.client.initial_value import row_blocks
from stratagem._src.parameter_server.server.row_updates import combine_duplicates, within
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray, aligned_zeros

__all__ = ["OptimizerFunction", "OptimizerState", "StateLeaf"]

_FEWEST_ROWS = 16


@dataclass(slots=True)
class OptimizerState:
    """What an optimizer keeps for one stored array.

    Attributes:
        leaves: The arrays, in the order of the state's structure.
        structure: How they make up the optimizer's state.
        by_row: Of each array, whether it has a row for each row of the variable.
    """

    leaves: list[Any]
    structure: Any
    by_row: list[bool]

    def tree(self, leaves: list[Any]) -> Any:
        """Returns the state with ``leaves``."""
        return jax.tree.unflatten(self.structure, leaves)

    def copy(self) -> OptimizerState:
        """Returns the same state in memory of its own."""
        return OptimizerState(
            [np.array(leaf) for leaf in self.leaves], self.structure, list(self.by_row)
        )

    def make_writable(self) -> None:
        """Makes what has rows arrays whose rows can be set."""
        for position, (leaf, by_row) in enumerate(zip(self.leaves, self.by_row, strict=True)):
            if by_row and not (isinstance(leaf, np.ndarray) and leaf.flags.writeable):
                self.leaves[position] = np.array(leaf)


class StateLeaf(NamedTuple):
    """One array of an optimizer's state for a variable.

    Attributes:
        name: What it is.
        shape: Its shape.
        dtype: Its element type.
        by_row: Whether it has a row for each row of the variable.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    by_row: bool = False


class OptimizerFunction(ServerFunction):
    """Applies gradients by an optax transformation, to a whole array or to some of its rows.

    A step on rows reads and writes these rows and their state alone. What the state has besides, such
    as a count of steps, belongs to the stored array and advances with every step on it.

    Args:
        optimizer: The id under which the state is kept.
        transformation: Anything with optax's ``init`` and ``update``.
    """

    # A step that could be traced can be taken.
    may_refuse = False

    def __init__(self, optimizer: str, transformation: Any) -> None:
        self.optimizer = optimizer
        self.transformation = transformation
        self._step = jax.jit(self._new_value_and_state, donate_argnums=(0,))
        self._step_on_rows = jax.jit(self._new_value_and_state)
        self._traced: set[Any] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return OptimizerFunction, (self.optimizer, self.transformation)

    def _new_value_and_state(self, state: Any, value: Any, gradient: Any) -> Any:
        updates, state = self.transformation.update(gradient.astype(value.dtype), state, value)
        return (value + updates).astype(value.dtype), state

    def check(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Checks that a step can be taken.

        Raises:
            ShapeMismatchError: If the gradient does not fit.
            Exception: What the transformation raises when it is traced.
        """
        gradient, *indices = operands
        wanted = stored.shape_of_rows("apply_gradients", *indices) if indices else stored.shape
        stored.check_operand("apply_gradients", gradient.shape, wanted)
        shape = (_padded(gradient.shape[0]), *gradient.shape[1:]) if indices else stored.shape
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
        """Applies a gradient, or values and indices of a gradient's rows, after ``check``."""
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
        rows, gradients = combine_duplicates(*within(indices, gradients, stored.shape[0]))
        if not rows.size:
            return
        state = stored.optimizer_states.get(self.optimizer) or self.make_row_state(stored)
        state.make_writable()
        # Few different sizes, so that few programs are compiled: the last row is repeated.
        padding = np.full(_padded(rows.size) - rows.size, rows[-1], rows.dtype)
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
        """Returns the state to begin with."""
        leaves, structure = jax.tree.flatten(self.transformation.init(stored.read()))
        return OptimizerState(leaves, structure, self._rows_of_state(stored))

    def make_row_state(self, stored: StoredArray) -> OptimizerState:
        """Returns the state to begin with, made without a second copy of it.

        A state that does not depend on the variable's value, as zeros, is known from one row.
        """
        num_rows = stored.shape[0]
        by_row = self._rows_of_state(stored)
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

    def _rows_of_state(self, stored: StoredArray) -> list[bool]:
        """Returns which of the state's arrays grow with the rows of the variable."""
        return [leaf.by_row for leaf in self.describe_state(stored.shape, stored.dtype)]

    def describe_state(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[StateLeaf]:
        """Returns what the state of a variable consists of, without making it.

        Raises:
            InvalidArgumentError: If that depends on the number of rows.
        """
        with on_server(dtype):
            tree = self._state_shapes(dtype, shape)
            here = jax.tree.leaves(tree)
            longer = here
            if shape:
                longer = jax.tree.leaves(self._state_shapes(dtype, (shape[0] + 1, *shape[1:])))
        if len(here) != len(longer):
            raise InvalidArgumentError(
                "An optimizer on parameter servers must have state of the same structure for any "
                "number of rows."
            )
        return [
            StateLeaf(name, tuple(leaf.shape), np.dtype(leaf.dtype), leaf.shape != more.shape)
            for name, leaf, more in zip(leaf_names(tree), here, longer, strict=True)
        ]

    def _state_shapes(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        return jax.eval_shape(self.transformation.init, jax.ShapeDtypeStruct(shape, dtype))


def _padded(count: int) -> int:
    return max(_FEWEST_ROWS, 1 << (count - 1).bit_length())
