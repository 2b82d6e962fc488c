"""``KerasStep``: runs the step of a Keras optimizer on the parameter server that holds the variable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from stratagem._src.core.types import Tensor
from stratagem._src.integrations.keras.keras_internals import KerasOptimizer, KerasVariable
from stratagem._src.parameter_server.server.row_updates import combine_duplicates, drop_out_of_range
from stratagem._src.parameter_server.server.server_computation import on_server
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import Array, StoredArray

__all__ = ["KerasStep", "SlotIds", "decays_of", "rekey", "update_one"]

_MIN_PADDED_ROWS = 16


class SlotIds(NamedTuple):
    """A variable of an optimizer, and the arrays on a server that hold its slots.

    Attributes:
        variable: The index of the variable in the optimizer, or of one that is updated by the same program.
        slots: The ids of the slots of one shard, in the order of ``KerasStep.slots``.
    """

    variable: int
    slots: tuple[str, ...]


class KerasStep(ServerFunction):
    """Applies a gradient with a Keras optimizer, to a full array or to some of its rows.

    Slots, such as the momentum, are variables of the same server. A step on rows reads and writes only
    these rows of the variable and of its slots. The operands are the gradient, the row indices of a sparse
    one, the learning rate, and the values of ``shared``.

    Args:
        optimizer: A copy of the optimizer, whose variables have no values.
        decays: Whether the weights of each of its trainable variables decay.
        slots: The slots of each of its trainable variables.
        shared: Its variables that are not slots, such as the number of iterations.
        ids: What belongs to each shard, by the id of the shard.
    """

    # A step that check() could trace does not fail.
    may_refuse = False

    def __init__(
        self,
        optimizer: KerasOptimizer,
        decays: Sequence[bool],
        slots: Sequence[Sequence[KerasVariable]],
        shared: Sequence[KerasVariable],
        ids: dict[str, SlotIds],
    ) -> None:
        self._content = (optimizer, decays, slots, shared, ids)
        self._optimizer, _, self._slots, self._shared, self._ids = self._content
        rekey(optimizer, decays)
        self._step = jax.jit(self._new_values, static_argnums=0)
        self._traced: set[Any] = set()
        self._tracing = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return KerasStep, self._content

    def check(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Checks that a step is possible.

        Raises:
            ShapeMismatchError: If the gradient's shape does not fit.
            PSUnavailableError: If this server does not hold a slot.
            Exception: Any error that the optimizer raises when it is traced.
        """
        gradient, indices, *others = self._operands(operands)
        ids = self._ids[stored.id]
        for slot in ids.slots:
            _find(stored, slot)
        wanted = stored.shape if indices is None else stored.shape_of_rows("apply", indices)
        stored.check_operand("apply", gradient.shape, wanted)
        shape = stored.shape
        if indices is not None:
            shape = (_padded_size(gradient.shape[0]), *gradient.shape[1:])
        signature = (ids.variable, shape, gradient.dtype)
        if signature not in self._traced:
            value = jax.ShapeDtypeStruct(shape, stored.dtype)
            slots = [jax.ShapeDtypeStruct(shape, _find(stored, slot).dtype) for slot in ids.slots]
            with self._running(stored):
                jax.eval_shape(
                    lambda *arrays: self._new_values(ids.variable, *arrays),
                    value,
                    slots,
                    jax.ShapeDtypeStruct(shape, gradient.dtype),
                    *others,
                )
            self._traced.add(signature)

    def call(self, stored: StoredArray, operands: tuple[Array, ...]) -> None:
        """Applies a gradient, or the rows and indices of a sparse gradient, after ``check``."""
        gradient, indices, *others = self._operands(operands)
        ids = self._ids[stored.id]
        arrays = [stored, *(_find(stored, slot) for slot in ids.slots)]
        with contextlib.ExitStack() as stack:
            for array in arrays:  # always in this order
                stack.enter_context(array.lock)
            stack.enter_context(self._running(stored))
            if indices is None:
                self._apply(arrays, ids.variable, gradient, others)
            else:
                self._apply_to_rows(arrays, ids.variable, gradient, indices, others)

    def _operands(self, operands: tuple[Array, ...]) -> tuple[Any, ...]:
        """Returns the gradient, its row indices or ``None``, and the other operands."""
        is_sparse = len(operands) == len(self._shared) + 3
        return operands if is_sparse else (operands[0], None, *operands[1:])

    @contextlib.contextmanager
    def _running(self, stored: StoredArray) -> Any:
        # The optimizer's copy is changed while it is traced, by one thread at a time.
        with self._tracing, on_server(stored.dtype):
            yield

    def _apply(
        self, arrays: list[StoredArray], index: int, gradient: Array, others: list[Array]
    ) -> None:
        value, *slots = [array.read() for array in arrays]
        new = jax.block_until_ready(self._step(index, value, slots, gradient, *others))
        del value, slots  # readers of the old values: otherwise they would be kept
        for array, result in zip(arrays, new, strict=True):
            array.replace(np.asarray(result))

    def _apply_to_rows(
        self,
        arrays: list[StoredArray],
        index: int,
        gradients: Array,
        indices: Array,
        others: list[Array],
    ) -> None:
        rows, gradients = combine_duplicates(
            *drop_out_of_range(indices, gradients, arrays[0].shape[0])
        )
        if not rows.size:
            return
        # Padded to powers of two by repeating the last row, so that few programs are compiled.
        padding = np.full(_padded_size(rows.size) - rows.size, rows[-1], rows.dtype)
        padded = np.concatenate([rows, padding])
        gradients = np.concatenate(
            [gradients, np.zeros((padding.size, *gradients.shape[1:]), gradients.dtype)]
        )
        value, *slots = [array.read(padded) for array in arrays]
        new = self._step(index, value, slots, gradients, *others)
        for array, result in zip(arrays, new, strict=True):
            array.writable()[rows] = np.asarray(result)[: rows.size]

    def _new_values(
        self,
        index: int,
        value: Tensor,
        slots: Sequence[Tensor],
        gradient: Tensor,
        learning_rate: Tensor,
        *shared: Tensor,
    ) -> list[Any]:
        variable = self._optimizer._trainable_variables[index]
        mine = [variable, *self._slots[index]]
        for one in mine:  # the shape of a shard, or of some rows
            one._shape = tuple(value.shape)
        state = list(zip([*mine, *self._shared], [value, *slots, *shared], strict=True))
        with keras.StatelessScope(state) as scope:
            update_one(self._optimizer, variable, gradient, learning_rate)
        return [scope.get_current_value(one) for one in mine]


