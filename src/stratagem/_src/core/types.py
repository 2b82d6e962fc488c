"""Names for what a value is, where Python's type system can only say ``Any``.

A parameter is annotated with one of these rather than with ``Any``, so that a reader knows what to pass.
They load nothing of JAX: ``import stratagem`` stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

__all__ = [
    "ArrayLike",
    "ArraySpec",
    "Atom",
    "AxisLike",
    "AxisName",
    "CacheKey",
    "DTypeLike",
    "Dataset",
    "Element",
    "ElementSpec",
    "Equation",
    "EquationParams",
    "GradientTransformation",
    "Initializer",
    "IntegerLike",
    "IteratorState",
    "Jaxpr",
    "JaxprConstant",
    "Leaf",
    "PRNGKey",
    "PathLike",
    "Picklable",
    "Primitive",
    "PyTree",
    "PyTreeDef",
    "ReplicaFunction",
    "ScalarLike",
    "Seed",
    "ShapeLike",
    "StaticValue",
    "StringLike",
    "Tensor",
    "Trace",
    "Tracer",
    "WrappedFunction",
]

PyTree: TypeAlias = Any
"""A nest of tuples, lists, dicts and registered nodes, with leaves of any kind."""

PyTreeDef: TypeAlias = Any
"""The structure of a ``PyTree``, as ``jax.tree.structure`` returns it."""

Leaf: TypeAlias = Any
"""A value that a tree utility does not look into."""

ArrayLike: TypeAlias = Any
"""What ``jnp.asarray`` takes: arrays, NumPy arrays, Python numbers, variables, distributed values."""

Tensor: TypeAlias = Any
"""A JAX array or a tracer; for TensorFlow's functions also what they convert to one."""

Tracer: TypeAlias = Any
"""A value inside a trace (``jax.core.Tracer``)."""

DTypeLike: TypeAlias = Any
"""What ``jnp.dtype`` takes, and a dtype of ``stratagem.dtypes``."""

ArraySpec: TypeAlias = Any
"""A shape and a dtype: ``jax.ShapeDtypeStruct``, ``TensorSpec`` or an abstract value of JAX."""

Jaxpr: TypeAlias = Any
"""``jax.core.Jaxpr`` or ``ClosedJaxpr``."""

Equation: TypeAlias = Any
"""One equation of a jaxpr (``jax.core.JaxprEqn``)."""

JaxprConstant: TypeAlias = Any
"""An array that a jaxpr holds as a constant."""

Element: TypeAlias = PyTree
"""One element of a dataset."""

ElementSpec: TypeAlias = PyTree
"""The nest of ``TensorSpec`` that describes the elements of a dataset."""

IteratorState: TypeAlias = Any
"""A JSON-able value from which an iterator or a stream resumes."""

Dataset: TypeAlias = Any
"""A dataset of ours or of another library, or any iterable of elements."""

ReplicaFunction: TypeAlias = Callable[..., Any]
"""What ``strategy.run`` runs in every replica."""

Initializer: TypeAlias = Any
"""An initial value, or a function that returns it."""

GradientTransformation: TypeAlias = Any
"""An optax ``GradientTransformation``."""

StaticValue: TypeAlias = Any
"""An argument that a compiled program contains rather than takes."""

AxisName: TypeAlias = Hashable
"""The name of a mesh axis."""

AxisLike: TypeAlias = Any
"""One axis of an array, or several: integers, negative ones count from the end."""

IntegerLike: TypeAlias = Any
"""An integer, or an array that holds one and is not traced."""

PRNGKey: TypeAlias = Any
"""A key of ``jax.random``."""

PathLike: TypeAlias = Any
"""A path: text, bytes, ``os.PathLike``, or an array that holds one string."""

ScalarLike: TypeAlias = Any
"""A number, or an array without dimensions."""

Seed: TypeAlias = Any
"""The seed of random numbers: integers, or an array of them."""

ShapeLike: TypeAlias = Any
"""A shape: integers in a list, tuple, ``TensorShape`` or array."""

StringLike: TypeAlias = Any
"""Text or bytes, nested lists of these, or an array of strings."""

Atom: TypeAlias = Any
"""A variable or a literal of a jaxpr."""

Primitive: TypeAlias = Any
"""An operation of JAX (``jax.core.Primitive``)."""

EquationParams: TypeAlias = Any
"""The parameters of an equation, by name."""

WrappedFunction: TypeAlias = Any
"""A function that JAX traces (``linear_util.WrappedFun``)."""

CacheKey: TypeAlias = Any
"""What a cache of programs compares; hashable."""

Trace: TypeAlias = Any
"""A trace of JAX that is under way (``jax.core.Trace``)."""

Picklable: TypeAlias = Any
"""An object that ``cloudpickle`` can send to another process."""
