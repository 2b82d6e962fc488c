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
from stratagem._src.tensorflow_api.conversion import available, integer, integers, known, tensor

__all__ = ["TensorArray"]


@jax.tree_util.register_pytree_node_class
class TensorArray:
    """A list of arrays of one dtype, written by number and stacked at the end.

    ``write`` and the like change it and return it, as TensorFlow does eagerly; code that takes what they
    return is right in both. It is a pytree: ``tf.while_loop``, ``tf.cond`` and ``jax.lax.scan`` carry it.

    Differs from TensorFlow: ``dynamic_size`` does not grow in compiled loops, where writes behind the end
    are left out; to enter one of JAX's before the first write it needs an ``element_shape``.

    JAX equivalent: ``x.at[i].set(value)``, or what ``jax.lax.scan`` stacks.

    >>> array = TensorArray("float32", size=2)
    >>> array = array.write(0, 1.5).write(1, 2.5)
    >>> array.stack()
    Array([1.5, 2.5], dtype=float32)

    Args:
        dtype: The element type.
        size: How many there are.
        dynamic_size: Whether writing behind the end makes it longer.
        clear_after_read: Whether an element can be read once only; default true, in compiled loops false.
        tensor_array_name: Ignored.
        handle: Not supported.
        flow: Not supported.
        infer_shape: Whether elements must have one shape.
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
            raise InvalidArgumentError(
                "A TensorArray is made from a size; handle and flow are not known here."
            )
        count = 0 if size is None else integer("TensorArray", "size", size)
        self._dtype = available(dtype)
        self._dynamic = bool(dynamic_size)
        self._clear = True if clear_after_read is None else clear_after_read
        self._infer = infer_shape
        self._shape: tuple[int, ...] | None = None
        if element_shape is not None and None not in tuple(element_shape):
            self._shape = tuple(int(n) for n in element_shape)
        # Either a list, with None for what was not written, or one array with a row for each.
        self._items: list[Any] | jax.Array = [None] * count

    @property
    def dtype(self) -> DTypeLike:
        """The element type."""
        return self._dtype

    @property
    def dynamic_size(self) -> bool:
        """Whether writing behind the end makes it longer."""
        return self._dynamic

    @property
    def element_shape(self) -> tuple[int, ...] | None:
        """The shape of an element, or ``None`` before the first write."""
        return self._shape

    def size(self, name: str | None = None) -> Tensor:
        """Returns how many elements there are."""
        return tensor(len(self._items))

    def write(self, index: ScalarLike, value: ArrayLike, name: str | None = None) -> Self:
        """Puts an array at a place."""
        element = self._element(value)
        place = known(index)
        if place is None or isinstance(self._items, jax.Array):
            rows = self._rows()
            self._items = rows.at[tensor(index)].set(element, mode="drop")
            return self
        number = self._number("write", place)
        while self._dynamic and number >= len(self._items):
            self._items.append(None)
        self._items[number] = element
        return self

    def _number(self, method: str, place: ScalarLike) -> int:
        number = int(place)
        limit = "" if self._dynamic and method == "write" else f" below {len(self._items)}"
        if number < 0 or (limit and number >= len(self._items)):
            raise OutOfRangeError(
                f"TensorArray.{method} needs a number from 0{limit}, got {number}."
            )
        return number

    def _element(self, value: ArrayLike) -> Tensor:
        element = tensor(value) if hasattr(value, "dtype") else tensor(value, self._dtype)
        if element.dtype != self._dtype:
            raise InvalidArgumentError(
                f"A TensorArray of {self._dtype.name} takes such elements, got {element.dtype.name}."
            )
        if self._infer:
            if self._shape is not None and element.shape != self._shape:
                raise InvalidArgumentError(
                    f"Elements of a TensorArray have one shape, {self._shape}; got {element.shape}. Pass "
                    "infer_shape=False for elements of several."
                )
            self._shape = element.shape
        return element

    def _rows(self) -> jax.Array:
        """Returns the elements as one array, with zeros for those that were not written."""
        if isinstance(self._items, jax.Array):
            return self._items
        shape = self._shape
        if shape is None:
            shape = next((item.shape for item in self._items if item is not None), None)
        if shape is None:
            raise InvalidArgumentError(
                "The shape of the elements of this TensorArray is not known, for none was written. Pass "
                "element_shape."
            )
        if not self._items:
            return jnp.zeros((0, *shape), self._dtype)
        return jnp.stack(
            [jnp.zeros(shape, self._dtype) if item is None else item for item in self._items]
        )

    def read(self, index: ScalarLike, name: str | None = None) -> Tensor:
        """Returns the element at a place."""
        place = known(index)
        if place is None or isinstance(self._items, jax.Array):
            return self._rows()[tensor(index)]
        number = self._number("read", place)
        item = self._items[number]
        if item is None:
            if self._shape is None:
                raise InvalidArgumentError(
                    f"Element {number} of a TensorArray was not written, or was read before; pass "
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
        """Returns some elements, stacked."""
        return self._rows()[tensor(indices)]

    def concat(self, name: str | None = None) -> jax.Array:
        """Returns all elements, joined along their first axis."""
        if isinstance(self._items, jax.Array):
            return self._items.reshape(-1, *self._items.shape[2:])
        if not self._items or any(item is None for item in self._items):
            return self._rows().reshape(-1, *self._rows().shape[2:])
        return jnp.concatenate(list(self._items))

    def unstack(self, value: ArrayLike, name: str | None = None) -> Self:
        """Puts the rows of an array at places 0, 1 and so on."""
        array = tensor(value)
        if not self._dynamic and len(array) > len(self._items):
            raise InvalidArgumentError(
                f"TensorArray.unstack of {len(array)} rows needs as many places, got {len(self._items)}. "
                "Pass dynamic_size=True, or another size."
            )
        self._items = [self._element(array[i]) for i in range(len(array))]
        return self

    def scatter(self, indices: ArrayLike, value: ArrayLike, name: str | None = None) -> Self:
        """Puts the rows of an array at given places."""
        array = tensor(value)
        for row, place in enumerate(integers("TensorArray.scatter", "indices", indices)):
            self.write(place, array[row])
        return self

    def split(self, value: ArrayLike, lengths: ArrayLike, name: str | None = None) -> Self:
        """Puts parts of an array, of given lengths, at places 0, 1 and so on."""
        array = tensor(value)
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
        """Returns the same elements as another TensorArray."""
        return self.tree_unflatten(*reversed(self.tree_flatten()))

    def of_shape(self, shape: ShapeLike) -> Self:
        """Returns the same elements as another TensorArray, whose elements have a shape."""
        made = self.identity()
        made._shape = made._shape if shape is None else tuple(shape)
        return made

    def close(self, name: str | None = None) -> None:
        """Forgets the elements."""
        self._items = []

    def __len__(self) -> int:
        return len(self._items)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the elements as one array, if their shape is known, and the rest."""
        has_shape = self._shape is not None or isinstance(self._items, jax.Array)
        children = (self._rows(),) if has_shape else ()
        about = (self._dtype, self._dynamic, self._infer, self._shape, len(self._items))
        return children, about

    @classmethod
    def tree_unflatten(cls, about: PyTree, children: PyTree) -> Self:
        """Returns the array of such parts."""
        made = cls.__new__(cls)
        made._dtype, made._dynamic, made._infer, made._shape, count = about
        made._clear = False
        made._items = children[0] if children else [None] * count
        return made
