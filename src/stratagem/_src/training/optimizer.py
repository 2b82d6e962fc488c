"""``Optimizer``: applies gradients to variables of any kind by an optax transformation."""

from __future__ import annotations

import collections
import contextlib
import threading
import uuid
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, VariableError
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.leaf_names import leaf_names
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.tracing import is_tracer
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.server.server_function import ROW_FUNCTION, WHOLE_FUNCTION
from stratagem._src.parameter_server.server.server_optimizer import OptimizerFunction, StateLeaf
from stratagem._src.runtime import context
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.keyless_transformation import KeylessTransformation
from stratagem._src.training.local_state import LocalState, static_shape
from stratagem._src.values.array_operators import array_of
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.variables import access as state
from stratagem._src.variables import remote_batch
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.updates import Update, update_on_server
from stratagem._src.variables.variable import Variable

__all__ = ["Optimizer"]


class Optimizer:
    """Applies gradients to variables by an optax transformation, wherever the variables are.

    A variable on a parameter server is updated there: the gradient travels, and the optimizer's state
    stays beside the variable, shard by shard. Of an ``IndexedSlices`` gradient, as the rows of a table
    have, only these rows and their state are touched. The state of all other variables is kept in
    variables of their strategy, and the transformation sees them together.

    In replica context the replicas' gradients are summed first, so scale the loss by the global batch
    size.

    Args:
        transformation: An optax ``GradientTransformation``. What it does for one variable on a server
            must not depend on others: a clip by global norm is one by the norm of each shard there.
        name: Name of its state in checkpoints.

    >>> import optax
    >>> import stratagem as sg
    >>> w = sg.Variable(3.0)
    >>> optimizer = sg.train.Optimizer(optax.sgd(0.5))
    >>> optimizer.apply_gradients([(2.0, w)])
    >>> float(w)
    2.0
    """

    def __init__(self, transformation: Any, name: str = "optimizer") -> None:
        if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
            raise InvalidArgumentError(
                "Optimizer needs an optax transformation, such as optax.adam(1e-3), got "
                f"{transformation!r}."
            )
        self._set_up(uuid.uuid4().hex, transformation, name)
        with _known_lock:
            _known[self._id] = self

    def _set_up(self, identity: str, transformation: Any, name: str) -> None:
        self._id = identity
        self.transformation = transformation
        self._keyless = KeylessTransformation(transformation)
        self.name = name
        self._function: bytes | None = None
        self._variables: list[Variable] = []
        self._state: list[Variable] = []
        self._structure: Any = None
        self._leaves: tuple[str, ...] = ()
        self._restored: LocalState | None = None
        self._step = jax.jit(self._new_values_and_state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (self._id, self.transformation, self.name)

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold its state; not what is on parameter servers."""
        return list(self._state)

    @property
    def server_function(self) -> bytes:
        """What a parameter server needs to take a step of it."""
        if self._function is None:
            self._function = cloudpickle.dumps(OptimizerFunction(self._id, self._keyless))
        return self._function

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> None:
        """Updates each variable by its gradient.

        Args:
            grads_and_vars: Pairs of a gradient, an array or ``IndexedSlices``, and a variable. Pairs
                without a gradient (``None``) are left out.

        Raises:
            VariableError: If other variables are given than before, parameter servers' apart, or a
                variable twice.
        """
        pairs = [
            (gradient, variable) for gradient, variable in grads_and_vars if gradient is not None
        ]
        for _, variable in pairs:
            if not isinstance(variable, Variable):
                raise VariableError(
                    "apply_gradients takes (gradient, variable) pairs, got "
                    f"{type(variable).__name__} for a variable."
                )
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        _check_distinct(variables)
        replica = context.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            self._apply(gradients, variables)
        elif pairs:
            replica.merge_call(
                lambda strategy, values: self._reduce_and_apply(strategy, values, variables),
                args=(gradients,),
            )

    def _reduce_and_apply(
        self, strategy: Strategy, gradients: Sequence[Any], variables: Sequence[Variable]
    ) -> None:
        reduced = strategy.extended.batch_reduce_to(
            ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        values = [array_of(value) if isinstance(value, Mirrored) else value for value in reduced]
        self._apply(values, variables)

    def _apply(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        here: list[tuple[Any, Variable]] = []
        on_servers: list[tuple[RemoteVariable, Update, Any]] = []
        for gradient, variable in zip(gradients, variables, strict=True):
            if isinstance(variable, RemoteVariable):
                operand = _arrays(gradient, variable.dtype)
                on_servers.append((variable, self._update_for(gradient), operand))
            else:
                here.append((gradient, variable))
        if on_servers and state.current_frame() is None:
            for variable, _, operand in on_servers:
                variable.check_not_tracing(operand)
            remote_batch.send(on_servers)
        else:
            for variable, update, operand in on_servers:
                variable.apply_update(update, operand)
        if here:
            self._apply_here([g for g, _ in here], [v for _, v in here])

    def _update_for(self, gradient: Any) -> Update:
        rows = isinstance(gradient, IndexedSlices)
        return update_on_server(ROW_FUNCTION if rows else WHOLE_FUNCTION, self.server_function)

    # --- variables of this process ----------------------------------------------------------------

    def _apply_here(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        self.build(variables)
        values = [variable.read_value() for variable in variables]
        before = jax.tree.unflatten(self._structure, [v.read_value() for v in self._state])
        dense = [_dense(*each) for each in zip(gradients, variables, values, strict=True)]
        new_values, new_state = self._step(dense, before, values)
        for variable, value in zip(variables, new_values, strict=True):
            variable.assign(value)
        for variable, value in zip(self._state, jax.tree.leaves(new_state), strict=True):
            variable.assign(value)

    def _new_values_and_state(self, gradients: Any, state: Any, values: Any) -> Any:
        updates, state = self._keyless.update(gradients, state, values)
        new = [(value + u).astype(value.dtype) for value, u in zip(values, updates, strict=True)]
        return new, state

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the state for variables that are not on parameter servers, if there is none yet.

        Raises:
            VariableError: If there is state for other variables.
        """
        local = [v for v in variables if not isinstance(v, RemoteVariable)]
        if self._structure is not None:
            if [id(v) for v in local] != [id(v) for v in self._variables]:
                raise VariableError(
                    "An Optimizer is always given the same variables in the same order, got "
                    f"{[v.name for v in local]} after {[v.name for v in self._variables]}. Use one "
                    "Optimizer for each group of variables."
                )
            return
        with jax.ensure_compile_time_eval():
            initial = self._initial_state(local)
        names = tuple(leaf_names(initial))
        leaves, structure = jax.tree.flatten(initial)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._restored is not None:
            found = [StateLeaf(n, x.shape, x.dtype) for n, x in zip(names, leaves, strict=True)]
            self._restored.check(found, local, f"Optimizer {self.name!r}")
            leaves = list(self._restored.values)
        with _scope_of(local):
            self._state = [
                Variable(leaf, trainable=False, name=f"{self.name}/{index}")
                for index, leaf in enumerate(leaves)
            ]
        self._variables = local
        self._structure = structure
        self._leaves = names
        self._restored = None

    def _initial_state(self, variables: Sequence[Variable]) -> Any:
        return self._keyless.init([np.asarray(v._eager_value()) for v in variables])

    # --- checkpoints --------------------------------------------------------------------------------

    def local_state(self) -> LocalState | None:
        """Returns the state of variables that are not on parameter servers, if there is any yet."""
        if self._structure is None:
            return self._restored
        return LocalState(self._leaves, tuple(self._state), tuple(self._variables))

    def check_local_state(self, restored: LocalState, name: str) -> None:
        """Checks that ``restore_local_state`` can be called, as far as it is known by now.

        Args:
            restored: The state.
            name: The optimizer's name in messages.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        variables: Sequence[Variable | None] | None = restored.variables
        if self._structure is not None:
            leaves = [
                StateLeaf(leaf, static_shape(v), v.dtype)
                for leaf, v in zip(self._leaves, self._state, strict=True)
            ]
            restored.check(leaves, self._variables, name)
        elif variables is not None and not any(v is None for v in variables):
            known = [v for v in variables if v is not None]
            shapes = [jax.ShapeDtypeStruct(static_shape(v), v.dtype) for v in known]
            state = jax.eval_shape(self._keyless.init, shapes)
            leaves = [
                StateLeaf(leaf, tuple(x.shape), np.dtype(x.dtype))
                for leaf, x in zip(leaf_names(state), jax.tree.leaves(state), strict=True)
            ]
            restored.check(leaves, known, name)

    def restore_local_state(self, restored: LocalState | None) -> None:
        """Sets the state of variables that are not on parameter servers, also before there is any.

        Args:
            restored: The state; ``None`` for that from before the first step.
        """
        if self._structure is None:
            self._restored = restored
            return
        if restored is not None:
            values = list(restored.values)
        else:
            values = jax.tree.leaves(self._initial_state(self._variables))
        for variable, value in zip(self._state, values, strict=True):
            variable.assign(np.asarray(value))


def _check_distinct(variables: Sequence[Variable]) -> None:
    counts = collections.Counter(map(id, variables))
    if len(counts) < len(variables):
        twice = next(variable for variable in variables if counts[id(variable)] > 1)
        raise VariableError(
            "apply_gradients takes one gradient for each variable, got "
            f"{counts[id(twice)]} for {twice.name!r}. Add them first, and pass their sum."
        )


def _scope_of(variables: Sequence[Variable]) -> contextlib.AbstractContextManager[object]:
    """Returns the scope in which variables like these are created."""
    first = variables[0] if variables else None
    if not isinstance(first, DistributedVariable) or context.get_strategy() is first.strategy:
        return contextlib.nullcontext()
    return first.strategy.scope()


def _arrays(gradient: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(_array(gradient.values, dtype), _array(gradient.indices))
    return _array(gradient, dtype)


def _array(value: Any, dtype: np.dtype[Any] | None = None) -> Any:
    value = array_of(value)
    return value if isinstance(value, jax.Array) else np.asarray(value, dtype)


def _dense(gradient: Any, variable: Variable, value: Any) -> Any:
    """Returns a gradient as an array, on the devices where the variable is."""
    if isinstance(gradient, IndexedSlices):
        shape = tuple(dim or 0 for dim in variable.shape)
        gradient = IndexedSlices(gradient.values, gradient.indices, shape).to_dense()
    gradient = jnp.asarray(array_of(gradient), variable.dtype)
    known = not is_tracer(gradient) and not is_tracer(value)
    return jax.device_put(gradient, value.sharding) if known else gradient


_known: weakref.WeakValueDictionary[str, Optimizer] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


def _receive(identity: str, transformation: Any, name: str) -> Optimizer:
    """Returns this process's object for an optimizer that was sent to it."""
    with _known_lock:
        optimizer = _known.get(identity)
        if optimizer is None:
            optimizer = Optimizer.__new__(Optimizer)
            optimizer._set_up(identity, transformation, name)
            _known[identity] = optimizer
        return optimizer
