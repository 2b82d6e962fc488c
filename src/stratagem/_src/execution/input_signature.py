"""``InputSignature``: the declared specs of a function's arguments, checked at every call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, SignatureMismatchError
from stratagem._src.core.int64_guard import check_fits
from stratagem._src.core.types import PyTree
from stratagem._src.data.tensor_spec import TensorSpec
from stratagem._src.input.specs import PerReplicaSpec
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.per_replica import PerReplica, SpmdPerReplica

__all__ = ["InputSignature", "check_specs"]

_DECLARED = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def check_specs(specs: PyTree) -> None:
    """Checks the form of an ``input_signature``.

    Raises:
        SignatureMismatchError: If it is not a list or tuple of nests of specs.
    """
    if not isinstance(specs, (list, tuple)):
        raise SignatureMismatchError(
            "input_signature must be a list or tuple with a TensorSpec, or a nest of them, for each "
            f"argument, got {specs!r}."
        )
    for spec in specs:
        _check_nest(spec)


class InputSignature:
    """The parameters of a function, with a spec for each.

    Args:
        parameters: The parameters of the Python function, without ``self`` of a bound method.
        specs: One nest of specs for each of the first parameters.

    Raises:
        SignatureMismatchError: If there are more specs than parameters, or a parameter without a
            default has none.

    >>> def f(x, scale=2.0): ...
    >>> signature = InputSignature(inspect.signature(f), [TensorSpec([None], "float32")])
    >>> signature.conform(([1, 2],), {})
    (array([1., 2.], dtype=float32),)
    """

    def __init__(self, parameters: inspect.Signature, specs: Sequence[Any]) -> None:
        self._parameters = parameters
        self._specs = tuple(specs)
        positional = [p for p in parameters.parameters.values() if p.kind in _DECLARED]
        self._positional = [p.name for p in positional]
        more = [f"argument {index}" for index in range(len(positional), len(self._specs))]
        self._names = [*self._positional, *more]
        takes_more = any(
            p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.parameters.values()
        )
        if len(self._specs) > len(positional) and not takes_more:
            raise SignatureMismatchError(
                f"input_signature has {len(self._specs)} specs, but the function takes "
                f"{len(positional)} positional arguments: {parameters}."
            )
        keyword_only = [
            p for p in parameters.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        for parameter in [*positional[len(self._specs) :], *keyword_only]:
            if parameter.default is inspect.Parameter.empty:
                raise SignatureMismatchError(
                    f"input_signature has no spec for {parameter.name!r}, which has no default either. "
                    f"Give a spec for each argument of {parameters}."
                )

    def conform(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments in order, with Python and NumPy numbers converted to arrays.

        Raises:
            SignatureMismatchError: If they do not match. An argument without a spec must be its default.
        """
        if not kwargs and len(args) == len(self._specs):
            return tuple(map(_conform, self._specs, args, self._names))
        try:
            bound = self._parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise SignatureMismatchError(f"A call with an input_signature: {error}.") from None
        bound.apply_defaults()
        if len(bound.args) < len(self._specs):
            raise SignatureMismatchError(
                f"The input_signature has {len(self._specs)} arguments, got {len(bound.args)}."
            )
        declared = len(self._specs)
        for index, value in enumerate(bound.args[declared:], declared):
            names = self._positional
            self._check_default(names[index] if index < len(names) else None, value)
        for name, value in bound.kwargs.items():
            self._check_default(name, value)
        return tuple(map(_conform, self._specs, bound.args, self._names))

    def _check_default(self, name: str | None, value: PyTree) -> None:
        default = inspect.Parameter.empty if name is None else self._default(name)
        if value is not default and not (type(value) is type(default) and value == default):
            raise SignatureMismatchError(
                f"The input_signature has no spec for {name or 'one more argument'}, so it cannot be "
                f"given, got {value!r}. Add a spec for it."
            )

    def _default(self, name: str) -> Any:
        parameter = self._parameters.parameters.get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default


def _check_nest(spec: PyTree) -> None:
    if isinstance(spec, Mapping):
        children: Sequence[Any] = list(spec.values())
    elif isinstance(spec, (list, tuple)):
        children = spec
    elif isinstance(spec, (TensorSpec, PerReplicaSpec)) or spec is None:
        return
    else:
        raise SignatureMismatchError(
            "input_signature must hold TensorSpec objects, in tuples, lists and dicts, or the "
            f"element_spec of a distributed dataset, got {spec!r}."
        )
    for child in children:
        _check_nest(child)


