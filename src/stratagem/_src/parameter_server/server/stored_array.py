"""``StoredArray``: a variable, or one shard of it, in its server's memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stratagem._src.core.errors import ShapeMismatchError, VariableError
from stratagem._src.parameter_server.server.row_updates import ROW_UPDATES, update_rows

__all__ = ["Array", "RowSelection", "StoredArray", "aligned_empty", "aligned_zeros"]

Array = np.ndarray[Any, Any]
RowSelection = Array | range | None
"""Which rows to read: by index, a range, or all."""

_ALIGNMENT = 64  # XLA uses arrays with this alignment without a copy
_MAX_SPARE_BYTES = 256 << 20
_MIN_ADOPTED_BYTES = 1 << 20
_NON_NUMERIC_KINDS = "OSUMm"
_NUM_OPERANDS = {
    **dict.fromkeys(("assign", "assign_add", "assign_sub"), 1),
    **dict.fromkeys(("scatter_update", *ROW_UPDATES), 2),
}
_UFUNCS: dict[str, np.ufunc] = {
    "assign_add": np.add,
    "assign_sub": np.subtract,
    **{update: change for update, (_, change) in ROW_UPDATES.items()},
}


class StoredArray:
    """An array that many threads read and update; each update is atomic.

    A full read returns a view, not a copy. An update writes in place unless a reader still holds such a
    view: then it writes to other memory, so values that were read never change (copy-on-write).

    Args:
        name: The variable's name, for messages.
        value: The initial value. The array is not copied.
        is_uninitialized: Whether ``value`` is only a placeholder until the value is set.
        id: Its id on the server.
        find: Returns the array of the same server with an id: a function may update several together.

    Attributes:
        is_uninitialized: Whether the value is not set yet. ``Store.find`` checks it before others use the
            array.
    """

    def __init__(
        self,
        name: str,
        value: Array,
        *,
        is_uninitialized: bool = False,
        id: str = "",
        find: Callable[[str], StoredArray] | None = None,
    ) -> None:
        self.name = name
        self.id = id
        self.find = find
        self.shape = value.shape
        self.dtype = value.dtype
        self.lock = threading.RLock()
        self.is_uninitialized = is_uninitialized and value.size > 0
        self.optimizer_states: dict[str, Any] = {}
        self._value = value.view()
        self._spare: Array | None = None

    @property
    def nbytes(self) -> int:
        """Size of the value."""
        return self._value.nbytes

    # --- reading --------------------------------------------------------------------------------

    def read(self, rows: RowSelection = None) -> Array:
        """Returns a snapshot of the value, or of the selected rows.

        Raises:
            VariableError: If a row does not exist.
        """
        if rows is None:
            with self.lock:
                view = self._value.view()
            view.flags.writeable = False
            return view
        if isinstance(rows, range):
            stop: int | None = rows.stop if rows.stop >= 0 else None
            with self.lock:
                return self._value[rows.start : stop : rows.step].copy()
        self._check_rows(rows)
        with self.lock:
            # With mode="clip" NumPy does not gather into a temporary buffer first.
            return np.take(self._value, rows, axis=0, mode="clip")

    def _check_rows(self, rows: Array) -> None:
        num_rows = self.shape[0]
        if rows.size and not (rows.min() >= 0 and rows.max() < num_rows):
            raise VariableError(
                f"Rows read from {self.name!r} must be in [0, {num_rows}), got {rows.min()} to "
                f"{rows.max()}."
            )

    # --- updating -------------------------------------------------------------------------------

    def update(self, update: str, operands: tuple[Array, ...], *, adopt: bool = False) -> None:
        """Applies an update method of ``Variable``.

        Args:
            update: The method's name, such as ``assign_add`` or ``scatter_max``.
            operands: The array; or values and indices.
            adopt: Whether a large assigned array may be kept instead of copied.

        Raises:
            VariableError: If the update is unknown, or the operand's dtype does not fit.
            ShapeMismatchError: If an operand's shape does not fit.
        """
        self.check_update(update, operands)
        self.apply_unchecked(update, operands, adopt=adopt)

    def check_update(self, update: str, operands: tuple[Array, ...]) -> None:
        """Checks an update, so that ``apply_unchecked`` can fail only if memory runs out.

        Raises:
            VariableError: If the update is unknown, or the operand's dtype does not fit.
            ShapeMismatchError: If an operand's shape does not fit.
        """
        num_operands = _NUM_OPERANDS.get(update)
        if num_operands != len(operands):
            raise VariableError(
                f"{update!r} with {len(operands)} operands is not an update of a variable."
            )
        wanted = self.shape if num_operands == 1 else self.shape_of_rows(update, operands[1])
        self.check_operand(update, operands[0].shape, wanted)
        self._check_elements(update, operands[0].dtype)

    def shape_of_rows(self, update: str, indices: Array) -> tuple[int, ...]:
        """Returns the shape that values for these rows must have.

        Raises:
            ShapeMismatchError: If the array is a scalar, or ``indices`` is not a vector of integers.
        """
        if not self.shape or indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ShapeMismatchError(
                f"{update} of {self.name!r} (here of shape {self.shape}) needs rows and a vector of "
                f"integer row indices, got {indices.dtype.name}{list(indices.shape)}."
            )
        return (indices.size, *self.shape[1:])

    def _check_elements(self, update: str, dtype: np.dtype[Any]) -> None:
        if dtype == self.dtype and dtype.kind != "b":
            return
        try:
            # Let NumPy decide, with empty arrays.
            ours, theirs = np.empty(0, self.dtype), np.empty(0, dtype)
            if dtype.kind in _NON_NUMERIC_KINDS:
                raise TypeError("they are not numbers")
            if update in _UFUNCS:
                _UFUNCS[update](ours, theirs).astype(self.dtype)
        except TypeError as error:
            raise VariableError(
                f"{update} of {self.name!r}, which is {self.dtype.name}, does not take elements of type "
                f"{dtype.name}: {error}."
            ) from error

    def apply_unchecked(
        self, update: str, operands: tuple[Array, ...], *, adopt: bool = False
    ) -> None:
        """Applies an update, as ``update`` does, without its checks."""
        if len(operands) == 2:
            values, indices = operands
            self.update_rows(update, indices, values)
        elif update == "assign":
            self.assign(operands[0], adopt=adopt)
        else:
            with self.lock:
                target = self._target()
                _UFUNCS[update](self._value, operands[0], out=target, casting="unsafe")
                self.replace(target)

    def assign(self, operand: Array, *, adopt: bool = False) -> None:
        """Sets the value."""
        self.is_uninitialized = False
        if adopt and operand.nbytes >= _MIN_ADOPTED_BYTES and operand.dtype == self.dtype:
            with self.lock:
                self._value, self._spare = operand.view(), None
            return
        with self.lock:
            target = self._target()
            np.copyto(target, operand, casting="unsafe")
            self.replace(target)

    def update_rows(self, update: str, indices: Array, rows: Array) -> None:
        """Applies a ``scatter_*`` update."""
        with self.lock:
            update_rows(self.writable(), update, indices, rows)

    def write_rows(self, start: int, rows: Array) -> None:
        """Sets consecutive rows."""
        self.is_uninitialized = False
        with self.lock:
            self.writable()[start : start + len(rows)] = rows

    def draft(self, *, with_states: bool) -> StoredArray:
        """Returns a copy-on-write draft to try updates on; the caller holds ``lock`` until ``accept``.

        Args:
            with_states: Whether the draft gets its own copy of the optimizer states.
        """
        draft = StoredArray(self.name, self.read(), id=self.id, find=self.find)
        states = self.optimizer_states
        draft.optimizer_states = (
            {optimizer: state.copy() for optimizer, state in states.items()}
            if with_states
            else states
        )
        return draft

    def accept(self, draft: StoredArray) -> None:
        """Replaces the value and states by a draft's; the caller holds ``lock``."""
        if draft._value.base is not self._value.base:
            self.replace(draft._value)
        self.optimizer_states = draft.optimizer_states

    def writable(self) -> Array:
        """Returns the value for changes in place; the caller holds ``lock``."""
        target = self._target()
        if target is not self._value:
            np.copyto(target, self._value)
            self.replace(target)
        return target

    def check_operand(self, update: str, got: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        """Checks the shape of an operand.

        Raises:
            ShapeMismatchError: If it does not fit.
        """
        if got != wanted:
            raise ShapeMismatchError(
                f"{update} of {self.name!r} (here of shape {self.shape}) needs an operand of shape "
                f"{wanted}, got {got}."
            )

    def _target(self) -> Array:
        """Returns the memory for the next value: the current memory, if no reader holds a view of it."""
        # _value and _spare are views; they and every view that a reader holds refer to the same base. Two
        # references to the base are ours: that of our view, and the argument of getrefcount. More means
        # that a reader still holds a view.
        if self._value.flags.writeable and sys.getrefcount(self._value.base) <= 2:
            return self._value
        if self._spare is not None and sys.getrefcount(self._spare.base) <= 2:
            return self._spare
        return aligned_empty(self.shape, self.dtype)

    def replace(self, value: Array) -> None:
        """Makes ``value`` the value, without a copy; the caller holds ``lock``."""
        if value is self._value:
            return
        before, self._value = self._value, value.view()
        keep = before.flags.writeable and before.nbytes <= _MAX_SPARE_BYTES
        self._spare = before if keep else None


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialized array at an address that XLA can use without a copy."""
    return _aligned(np.empty, shape, dtype)


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an aligned array of zeros; the system allocates its pages on first use."""
    return _aligned(np.zeros, shape, dtype)


def _aligned(allocate: Callable[..., Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = allocate(num_bytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
