"""Adapters for the kinds of values that a checkpoint saves: variables, arrays, numbers, iterators."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import jax
import numpy as np

from stratagem._src.checkpoint.collective_commit import spans_workers
from stratagem._src.checkpoint.format.saved_state import SavedArray
from stratagem._src.checkpoint.format.tree_metadata import ARRAY, NUMBER
from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArrayLike
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.training.elastic.elastic_loop import ElasticLoop
from stratagem._src.training.optimizer_state import static_shape
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable

__all__ = [
    "IteratorPosition",
    "PlainArray",
    "PlainNumber",
    "RandomKey",
    "Restorable",
    "SavedValue",
    "SavedVariable",
    "ValueToSave",
]

Array = np.ndarray[Any, Any]
Change = Callable[[], None]


class ValueToSave(Protocol):
    """A value of this process that becomes one array of a checkpoint.

    Attributes:
        kind: The type that Orbax restores it as by default.
        is_worker_local: Whether each worker has its own value under this name.
        is_read_collectively: Whether all workers must read it together, by a collective.
    """

    kind: str
    is_worker_local: bool
    is_read_collectively: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""

    def to_host(self) -> Array:
        """Returns a snapshot of the value in host memory."""


class Restorable(Protocol):
    """An object that is restored from one array of a checkpoint."""

    def mismatch(self, saved: SavedArray) -> str | None:
        """Returns why the saved array does not fit; ``None`` if it does."""


class SavedValue(ValueToSave, Restorable, Protocol):
    """A value of this process that is saved and restored."""

    def stage(self, saved: SavedArray) -> Change:
        """Reads the saved array, and returns the change that restores it."""


class _OfOneShape:
    """A value that must be restored from an array of the same shape and dtype."""

    kind = ARRAY
    is_worker_local = True
    is_read_collectively = False
    shape: Any
    dtype: Any

    def mismatch(self, saved: SavedArray | Array) -> str | None:
        """Returns the difference in shape or dtype, or ``None``."""
        if (saved.shape, saved.dtype) == (self.shape, self.dtype):
            return None
        ours, theirs = (f"{x.dtype.name}{list(x.shape)}" for x in (self, saved))
        return f"is {ours}, but the checkpoint has {theirs}"


class SavedVariable(_OfOneShape):
    """A variable of this process."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable
        spans = spans_workers(variable)
        self.is_worker_local = not spans
        together = (SyncOnReadVariable, FullyShardedVariable)
        self.is_read_collectively = spans and isinstance(variable, together)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return static_shape(self._variable)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np.dtype(self._variable.dtype)

    def frozen(self) -> SavedVariable:
        """Returns a reference to the current value, without a copy."""
        return SavedVariable(self._variable.frozen())

    def to_host(self) -> Array:
        """Returns its value; without a copy if it is in host memory already."""
        # Safe without a copy: a variable's buffer is not donated while a reader holds it.
        return self._variable.value_on_host()

    def stage(self, saved: SavedArray) -> Change:
        """Reads the value, and returns its assignment."""
        self._variable.snapshot()  # raises if it has never had a value
        value, variable = saved.read(), self._variable

        def assign() -> None:
            variable.assign(value)

        return assign


class PlainArray(_OfOneShape):
    """A NumPy or JAX array, which is replaced when it is restored.

    Args:
        read: Returns the array.
        replace: Replaces the array.
    """

    def __init__(self, read: Callable[[], Any], replace: Callable[[Any], None]) -> None:
        self._read = read
        self._replace = replace

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self._read().shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np.dtype(self._read().dtype)

    def to_host(self) -> Array:
        """Returns a copy, because the owner may change the array or donate its buffer."""
        array = self._read()
        is_apart = isinstance(array, jax.Array) and not (
            array.is_fully_addressable or array.is_fully_replicated
        )
        if is_apart:
            raise InvalidArgumentError(
                "A Checkpoint cannot hold an array that is sharded over several processes, got "
                f"{array.dtype.name}{list(array.shape)} on {array.sharding}. Make it a Variable in the "
                "strategy's scope, or gather it first."
            )
        return np.array(array)

    def stage(self, saved: SavedArray) -> Change:
        """Reads the value, and places it with the current array's sharding."""
        value: Any = saved.read()
        present = self._read()
        if isinstance(present, jax.Array):
            value = jax.device_put(value, present.sharding)
        elif isinstance(present, np.generic):
            value = value[()]
        return lambda: self._replace(value)


class RandomKey(PlainArray):
    """A ``jax.random`` key, saved as its key data."""

    def __init__(self, read: Callable[[], Any], replace: Callable[[Any], None]) -> None:
        def replace_key(data: ArrayLike) -> None:
            replace(jax.random.wrap_key_data(data, impl=jax.random.key_impl(read())))

        super().__init__(lambda: jax.random.key_data(read()), replace_key)


class IteratorPosition:
    """The position of an iterator, or of an elastic loop, saved as JSON text."""

    kind = ARRAY
    is_worker_local = True
    is_read_collectively = False
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    @property
    def is_distributed(self) -> bool:
        """Whether other workers have iterators that advance in lockstep with it."""
        return isinstance(self._iterator, DistributedIterator)

    def note_restored(self, variables: Callable[[], Iterable[Variable]]) -> None:
        """Tells an elastic loop which variables were restored with its position."""
        if isinstance(self._iterator, ElasticLoop):
            self._iterator.note_restored(variables)

    @functools.cached_property
    def _state(self) -> Array:
        text = json.dumps(self._iterator.get_state())
        return np.frombuffer(text.encode(), np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of the text."""
        return self._state.shape

    def to_host(self) -> Array:
        """Returns the text."""
        return self._state

    def mismatch(self, saved: SavedArray) -> str | None:
        """Returns why the saved array is not an iterator position; ``None`` if it is."""
        if (len(saved.shape), saved.dtype) == (1, self.dtype):
            return None
        return (
            f"is an iterator, but the checkpoint has {saved.dtype.name}{list(saved.shape)}, which is not "
            "an iterator position"
        )

    def stage(self, saved: SavedArray) -> Change:
        """Reads the position, and checks it if the iterator supports that."""
        try:
            state = json.loads(saved.read().tobytes())
        except ValueError as error:
            raise InvalidArgumentError(
                f"The checkpoint's value for an iterator is not an iterator position: {error}."
            ) from error
        if hasattr(self._iterator, "check_state"):
            self._iterator.check_state(state)
        return lambda: self._iterator.set_state(state)


class PlainNumber:
    """A Python number, which is replaced when it is restored.

    Args:
        number: The number.
        replace: Replaces the number.
    """

    kind = NUMBER
    is_worker_local = True
    is_read_collectively = False
    shape: tuple[int, ...] = ()

    def __init__(self, number: bool | int | float, replace: Callable[[Any], None]) -> None:
        self._number = number
        self._replace = replace
        self.dtype: np.dtype[Any] = np.asarray(number).dtype

    def to_host(self) -> Array:
        """Returns it as an array."""
        return np.asarray(self._number)

    def mismatch(self, saved: SavedArray) -> str | None:
        """Returns why the saved array is not such a number; ``None`` if it is."""
        if (
            saved.shape == ()
            and saved.dtype.kind in {"b": "b", "i": "iu", "f": "f"}[self.dtype.kind]
        ):
            return None
        return (
            f"is a Python {type(self._number).__name__}, but the checkpoint has "
            f"{saved.dtype.name}{list(saved.shape)}"
        )

    def stage(self, saved: SavedArray) -> Change:
        """Reads the number."""
        number = type(self._number)(saved.read())
        return lambda: self._replace(number)
