"""``DatasetSpec``: the spec of a dataset that is nested in an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.types import ArraySpec, ElementSpec, Leaf
from stratagem._src.data.dataset_base import DatasetBase
from stratagem._src.data.structure import map_structure, same_structure
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["DatasetSpec", "any_size", "common_spec", "spec_of"]


@dataclass(frozen=True)
class DatasetSpec:
    """The spec of a dataset nested in an element, such as a window.

    >>> from stratagem.data import Dataset
    >>> Dataset.range(10).window(3).element_spec
    DatasetSpec(element_spec=TensorSpec(shape=(), dtype=int64, name=None))

    Args:
        element_spec: The spec of the nested dataset's elements.
    """

    element_spec: Any

    def is_compatible_with(self, value: Leaf) -> bool:
        """Returns whether a dataset, or another spec, has compatible elements."""
        that = spec_of(value) if isinstance(value, DatasetBase) else value
        return isinstance(that, DatasetSpec) and _common(self, that) is not None

    def most_general_with(self, other: ArraySpec) -> DatasetSpec | None:
        """Returns the most specific spec compatible with both, or ``None`` if there is none."""
        if not isinstance(other, DatasetSpec):
            return None
        return _common(self, other)

    def batched(self, size: int | None) -> DatasetSpec:
        """Raises: datasets cannot be stacked."""
        raise InvalidArgumentError(
            "Only arrays can be batched, and an element of this dataset is a dataset itself. "
            "Use flat_map(lambda window: window.batch(size)) to batch its elements."
        )

    def row(self) -> DatasetSpec:
        """Raises: a dataset has no rows."""
        raise InvalidArgumentError(
            "unbatch needs arrays, and an element of this dataset is a dataset itself. "
            "Use flat_map(lambda window: window) to get its elements."
        )


def spec_of(value: Leaf) -> TensorSpec | DatasetSpec:
    """Returns the spec of a leaf of an element."""
    if isinstance(value, DatasetBase):
        return DatasetSpec(value.plan.element_spec)
    return TensorSpec.of(value)


def any_size(spec: TensorSpec | DatasetSpec) -> TensorSpec | DatasetSpec:
    """Returns the spec with unknown sizes: one element does not tell the sizes of the others."""
    if isinstance(spec, DatasetSpec):
        return spec
    return TensorSpec([None] * len(spec.shape), spec.dtype)


def _common(a: DatasetSpec, b: DatasetSpec) -> DatasetSpec | None:
    try:
        return DatasetSpec(common_spec(a.element_spec, b.element_spec, "datasets"))
    except InvalidArgumentError:
        return None


def common_spec(first: ElementSpec, second: ElementSpec, needed_by: str) -> Any:
    """Returns the most specific nest of specs that is compatible with both.

    Raises:
        InvalidArgumentError: If their structures or types differ.
    """
    if not same_structure(first, second):
        raise InvalidArgumentError(
            f"{needed_by} needs datasets of the same structure, got {first} and {second}."
        )

    def common(a: ArraySpec, b: ArraySpec) -> Any:
        covering = a.most_general_with(b) if type(a) is type(b) else None
        if covering is None:
            raise InvalidArgumentError(f"{needed_by} needs the same types, got {a} and {b}.")
        return covering

    return map_structure(common, first, second)
