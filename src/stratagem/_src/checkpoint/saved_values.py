"""What can be saved and restored: variables of every kind, arrays and numbers."""

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
from stratagem._src.input.distributed_iterator import DistributedIterator
from stratagem._src.training.elastic.elastic_loop import ElasticLoop
from stratagem._src.training.local_state import static_shape
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable

__all__ = [
    "IteratorPlace",
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
    """Something of this process that becomes one array of a checkpoint.

    Attributes:
        kind: What Orbax is to make of it when it is asked for no type.
        is_of_this_worker: Whether other workers have values of their own under the same name.
        is_read_together: Whether its value is known only when all workers read it.
    """

    kind: str
    is_of_this_worker: bool
    is_read_together: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""

    def take(self) -> Array:
        """Returns the present value on the host, which does not change any more."""


class Restorable(Protocol):
    """Something that is set to one array of a checkpoint."""

    def misfit(self, saved: SavedArray) -> str | None:
        """Returns why it cannot be set to what was saved; ``None`` if it can."""


class SavedValue(ValueToSave, Restorable, Protocol):
    """Something of this process that is saved and restored."""

    def stage(self, saved: SavedArray) -> Change:
        """Reads what was saved, and returns what sets the value to it."""


class _OfOneShape:
    """What must be restored from an array of the same shape and element type."""

    kind = ARRAY
    is_of_this_worker = True
    is_read_together = False
    shape: Any
    dtype: Any

    def misfit(self, saved: SavedArray) -> str | None:
        """Returns what differs."""
        if (saved.shape, saved.dtype) == (self.shape, self.dtype):
            return None
        ours, theirs = (f"{x.dtype.name}{list(x.shape)}" for x in (self, saved))
        return f"is {ours}, but the checkpoint has {theirs}"


class SavedVariable(_OfOneShape):
    """A variable of this process."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable
        spans = spans_workers(variable)
        self.is_of_this_worker = not spans
        together = (SyncOnReadVariable, FullyShardedVariable)
        self.is_read_together = spans and isinstance(variable, together)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return static_shape(self._variable)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its element type."""
        return np.dtype(self._variable.dtype)

    def frozen(self) -> SavedVariable:
        """Returns the present value, to be taken later; nothing is copied."""
        return SavedVariable(self._variable.frozen())

    def take(self) -> Array:
        """Returns its value; of memory that is the host's already, without a copy."""
        # Who reads a variable keeps its memory from being given away to the next step.
        return self._variable.value_on_host()

    def stage(self, saved: SavedArray) -> Change:
        """Reads the value to be assigned."""
        self._variable.snapshot()  # raises if it has never had a value
        value, variable = saved.whole(), self._variable

        def assign() -> None:
            variable.assign(value)

        return assign


class PlainArray(_OfOneShape):
    """An array of NumPy's or JAX's, which is replaced when it is restored.

    Args:
        read: Returns the array.
        replace: Puts another in its place.
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

    def take(self) -> Array:
        """Returns a copy of its value, whose owner may change it or give its memory away."""
        array = self._read()
        is_apart = isinstance(array, jax.Array) and not (
            array.is_fully_addressable or array.is_fully_replicated
        )
        if is_apart:
            raise InvalidArgumentError(
                "A Checkpoint cannot hold an array of which other processes have parts, got "
                f"{array.dtype.name}{list(array.shape)} on {array.sharding}. Make it a Variable in the "
                "strategy's scope, or gather it before."
            )
        return np.array(array)

    def stage(self, saved: SavedArray) -> Change:
        """Reads the value, and places it as the present one."""
        value: Any = saved.whole()
        present = self._read()
        if isinstance(present, jax.Array):
            value = jax.device_put(value, present.sharding)
        elif isinstance(present, np.generic):
            value = value[()]
        return lambda: self._replace(value)


class RandomKey(PlainArray):
    """A key of ``jax.random``, as the numbers that it is made of."""

    def __init__(self, read: Callable[[], Any], replace: Callable[[Any], None]) -> None:
        def replace_key(data: Any) -> None:
            replace(jax.random.wrap_key_data(data, impl=jax.random.key_impl(read())))

        super().__init__(lambda: jax.random.key_data(read()), replace_key)


class IteratorPlace:
    """Where an iterator stands, or an elastic loop, as text."""

    kind = ARRAY
    is_of_this_worker = True
    is_read_together = False
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    @property
    def is_distributed(self) -> bool:
        """Whether other workers have iterators that go on in step with it."""
        return isinstance(self._iterator, DistributedIterator)

    def note_restored(self, variables: Callable[[], Iterable[Variable]]) -> None:
        """Tells an elastic loop which variables were restored with its place."""
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

    def take(self) -> Array:
        """Returns the text."""
        return self._state

    def misfit(self, saved: SavedArray) -> str | None:
        """Returns why what was saved is no place of an iterator."""
        if (len(saved.shape), saved.dtype) == (1, self.dtype):
            return None
        return (
            f"is an iterator, but the checkpoint has {saved.dtype.name}{list(saved.shape)}, which is not "
            "the place of one"
        )

    def stage(self, saved: SavedArray) -> Change:
        """Reads the place, and checks it where the iterator can do that."""
        try:
            state = json.loads(saved.whole().tobytes())
        except ValueError as error:
            raise InvalidArgumentError(
                f"What the checkpoint has for an iterator is not the place of one: {error}."
            ) from error
        if hasattr(self._iterator, "check_state"):
            self._iterator.check_state(state)
        return lambda: self._iterator.set_state(state)


class PlainNumber:
    """A Python number, which is replaced when it is restored.

    Args:
        number: The number.
        replace: Puts another in its place.
    """

    kind = NUMBER
    is_of_this_worker = True
    is_read_together = False
    shape: tuple[int, ...] = ()

    def __init__(self, number: bool | int | float, replace: Callable[[Any], None]) -> None:
        self._number = number
        self._replace = replace
        self.dtype: np.dtype[Any] = np.asarray(number).dtype

    def take(self) -> Array:
        """Returns it as an array."""
        return np.asarray(self._number)

    def misfit(self, saved: SavedArray) -> str | None:
        """Returns why what was saved is no such number."""
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
        number = type(self._number)(saved.whole())
        return lambda: self._replace(number)
