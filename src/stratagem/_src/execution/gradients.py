"""``value_and_grad``: gradients with respect to variables and arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import InvalidArgumentError, VariableError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.types import DTypeLike, PyTree, Tensor
from stratagem._src.execution.gradient_frame import GradientFrame
from stratagem._src.execution.replicas.replica_frame import ReplicaFrame
from stratagem._src.values.regroup import is_array
from stratagem._src.variables import frames
from stratagem._src.variables.base_remote_variable import BaseRemoteVariable
from stratagem._src.variables.foreign_variables import is_variable, variable_of
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.path_names import name_by_path
from stratagem._src.variables.shard_gradients import add_gradients, shard_gradient
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["Precision", "gradient_function", "value_and_grad"]


def value_and_grad(
    fn: Callable[..., Any],
    variables: PyTree = None,
    has_aux: bool = False,
    argnums: int | Sequence[int] | None = None,
) -> Callable[..., Any]:
    """Returns a function that computes ``fn`` and its gradients with respect to ``variables``.

    ``fn`` reads the variables by itself. It may also assign variables (running averages, for example):
    the assignments take effect after the gradient has been computed. In replica context the gradients are
    those of the replica; combine them with ``get_replica_context().all_reduce``.

    Args:
        fn: Returns a scalar, or with ``has_aux`` a pair of a scalar and anything.
        variables: A variable, or any nest of variables; Keras variables work too.
        has_aux: Whether ``fn`` returns a pair.
        argnums: The positional arguments to differentiate with respect to, one or several; instead of
            ``variables`` or in addition to them. Without both it is the first argument, as in JAX.

    Returns:
        A function with the arguments of ``fn`` that returns ``(value, gradients)``, or with ``has_aux``
        ``((value, aux), gradients)``. The gradients have the structure of ``variables``, with zeros for
        those that ``fn`` does not depend on; with ``argnums`` alone they are those of the arguments, and
        with both a pair of the two. If ``fn`` reads only rows of a variable on parameter servers, with
        ``sparse_read`` or ``variable[indices]``, its gradient is an ``IndexedSlices`` of those rows.

    Raises:
        VariableError: If ``fn`` reads none of the variables, so that all gradients would be zero.

    JAX equivalent: ``jax.value_and_grad``.

    >>> import stratagem as sg
    >>> w = sg.Variable(3.0)
    >>> value, gradient = sg.value_and_grad(lambda x: w * w * x, w)(2.0)
    >>> float(value), float(gradient)
    (18.0, 12.0)
    """
    return gradient_function(fn, variables, has_aux, argnums)


@dataclass(frozen=True, slots=True)
class Precision:
    """How a gradient is computed in mixed precision.

    Attributes:
        dtype: The dtype in which the function reads variables.
        casts: Whether it reads a variable in that dtype.
        loss_scale: Returns the factor by which the loss is multiplied; gradients are divided by it.
    """

    dtype: DTypeLike
    casts: Callable[[Variable], bool]
    loss_scale: Callable[[], Any] | None = None


def gradient_function(
    fn: Callable[..., Any],
    variables: PyTree = None,
    has_aux: bool = False,
    argnums: int | Sequence[int] | None = None,
    precision: Precision | None = None,
) -> Callable[..., Any]:
    """Like ``value_and_grad``, also in mixed precision."""
    if variables is None and argnums is None:
        argnums = 0
    numbers = [] if argnums is None else [argnums] if isinstance(argnums, int) else list(argnums)
    leaves, structure = structures.flatten(variables, is_leaf=is_variable)
    leaves = [variable_of(leaf) for leaf in leaves]
    for leaf in leaves:
        if not is_own_variable(leaf):
            raise VariableError(
                f"value_and_grad needs variables to differentiate, got {type(leaf).__name__}. For "
                "arrays use jax.value_and_grad."
            )
    name_by_path(variables, leaves)
    table_shards = {
        id(leaf): (leaf, table)
        for leaf in leaves
        if isinstance(leaf, BaseRemoteVariable) and (table := leaf.table) is not None
    }

    @functools.wraps(fn)
    def value_and_gradients(*args: PyTree, **kwargs: PyTree) -> Any:
        parent = frames.current_frame()
        frame = GradientFrame(parent)
        # A variable that occurs twice (tied weights) is differentiated once.
        tables = [table for _, table in table_shards.values()]
        unique = {id(leaf): leaf for leaf in [*leaves, *tables]}
        remote = [leaf for leaf in unique.values() if isinstance(leaf, BaseRemoteVariable)]
        arguments = [leaf for leaf in unique.values() if not frame.fetches_on_read(leaf)]
        values = [_differentiable_value(leaf, frame) for leaf in arguments]
        by_shard = [leaf for leaf in arguments if frame.differentiates_shards(leaf)]
        kept: dict[str, Any] = {}

        own_args = _selected(args, numbers)
        scale = None if precision is None or not precision.loss_scale else precision.loss_scale()

        def lifted(
            values: list[Any], taps: list[Any], anchors: list[Any], own_args: list[Any]
        ) -> Any:
            frame.differentiate(arguments, values)
            frame.tap_shards(by_shard, taps)
            if anchors:
                frame.tap(remote, anchors[0])
            if precision is not None:
                frame.compute_in(precision.dtype, list(filter(precision.casts, unique.values())))
            with frames.enter(frame):
                # By position: {0: x, 1: y} | {1: traced y}.
                given = dict(enumerate(args)) | dict(zip(numbers, own_args, strict=True))
                result = fn(*given.values(), **kwargs)
            if leaves and not numbers and not any(map(frame.has_read, unique.values())):
                raise _nothing_read(leaves)
            value, aux = result if has_aux else (result, None)
            if precision is not None:
                value = _widened(value)
            aux_leaves, kept["structure"] = structures.flatten(aux)
            kept["aux"] = [None if is_array(leaf) else leaf for leaf in aux_leaves]
            arrays = [leaf for leaf in aux_leaves if is_array(leaf)]
            operands = [noted.operand for noted in frame.remote.updates]
            scaled = value if scale is None else value * scale
            # The unscaled loss is a result of its own: divided, an infinite one would not be recovered.
            unscaled = None if scale is None else value
            return scaled, (unscaled, arrays, frame.take_written_values(), operands)

        differentiated = jax.value_and_grad(lifted, argnums=(0, 1, 2, 3), has_aux=True)
        # The derivative at a zero that is added to a value is the derivative of the value: so the
        # replica's own gradient of a gathered variable arrives here, and nothing is added at run time.
        taps = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in by_shard]
        anchors = [np.float32(0)] if remote else []
        (value, kept_values), gradients_of = differentiated(values, taps, anchors, own_args)
        unscaled, arrays, written, operands = kept_values
        if scale is not None:
            value = unscaled
            gradients_of = jax.tree.map(lambda g: _unscaled(g, scale), gradients_of)
        of_arguments, of_taps, _, of_own = gradients_of
        # The values that the frame holds are tracers of the differentiation, which has ended. These are
        # its results.
        for variable, new_value in zip(frame.written.values(), written, strict=True):
            if parent is not None:
                parent.check_writable(variable)
                if isinstance(variable, FullyShardedVariable):
                    parent.write_full_value(variable, new_value)
                else:
                    parent.write(variable, new_value)
            else:
                variable.commit(new_value)
        for noted, operand in zip(frame.remote.updates, operands, strict=True):
            if parent is not None:
                parent.check_writable(noted.variable)
                parent.update_remotely(noted.variable, noted.update, operand)
            else:
                noted.variable.commit_update(noted.update, operand)
        by_variable = dict(zip(map(id, arguments), of_arguments, strict=True))
        for leaf in remote:
            by_variable[id(leaf)] = frame.taps.gradient(leaf, by_variable.get(id(leaf)))
        for leaf, table in table_shards.values():
            if frame.has_read(table):
                own = by_variable[id(leaf)] if frame.has_read(leaf) else None
                part = shard_gradient(by_variable[id(table)], leaf)
                by_variable[id(leaf)] = add_gradients(own, part)
        # Of a fully sharded variable, the argument is this replica's shard: its gradient is the shard of
        # the sum over the replicas (reduce-scattered). The replica's own full gradient arrives at the tap.
        shards = {id(leaf): by_variable[id(leaf)] for leaf in by_shard}
        by_variable |= dict(zip(shards, of_taps, strict=True))
        shaped = [_with_variable_shape(by_variable[id(leaf)], leaf) for leaf in leaves]
        if isinstance(parent, ReplicaFrame):
            parent.note_loss(value, shaped)
            for leaf, gradient in zip(leaves, shaped, strict=True):
                if id(leaf) in shards:
                    parent.note_reduced_shard(gradient, shards[id(leaf)])
        gradients = jax.tree.unflatten(structure, shaped)
        if argnums is not None:
            of_args = of_own[0] if isinstance(argnums, int) else tuple(of_own)
            gradients = of_args if variables is None else (gradients, of_args)
        if not has_aux:
            return value, gradients
        remaining = iter(arrays)
        aux_leaves = [next(remaining) if leaf is None else leaf for leaf in kept["aux"]]
        return (value, jax.tree.unflatten(kept["structure"], aux_leaves)), gradients

    return value_and_gradients


def _nothing_read(variables: Sequence[Variable]) -> VariableError:
    shown = ", ".join(repr(variable.name) for variable in variables[:3])
    more = ", ..." if len(variables) > 3 else ""
    return VariableError(
        "The function given to value_and_grad must read the variables that it is differentiated with "
        f"respect to, but it reads none of them, got {shown}{more}: all gradients would be zero. Probably "
        "it uses other arrays in their place: a captured Flax module, where it should call "
        "nnx.merge(definition, variables), or values that were read outside of the function."
    )


def _widened(value: Tensor) -> Any:
    """Returns a loss in float32, or in its own dtype if that is wider."""
    return jnp.asarray(value).astype(jnp.promote_types(jnp.result_type(value), jnp.float32))


def _unscaled(gradient: Tensor, scale: Tensor) -> Any:
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32)) / scale
    return wide.astype(gradient.dtype)


def _selected(args: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    for number in numbers:
        if not 0 <= number < len(args):
            raise InvalidArgumentError(
                f"value_and_grad differentiates with respect to positional argument {number}, but got "
                f"{len(args)} of them. Pass it by position, or give the variables to differentiate."
            )
    return [args[number] for number in numbers]


def _with_variable_shape(gradient: Tensor, variable: Variable) -> Any:
    if isinstance(gradient, IndexedSlices):
        return gradient
    return gradient.reshape(variable.shape)


def _differentiable_value(variable: Variable, frame: GradientFrame) -> Any:
    parent = frame.parent
    across = parent is not None and not parent.spmd and isinstance(variable, SyncOnReadVariable)
    if across and variable.group.size > 1:
        raise VariableError(
            f"Variable {variable.name!r} (ON_READ) can be differentiated in replica context only. Call "
            "value_and_grad inside strategy.run()."
        )
    if parent is None:
        return frames.record_read(variable, variable._eager_value())
    if isinstance(variable, FullyShardedVariable) and not frame.differentiates_shards(variable):
        return frames.record_read(variable, parent.full_value(variable))
    return frames.record_read(variable, parent.read(variable))
