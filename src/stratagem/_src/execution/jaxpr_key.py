"""``jaxpr_key``: the cache key of a jaxpr.

Equal keys mean equal programs: the same operations, in the same order, on the same operands, with equal
parameters. What cannot be compared by value is compared by identity, and the key keeps it alive. So
equivalent jaxprs may have different keys, which costs a compilation, but different jaxprs never have the
same key.

Constants of the outermost jaxpr are inputs of its program, and host callbacks are called through slots
(``callback_slots.py``): neither is part of the key. Nor are derivative rules, since a traced program is
already differentiated.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import jax
import numpy as np

from stratagem._src.core.types import Atom, CacheKey, Equation, Jaxpr, JaxprConstant, StaticValue
from stratagem._src.execution.callback_slots import is_callback
from stratagem._src.execution.static_key import EXACT, IdentityKey, KeyedParameter, static_key
from stratagem._src.jax_compat.derivative_rules import derivative_rules
from stratagem._src.jax_compat.tracing import jax_core

__all__ = ["JaxprKey", "jaxpr_key"]

_MAX_CACHED_KEYS = 4096
_MAX_COMPARED_BYTES = 1 << 20


class JaxprKey:
    """The key of a jaxpr; its hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, JaxprKey)
            and self._hash == other._hash
            and self._parts == other._parts
        )

    def __hash__(self) -> int:
        return self._hash


def jaxpr_key(jaxpr: Jaxpr) -> JaxprKey:
    """Returns the key of a jaxpr."""
    return _KeyBuilder().key(jaxpr)


class _KeyBuilder:
    """Builds the key of a jaxpr.

    Attributes:
        found_mutable: Whether the jaxpr contains an array that its owner may still change.
    """

    def __init__(self) -> None:
        self.found_mutable = False

    def key(self, jaxpr: Jaxpr) -> JaxprKey:
        # Variables of a jaxpr are new objects in every trace, so they are numbered in the order of their
        # definition.
        #     { lambda ; a b. let c = add a b; d = mul c a in (d,) }
        # becomes (aval, aval, 0, add, 0, 1, context, aval, mul, 2, 0, context, aval, 3): the avals of a
        # and b, no constants, then each equation with its operands as numbers, and the number of the
        # output.
        numbers: dict[int, int] = {}
        parts: list[Any] = []
        for var in (*jaxpr.constvars, *jaxpr.invars):
            numbers[id(var)] = len(numbers)
            parts.append(var.aval)
        parts.append(len(jaxpr.constvars))
        literal_class = jax_core().Literal
        for eqn in jaxpr.eqns:
            parts.append(eqn.primitive)
            for atom in eqn.invars:
                is_literal = isinstance(atom, literal_class)
                parts.append(_literal(atom) if is_literal else numbers[id(atom)])
            if eqn.params:
                parts.append(self._parameters(eqn))
            parts.append(IdentityKey(eqn.ctx, None))
            for var in eqn.outvars:
                # Each result gets a new number, even a dropped one.
                numbers[id(var)] = len(numbers)
                parts.append(var.aval)
        for atom in jaxpr.outvars:
            is_literal = isinstance(atom, literal_class)
            parts.append(_literal(atom) if is_literal else numbers[id(atom)])
        return JaxprKey(tuple(parts))

    def _parameters(self, eqn: Equation) -> tuple[Any, ...]:
        left_out = derivative_rules(eqn.primitive.name)
        if is_callback(eqn):
            left_out = {*left_out, "callback"}
        return tuple(
            (name, self._parameter(value))
            for name, value in eqn.params.items()
            if name not in left_out
        )

    def _parameter(self, value: StaticValue) -> Any:
        kind, core = type(value), jax_core()
        if kind in EXACT:
            return kind, value
        if kind is tuple or kind is list:
            return (kind, *map(self._parameter, value))
        if kind is dict:
            items = ((static_key(key, []), self._parameter(v)) for key, v in value.items())
            return (kind, *items)
        if isinstance(value, core.ClosedJaxpr):
            return self._closed(value)
        if isinstance(value, core.Jaxpr):
            return self.key(value)
        if isinstance(value, KeyedParameter):
            return value.key()
        if isinstance(value, (np.ndarray, jax.Array)):
            return self._array(value)
        return _static(value)

    def _closed(self, closed: Jaxpr) -> Any:
        known = _key_cache.get(closed)
        if known is not None:
            return known
        inner = _KeyBuilder()
        key = (inner.key(closed.jaxpr), *map(inner._array, closed.consts))
        if inner.found_mutable:
            self.found_mutable = True
        else:
            # Most inner jaxprs are those of JAX's own functions, which are traced once for all programs.
            _key_cache.add(closed, key)
        return key

    def _array(self, array: JaxprConstant) -> Any:
        """Returns the key of an array that is compiled into the program."""
        if not isinstance(array, jax.Array):
            self.found_mutable = True  # it may share memory with an array of the user
        elif not _is_small(array):
            return IdentityKey(array, None)
        try:
            content = np.asarray(array)
        except (TypeError, ValueError, RuntimeError):  # random keys, for example
            return IdentityKey(array, None)
        if content.dtype == object:
            return IdentityKey(array, None)
        return type(array), content.dtype, content.shape, content.tobytes()


class _KeyCache:
    """Keys of inner jaxprs, by identity, while something else keeps the jaxpr.

    JAX keeps those of its own functions. The body of a step is a new jaxpr in every trace, which must go.
    """

    def __init__(self) -> None:
        self._keys: weakref.WeakKeyDictionary[Jaxpr, CacheKey] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self, closed: Jaxpr) -> Any | None:
        return self._keys.get(closed)

    def add(self, closed: Jaxpr, key: CacheKey) -> None:
        with self._lock:
            if len(self._keys) >= _MAX_CACHED_KEYS:  # a key may keep its own jaxpr alive
                self._keys.clear()
            self._keys[closed] = key


_key_cache = _KeyCache()


def _is_small(array: jax.Array) -> bool:
    return array.nbytes <= _MAX_COMPARED_BYTES and array.is_fully_addressable


def _literal(atom: Atom) -> Any:
    value = np.asarray(atom.val)
    return atom.aval, value.dtype, value.shape, value.tobytes()


def _static(value: StaticValue) -> Any:
    """Returns the key of a parameter; it keeps the parameter alive if it compares by identity."""
    kept: list[Any] = []
    key = static_key(value, kept)
    return IdentityKey(value, None) if kept else key
