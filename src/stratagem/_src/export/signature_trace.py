"""A function with an ``input_signature`` as a pure function of weights and arguments."""

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
from stratagem._src.data.tensor_spec import STRING, TensorSpec
from stratagem._src.execution.draws import AnyIterator
from stratagem._src.execution.tracing_frames import FunctionFrame
from stratagem._src.execution.variable_reads import lift_reads
from stratagem._src.jax_compat.tracing import all_equations
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.per_replica import PerReplica
from stratagem._src.variables import access as state
from stratagem._src.variables.remotely_held_variable import RemotelyHeldVariable
from stratagem._src.variables.updates import Update
from stratagem._src.variables.variable import Variable

__all__ = ["TracedSignature", "trace_signature"]


@dataclass(frozen=True)
class TracedSignature:
    """What a function computes, apart from the Python that it was written in.

    Attributes:
        name: Under which it is saved.
        parameters: The names of its arguments.
        specs: A nest of specs for each of them.
        avals: The same with a symbol for every size that is left open.
        variables: What it reads.
        constants: Other arrays that the Python code holds.
        function: Takes the values of variables, constants and the arguments.
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
        InvalidArgumentError: If a spec is of strings, or has no rank.
        VariableError: If it updates variables, or reads one that differs between replicas.
        UnsupportedError: If it runs on several replicas.
    """
    avals = _Sizes().avals(tuple(specs))
    frame = _SignatureFrame(name)
    structure: Any = None

    def traced(*args: Any) -> list[Any]:
        nonlocal structure
        frame.open()
        with state.enter(frame):
            result = jax.tree.map(_array, function(*args), is_leaf=is_value_leaf)
        frame.close()
        leaves, structure = jax.tree.flatten(result)
        return leaves

    closed = jax.make_jaxpr(traced)(*avals)
    variables, jaxpr = lift_reads(closed.jaxpr)
    for variable in variables:
        if tuple(variable.shape) != tuple(variable.program_shape):
            raise VariableError(
                f"Signature {name!r} reads {variable.name!r}, whose value is another in each replica. "
                "Assign its value to a variable with one value for all, and read that."
            )
    if any(equation.primitive.name == "shard_map" for equation in all_equations(jaxpr)):
        raise UnsupportedError(
            f"Signature {name!r} calls strategy.run(), but what is saved runs on one device wherever it "
            "is loaded. Call the function that the replicas run itself."
        )

    def pure(values: Sequence[Any], constants: Sequence[Any], args: tuple[Any, ...]) -> Any:
        outputs = jax.core.eval_jaxpr(jaxpr, constants, *values, *jax.tree.leaves(args))
        return jax.tree.unflatten(structure, outputs)

    names = _parameter_names(function, specs)
    return TracedSignature(name, names, tuple(specs), avals, variables, list(closed.consts), pure)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        raise UnsupportedError(
            f"A signature returns arrays, got a value with one for each replica: {leaf!r}."
        )
    return jnp.asarray(array_of(leaf))


def _parameter_names(function: Callable[..., Any], specs: Sequence[Any]) -> tuple[str, ...]:
    """Returns what arguments are called: as their specs say, else as the function does."""
    taken = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    taken += [f"argument_{index}" for index in range(len(taken), len(specs))]
    said = [getattr(spec, "name", None) for spec in specs]
    return tuple(
        re.sub(r"\W", "_", name or other) for name, other in zip(said, taken, strict=False)
    )


class _Sizes:
    """Symbols for open sizes: one for the leading size of all arrays, and one for each other."""

    def __init__(self) -> None:
        self._scope = export.SymbolicScope()
        self._others = 0

    def avals(self, specs: tuple[Any, ...]) -> tuple[Any, ...]:
        made: tuple[Any, ...] = jax.tree.map(
            self._aval, specs, is_leaf=lambda node: isinstance(node, TensorSpec)
        )
        return made

    def _aval(self, spec: Any) -> jax.ShapeDtypeStruct:
        if not isinstance(spec, TensorSpec) or spec.dtype == STRING or spec.shape.rank is None:
            raise InvalidArgumentError(
                "A signature takes arrays of numbers, whose number of dimensions is known, got a spec "
                f"{spec!r}. Turn strings into numbers before."
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
    """Values of variables while a signature is traced, which reads them and no more."""

    def __init__(self, name: str) -> None:
        super().__init__(may_create=False)
        self._name = name

    def rows(self, variable: RemotelyHeldVariable, indices: Any) -> Any:
        """Returns rows of the whole table, which is saved with the signature."""
        return self.read(variable)[indices]

    def write(self, variable: Variable, value: Any) -> None:
        """Raises."""
        self._refuse(variable)

    def update_remotely(self, variable: RemotelyHeldVariable, update: Update, operand: Any) -> None:
        """Raises."""
        self._refuse(variable)

    def draw(self, iterator: AnyIterator, *, optional: bool = False) -> Any:
        """Raises."""
        self.refuse_to_loop(iterator)

    def refuse_to_loop(self, dataset: Any) -> NoReturn:
        """Raises."""
        raise UnsupportedError(
            f"Signature {self._name!r} draws from a dataset. Make it an argument."
        )

    def _refuse(self, variable: Variable) -> NoReturn:
        raise VariableError(
            f"Signature {self._name!r} updates {variable.name!r}, but what is saved keeps its weights. "
            "Return the new value in place of assigning it, or call layers with training=False."
        )
