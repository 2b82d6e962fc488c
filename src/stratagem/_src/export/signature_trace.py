"""``trace_signature``: traces a function with an ``input_signature`` to a pure function of its weights."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import export

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError, VariableError
from stratagem._src.core.types import ArrayLike, ArraySpec, Dataset, Leaf, PyTree, Tensor
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.execution.draws import AnyIterator
from stratagem._src.execution.function_frame import FunctionFrame
from stratagem._src.execution.variable_reads import lift_reads
from stratagem._src.jax_compat.primitives import SHARD_MAP
from stratagem._src.jaxpr.walk import all_equations
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["TracedSignature", "trace_signature"]


@dataclass(frozen=True)
class TracedSignature:
    """A traced function, independent of its Python code.

    Attributes:
        name: The name it is saved under.
        parameters: The names of its arguments.
        specs: A nest of specs for each argument.
        avals: The same as abstract values, with a symbol for each unknown dimension.
        variables: The variables that it reads.
        constants: Other arrays that the Python code captures.
        function: Takes the values of the variables, the constants and the arguments.
    """

    name: str
    parameters: tuple[str, ...]
    specs: tuple[Any, ...]
    avals: tuple[Any, ...]
    variables: list[Variable]
    constants: list[Any]
    function: Callable[[Sequence[Any], Sequence[Any], tuple[Any, ...]], Any]


def trace_signature(
    name: str, function: Callable[..., Any], specs: Sequence[Any]
) -> TracedSignature:
    """Traces a function with arguments of these specs.

    Raises:
        InvalidArgumentError: If a spec has the dtype string, or no rank.
        VariableError: If it updates variables, or reads one that differs between replicas.
        UnsupportedError: If it runs on several replicas.
    """
    avals = _SymbolicDimensions().avals(tuple(specs))
    frame = _SignatureFrame(name)
    structure: Any = None

    def traced(*args: PyTree) -> list[Any]:
        nonlocal structure
        frame.open()
        with frames.enter(frame):
            result = jax.tree.map(_array, function(*args), is_leaf=is_value_leaf)
        frame.close()
        leaves, structure = jax.tree.flatten(result)
        return leaves

    closed = jax.make_jaxpr(traced)(*avals)
    variables, jaxpr = lift_reads(closed.jaxpr)
    for variable in variables:
        if tuple(variable.shape) != tuple(variable.program_shape):
            raise VariableError(
                f"Signature {name!r} reads {variable.name!r}, whose value differs between replicas. Assign "
                "its value to a mirrored variable, and read that."
            )
    if any(equation.primitive.name == SHARD_MAP for equation in all_equations(jaxpr)):
        raise UnsupportedError(
            f"Signature {name!r} calls strategy.run(), but a saved function runs on one device. Call the "
            "replica function directly."
        )

    def pure(values: Sequence[Any], constants: Sequence[Any], args: tuple[Any, ...]) -> Any:
        outputs = jax.core.eval_jaxpr(jaxpr, constants, *values, *jax.tree.leaves(args))
        return jax.tree.unflatten(structure, outputs)

    names = _parameter_names(function, specs)
    return TracedSignature(name, names, tuple(specs), avals, variables, list(closed.consts), pure)


def _array(leaf: Leaf) -> Any:
    if isinstance(leaf, PerReplica):
        raise UnsupportedError(
            f"A signature must return arrays, got a per-replica value: {leaf!r}."
        )
    return jnp.asarray(array_of(leaf))


def _parameter_names(function: Callable[..., Any], specs: Sequence[Any]) -> tuple[str, ...]:
    """Returns the names of the arguments: from their specs, else from the function."""
    from_function = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    from_function += [f"argument_{index}" for index in range(len(from_function), len(specs))]
    from_specs = [getattr(spec, "name", None) for spec in specs]
    return tuple(
        re.sub(r"\W", "_", name or other)
        for name, other in zip(from_specs, from_function, strict=False)
    )


class _SymbolicDimensions:
    """Symbolic dimensions: one symbol for all unknown leading dimensions, one for each other."""

    def __init__(self) -> None:
        self._scope = export.SymbolicScope()
        self._others = 0

    def avals(self, specs: tuple[Any, ...]) -> tuple[Any, ...]:
        made: tuple[Any, ...] = jax.tree.map(
            self._aval, specs, is_leaf=lambda node: isinstance(node, TensorSpec)
        )
        return made

    def _aval(self, spec: ArraySpec) -> jax.ShapeDtypeStruct:
        if not isinstance(spec, TensorSpec) or spec.dtype == STRING or spec.shape.rank is None:
            raise InvalidArgumentError(
                "A signature must take numeric arrays of known rank, got the spec "
                f"{spec!r}. Convert strings to numbers before the call."
            )
        sizes = [
            str(size) if size is not None else self._symbol(dimension)
            for dimension, size in enumerate(spec.shape)
        ]
        shape = export.symbolic_shape(",".join(sizes), scope=self._scope) if sizes else ()
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(spec.dtype))

    def _symbol(self, dimension: int) -> str:
        if dimension == 0:
            return "batch"
        self._others += 1
        return f"size_{self._others}"


class _SignatureFrame(FunctionFrame):
    """The frame in which a signature is traced: variables are read-only."""

    def __init__(self, name: str) -> None:
        super().__init__(may_create=False)
        self._name = name

    def create(self, variable: Variable, initial_value: ArrayLike) -> None:
        """Raises."""
        raise VariableError(
            f"Signature {self._name!r} creates the variable {variable.name!r}, but a saved function has "
            "the values of variables that exist. Call the model or function once with example inputs "
            "before it is saved."
        )

    def rows(self, variable: BaseRemoteVariable, indices: ArrayLike) -> Any:
        """Returns rows of the full table, which is saved with the signature."""
        return self.read(variable)[indices]

    def write(self, variable: Variable, value: Tensor) -> None:
        """Raises."""
        self._refuse(variable)

    def update_remotely(
        self, variable: BaseRemoteVariable, update: Update, operand: PyTree
    ) -> None:
        """Raises."""
        self._refuse(variable)

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Raises."""
        self.refuse_to_loop(iterator)

    def refuse_to_loop(self, dataset: Dataset) -> NoReturn:
        """Raises."""
        raise UnsupportedError(
            f"Signature {self._name!r} draws from a dataset. Make the element an argument."
        )

    def _refuse(self, variable: Variable) -> NoReturn:
        raise VariableError(
            f"Signature {self._name!r} updates {variable.name!r}, but the weights of a saved function are "
            "constant. Return the new value instead of assigning it, or call layers with training=False."
        )
