"""Converts an element spec to JSON and back, for files that another program reads."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from stratagem._src.core.errors import DataLossError, InvalidArgumentError
from stratagem._src.core.types import ElementSpec
from stratagem._src.data.element_format import dtype_named
from stratagem._src.data.ragged_tensor import RaggedTensor
from stratagem._src.data.tensor_spec import STRING, TensorSpec

__all__ = ["spec_from_json", "spec_to_json"]


def spec_to_json(spec: ElementSpec) -> Any:
    """Returns a nest of specs as a JSON-able value.

    Raises:
        InvalidArgumentError: If it contains a type that cannot be restored from JSON.
    """
    if spec is None:
        return {"none": True}
    if isinstance(spec, TensorSpec):
        shape = None if spec.shape.rank is None else list(spec.shape)
        dtype = "string" if spec.dtype == STRING else spec.dtype.name
        return {"dtype": dtype, "shape": shape, "name": spec.name}
    if isinstance(spec, RaggedTensor):
        parts = (spec.flat_values, *spec.nested_row_splits)
        return {"ragged": [spec_to_json(part) for part in parts]}
    if isinstance(spec, tuple):
        items = [spec_to_json(item) for item in spec]
        fields = getattr(spec, "_fields", None)
        if fields is None:
            return {"tuple": items}
        return {"namedtuple": type(spec).__name__, "fields": list(fields), "items": items}
    if type(spec) is dict and all(isinstance(key, str) for key in spec):
        return {"dict": {key: spec_to_json(item) for key, item in spec.items()}}
    raise InvalidArgumentError(
        "The elements of a saved dataset consist of arrays, tuples, named tuples, dicts with string keys, "
        f"RaggedTensor and None, got {type(spec).__name__}: {spec!r}. Use map() to convert it to these."
    )


def spec_from_json(value: Any) -> Any:
    """Returns the spec from the result of ``spec_to_json``; named tuples get a new class.

    Raises:
        DataLossError: If the value does not describe a spec.
    """
    try:
        return _from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataLossError(f"Not a valid element spec: {value!r} ({error}).") from error


def _from_json(value: Any) -> Any:
    if "none" in value:
        return None
    if "dtype" in value:
        dtype = STRING if value["dtype"] == "string" else dtype_named(value["dtype"])
        return TensorSpec(value["shape"], dtype, value["name"])
    if "ragged" in value:
        flat_values, *splits = [_from_json(part) for part in value["ragged"]]
        return RaggedTensor(flat_values, tuple(splits))
    if "tuple" in value:
        return tuple(_from_json(item) for item in value["tuple"])
    if "namedtuple" in value:
        make_class: Any = namedtuple
        made = make_class(value["namedtuple"], value["fields"])
        return made(*(_from_json(item) for item in value["items"]))
    return {key: _from_json(item) for key, item in value["dict"].items()}