def update_one(
    optimizer: KerasOptimizer, variable: KerasVariable, gradient: Tensor, learning_rate: Tensor
) -> None:
    """Takes the step of an optimizer for one variable: with weight decay, averages and constraint."""
    one = object.__new__(type(optimizer))
    one.__dict__.update(optimizer.__dict__)
    index = optimizer._get_variable_index(variable)
    # Gradients are clipped, and what all variables share is updated, where the gradients are computed.
    one.__dict__.update(
        _learning_rate=learning_rate,
        _clip_gradients=lambda gradients: gradients,
        _backend_update_step=lambda gradients, variables, rate: one.update_step(
            gradients[0], variables[0], rate
        ),
        _trainable_variables=[variable],
    )
    if optimizer.use_ema:
        averages = [optimizer._model_variables_moving_average[index]]
        one.__dict__["_model_variables_moving_average"] = averages
    one._backend_apply_gradients([gradient], [variable])
    if variable.constraint is not None:
        variable.assign(variable.constraint(variable))


def decays_of(optimizer: KerasOptimizer) -> list[bool]:
    """Returns whether the weights of each trainable variable decay, if the optimizer's weights do."""
    return [bool(optimizer._use_weight_decay(v)) for v in optimizer._trainable_variables]


def rekey(optimizer: KerasOptimizer, decays: Sequence[bool]) -> None:
    """Sets the tables of an optimizer whose keys are ids of variables, which differ between processes."""
    keys = [optimizer._var_key(variable) for variable in optimizer._trainable_variables]
    optimizer.__dict__["_trainable_variables_indices"] = {key: i for i, key in enumerate(keys)}
    optimizer.__dict__["_exclude_from_weight_decay_cache"] = dict(zip(keys, decays, strict=True))


def _find(stored: StoredArray, array: str) -> StoredArray:
    assert stored.find is not None
    return stored.find(array)


def _padded_size(count: int) -> int:
    return max(_MIN_PADDED_ROWS, 1 << (count - 1).bit_length())
