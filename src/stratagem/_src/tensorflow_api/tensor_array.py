"""``tf.TensorArray``: a list of arrays that loops write and read."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, OutOfRangeError
from stratagem._src.core.types import (
    ArrayLike,
    DTypeLike,
    IntegerLike,
    PyTree,
    ScalarLike,
    ShapeLike,
    Tensor,
)
from stratagem._src.tensorflow_api.conversion import (
    as_tensor,
    canonical_dtype,
    concrete,
    integer,
    integers,
)

__all__ = ["TensorArray"]


@jax.tree_util.register_pytree_node_class
class TensorArray:
    """A list of arrays of one dtype, written by index and stacked at the end.

    ``write`` and similar methods modify the object and return it, as in eager TensorFlow; code that uses
    their result works eagerly and compiled. It is a pytree: ``tf.while_loop``, ``tf.cond`` and
    ``jax.lax.scan`` carry it.

    Differs from TensorFlow: compiled loops do not grow it, even with ``dynamic_size``, and drop writes
    past the end. JAX loops need an ``element_shape`` if they start before the first write.

    JAX equivalent: ``x.at[i].set(value)``, or the stacked outputs of ``jax.lax.scan``.

    >>> array = TensorArray("float32", size=2)
    >>> array = array.write(0, 1.5).write(1, 2.5)
    >>> array.stack()
    Array([1.5, 2.5], dtype=float32)

    Args:
        dtype: The dtype of the elements.
        size: The number of elements.
        dynamic_size: Whether writing past the end grows the list.
        clear_after_read: Whether an element can be read only once; default true, in compiled loops false.
        tensor_array_name: Ignored.
        handle: Not supported.
        flow: Not supported.
        infer_shape: Whether all elements must have the same shape.
        element_shape: The shape of an element.
        colocate_with_first_write_call: Ignored.
        name: Ignored.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: IntegerLike = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: object = None,
        flow: object = None,
        infer_shape: bool = True,
        element_shape: ShapeLike = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if handle is not None or flow is not None:
            raise InvalidArgumentError("TensorArray does not support handle and flow. Pass a size.")
        count = 0 if size is None else integer("TensorArray", "size", size)
        self._dtype = canonical_dtype(dtype)
        self._dynamic = bool(dynamic_size)
        self._clear = True if clear_after_read is None else clear_after_read
        self._infer = infer_shape
        self._shape: tuple[int, ...] | None = None
        if element_shape is not None and None not in tuple(element_shape):
            self._shape = tuple(int(n) for n in element_shape)
        # A list with None for unwritten elements or, in compiled loops, one array with a row per element.
        self._items: list[Any] | jax.Array = [None] * count

    @property
    def dtype(self) -> DTypeLike:
        """The dtype of the elements."""
        return self._dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether writing past the end grows the list."""
        return self._dynamic

    @property
    def element_shape(self) -> tuple[int, ...] | None:
        """The shape of an element, or ``None`` before the first write."""
        return self._shape

    def size(self, name: str | None = None) -> Tensor:
        """Returns the number of elements."""
        return as_tensor(len(self._items))

    def write(self, index: ScalarLike, value: ArrayLike, name: str | None = None) -> Self:
        """Writes an element at an index."""
        element = self._element(value)
        place = concrete(index)
        if place is None or isinstance(self._items, jax.Array):
            rows = self._rows()
            self._items = rows.at[as_tensor(index)].set(element, mode="drop")
            return self
        number = self._number("write", place)
        while self._dynamic and number >= len(self._items):
            self._items.append(None)
        self._items[number] = element
        return self

    def _number(self, method: str, place: ScalarLike) -> int:
        number = int(place)
        limit = "" if self._dynamic and method == "write" else f" and below {len(self._items)}"
        if number < 0 or (limit and number >= len(self._items)):
            raise OutOfRangeError(
                f"TensorArray.{method} needs an index of at least 0{limit}, got {number}."
            )
        return number

    def _element(self, value: ArrayLike) -> Tensor:
        element = as_tensor(value) if hasattr(value, "dtype") else as_tensor(value, self._dtype)
        if element.dtype != self._dtype:
            raise InvalidArgumentError(
                f"Elements of this TensorArray must be {self._dtype.name}, got {element.dtype.name}."
            )
        if self._infer:
            if self._shape is not None and element.shape != self._shape:
                raise InvalidArgumentError(
                    f"Elements of this TensorArray must have shape {self._shape}, got {element.shape}. "
                    "Pass infer_shape=False for elements of different shapes."
                )
            self._shape = element.shape
        return element

    def _rows(self) -> jax.Array:
        """Returns the elements as one array, with zeros for unwritten ones."""
        if isinstance(self._items, jax.Array):
            return self._items
        shape = self._shape
        if shape is None:
            shape = next((item.shape for item in self._items if item is not None), None)
        if shape is None:
            raise InvalidArgumentError(
                "The element shape of this TensorArray is unknown, because no element was written. Pass "
                "element_shape."
            )
        if not self._items:
            return jnp.zeros((0, *shape), self._dtype)
        return jnp.stack(
            [jnp.zeros(shape, self._dtype) if item is None else item for item in self._items]
        )

    def read(self, index: ScalarLike, name: str | None = None) -> Tensor:
        """Returns the element at an index."""
        place = concrete(index)
        if place is None or isinstance(self._items, jax.Array):
            return self._rows()[as_tensor(index)]
        number = self._number("read", place)
        item = self._items[number]
        if item is None:
            if self._shape is None:
                raise InvalidArgumentError(
                    f"Element {number} of a TensorArray was not written, or was read already. Pass "
                    "clear_after_read=False to read it again."
                )
            return jnp.zeros(self._shape, self._dtype)
        if self._clear:
            self._items[number] = None
        return item

    def stack(self, name: str | None = None) -> jax.Array:
        """Returns all elements, stacked."""
        rows = self._rows()
        if self._clear and not isinstance(self._items, jax.Array):
            self._items = [None] * len(self._items)
        return rows

    def gather(self, indices: ArrayLike, name: str | None = None) -> jax.Array:
        """Returns the elements at indices, stacked."""
        return self._rows()[as_tensor(indices)]

    def concat(self, name: str | None = None) -> jax.Array:
        """Returns all elements, concatenated along their first axis."""
        if isinstance(self._items, jax.Array):
            return self._items.reshape(-1, *self._items.shape[2:])
        if not self._items or any(item is None for item in self._items):
            return self._rows().reshape(-1, *self._rows().shape[2:])
        return jnp.concatenate(list(self._items))

    def unstack(self, value: ArrayLike, name: str | None = None) -> Self:
        """Sets the elements to the rows of an array."""
        array = as_tensor(value)
        if not self._dynamic and len(array) > len(self._items):
            raise InvalidArgumentError(
                f"TensorArray.unstack of {len(array)} rows needs a size of as many, got "
                f"{len(self._items)}. Pass dynamic_size=True, or another size."
            )
        self._items = [self._element(array[i]) for i in range(len(array))]
        return self

    def scatter(self, indices: ArrayLike, value: ArrayLike, name: str | None = None) -> Self:
        """Writes the rows of an array at indices."""
        array = as_tensor(value)
        for row, place in enumerate(integers("TensorArray.scatter", "indices", indices)):
            self.write(place, array[row])
        return self

    def split(self, value: ArrayLike, lengths: ArrayLike, name: str | None = None) -> Self:
        """Sets the elements to consecutive parts of an array, with given lengths."""
        array = as_tensor(value)
        sizes = integers("TensorArray.split", "lengths", lengths)
        if sum(sizes) != len(array):
            raise InvalidArgumentError(
                f"lengths of TensorArray.split must add up to {len(array)}, got {sizes}."
            )
        ends = np.cumsum(sizes).tolist()
        for number, (end, length) in enumerate(zip(ends, sizes, strict=True)):
            self.write(number, array[end - length : end])
        return self

    def identity(self) -> Self:
        """Returns a TensorArray with the same elements."""
        return self.tree_unflatten(*reversed(self.tree_flatten()))

    def of_shape(self, shape: ShapeLike) -> Self:
        """Returns a TensorArray with the same elements and the given element shape."""
        made = self.identity()
        made._shape = made._shape if shape is None else tuple(shape)
        return made

    def close(self, name: str | None = None) -> None:
        """Drops the elements."""
        self._items = []

    def __len__(self) -> int:
        return len(self._items)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the elements as one array, if their shape is known, and the static attributes."""
        has_shape = self._shape is not None or isinstance(self._items, jax.Array)
        children = (self._rows(),) if has_shape else ()
        about = (self._dtype, self._dynamic, self._infer, self._shape, len(self._items))
        return children, about

    @classmethod
    def tree_unflatten(cls, about: PyTree, children: PyTree) -> Self:
        """Returns the TensorArray for the result of ``tree_flatten``."""
        made = cls.__new__(cls)
        made._dtype, made._dynamic, made._infer, made._shape, count = about
        made._clear = False
        made._items = children[0] if children else [None] * count
        return made
