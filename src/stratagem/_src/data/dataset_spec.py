"""``DatasetSpec``: what the elements of a dataset are that is itself part of an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.data.planned_elements import PlannedElements
from stratagem._src.data.structure import map_structure, same_structure
from stratagem._src.data.tensor_spec import TensorSpec

__all__ = ["DatasetSpec", "any_size", "common_spec", "spec_of"]


@dataclass(frozen=True)
class DatasetSpec:
    """The place of a dataset in an element, such as a window.

    >>> from stratagem.data import Dataset
    >>> Dataset.range(10).window(3).element_spec
    DatasetSpec(element_spec=TensorSpec(shape=(), dtype=int64, name=None))

    Args:
        element_spec: The nest of specs of that dataset's own elements.
    """

    element_spec: Any

    def is_compatible_with(self, value: Any) -> bool:
        """Returns whether a dataset, or another spec, has such elements."""
        that = spec_of(value) if isinstance(value, PlannedElements) else value
        return isinstance(that, DatasetSpec) and _common(self, that) is not None

    def most_general_with(self, other: Any) -> DatasetSpec | None:
        """Returns the narrowest spec that covers both, or ``None`` if there is none."""
        if not isinstance(other, DatasetSpec):
            return None
        return _common(self, other)

    def batched(self, size: int | None) -> DatasetSpec:
        """Refuses: datasets are not stacked."""
        raise InvalidArgumentError(
            "A batch is made of arrays, and an element of this dataset is a dataset itself. "
            "Use flat_map(lambda window: window.batch(size)) to batch what is in it."
        )

    def row(self) -> DatasetSpec:
        """Refuses: a dataset has no rows."""
        raise InvalidArgumentError(
            "unbatch takes rows of arrays, and an element of this dataset is a dataset itself. "
            "Use flat_map(lambda window: window) for what is in it."
        )


def spec_of(value: Any) -> TensorSpec | DatasetSpec:
    """Returns the spec of a leaf of an element."""
    if isinstance(value, PlannedElements):
        return DatasetSpec(value.plan.element_spec)
    return TensorSpec.of(value)


def any_size(spec: TensorSpec | DatasetSpec) -> TensorSpec | DatasetSpec:
    """Returns the spec without its sizes, which one element says nothing about."""
    if isinstance(spec, DatasetSpec):
        return spec
    return TensorSpec([None] * len(spec.shape), spec.dtype)


def _common(a: DatasetSpec, b: DatasetSpec) -> DatasetSpec | None:
    try:
        return DatasetSpec(common_spec(a.element_spec, b.element_spec, "datasets"))
    except InvalidArgumentError:
        return None


def common_spec(first: Any, second: Any, needed_by: str) -> Any:
    """Returns the narrowest nest of specs that covers two.

    Raises:
        InvalidArgumentError: If their structures or types differ.
    """
    if not same_structure(first, second):
        raise InvalidArgumentError(
            f"{needed_by} needs datasets of the same structure, got {first} and {second}."
        )

    def common(a: Any, b: Any) -> Any:
        covering = a.most_general_with(b) if type(a) is type(b) else None
        if covering is None:
            raise InvalidArgumentError(f"{needed_by} needs the same types, got {a} and {b}.")
        return covering

    return map_structure(common, first, second)