def _conform(spec: PyTree, value: PyTree, path: str) -> Any:
    """Returns ``value`` with arrays that fit ``spec``; the same object if nothing changed."""
    if isinstance(spec, TensorSpec):
        return _conform_array(spec, value, path)
    if isinstance(spec, PerReplicaSpec):
        return _conform_per_replica(spec, value, path)
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            raise _mismatch(path, f"a mapping with the keys {sorted(map(str, spec))}", value)
        items = {key: _conform(spec[key], value[key], f"{path}[{key!r}]") for key in value}
        unchanged = all(items[key] is value[key] for key in items)
        return value if unchanged else items
    if spec is None:
        if value is not None:
            raise _mismatch(path, "None", value)
        return None
    kind = list if isinstance(spec, list) else tuple
    if not isinstance(value, kind) or len(value) != len(spec):
        raise _mismatch(path, f"a {kind.__name__} of {len(spec)}", value)
    parts = [
        _conform(s, v, f"{path}[{i}]") for i, (s, v) in enumerate(zip(spec, value, strict=True))
    ]
    if all(new is old for new, old in zip(parts, value, strict=True)):
        return value
    make: Any = type(value)
    return make(*parts) if hasattr(value, "_fields") else make(parts)


def _conform_array(spec: TensorSpec, value: PyTree, path: str) -> Any:
    if isinstance(value, PerReplica):
        raise _mismatch(path, f"one array that matches {spec}", value)
    value = array_of(value)
    if not isinstance(value, jax.Array):
        value = _converted(spec, value, path)
    if not _fits(spec, value):
        raise _mismatch(path, str(spec), TensorSpec.of(value))
    return value


def _conform_per_replica(spec: PerReplicaSpec, value: PyTree, path: str) -> Any:
    if not isinstance(value, PerReplica):
        raise _mismatch(path, f"a per-replica value that matches {spec}", value)
    for component_spec, component in zip(spec.value_specs, _components(value), strict=False):
        if not hasattr(component, "dtype") or not _fits(component_spec, component):
            raise _mismatch(path, str(spec), component)
    return value


def _components(value: PerReplica) -> Sequence[Any]:
    if isinstance(value, SpmdPerReplica):
        return [value.local]
    group = value.global_group
    if group is None:
        return value.values
    array = value.global_array(group)
    assert array is not None
    return [jax.ShapeDtypeStruct(value.local_shape, array.dtype)]


def _converted(spec: TensorSpec, value: PyTree, path: str) -> Any:
    """Converts Python or NumPy numbers to an array with the dtype of the spec."""
    dtype = _canonical(spec)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SignatureMismatchError(f"{path} must match {spec}: {error}.") from None
    wanted, given = dtype, array.dtype
    if jnp.issubdtype(wanted, jnp.integer):
        allowed = given.kind in "biu"
    elif wanted.kind == "b":
        allowed = given.kind == "b"
    else:
        allowed = given.kind in "biu" or jnp.issubdtype(given, jnp.floating)
        allowed = allowed or (wanted.kind == "c" and given.kind == "c")
    if not allowed:
        raise _mismatch(path, str(spec), value)
    try:
        check_fits(array, dtype)
    except InvalidArgumentError as error:
        raise SignatureMismatchError(f"{path} must match {spec}: {error}") from None
    return array.astype(dtype)


def _fits(spec: TensorSpec, value: PyTree) -> bool:
    if value.dtype != spec.dtype and value.dtype != _canonical(spec):
        return False
    shape: tuple[int, ...] = value.shape
    # Inlined, because it is part of every call.
    if len(shape) != len(spec.shape):
        return spec.shape.rank is None
    return all(size is None or size == given for size, given in zip(spec.shape, shape, strict=True))


def _canonical(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(jax.dtypes.canonicalize_dtype(spec.dtype))


def _mismatch(path: str, wanted: str, got: PyTree) -> SignatureMismatchError:
    return SignatureMismatchError(f"By the input_signature {path} must be {wanted}, got {got!r}.")
