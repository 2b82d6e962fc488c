"""``Optimizer``: applies gradients to variables of any kind by an optax transformation."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core import structures
from stratagem._src.core.errors import (
    InvalidArgumentError,
    UnsupportedError,
    VariableError,
)
from stratagem._src.core.indexed_slices import IndexedSlices
from stratagem._src.core.missing_names import missing_method
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.tracing import is_tracer
from stratagem._src.parameter_server.client.lineage import lineage
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.server.server_function import ROW_FUNCTION, WHOLE_FUNCTION
from stratagem._src.parameter_server.server.server_optimizer import OptimizerFunction
from stratagem._src.runtime import context
from stratagem._src.runtime.protocols import StrategyProtocol
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.gradient_clipping import Clipping
from stratagem._src.training.local_state import RestoredState, StateEntry
from stratagem._src.training.loss_scaling import LossScale
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.training.state_variables import StateVariables
from stratagem._src.values.array_operators import array_of, operand_of
from stratagem._src.values.distributed_values import is_value_leaf
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.variables import access as state
from stratagem._src.variables import remote_batch
from stratagem._src.variables.place_names import name_by_place
from stratagem._src.variables.stand_ins import is_variable, variable_of
from stratagem._src.variables.updates import Update, update_on_server
from stratagem._src.variables.variable import Variable

__all__ = ["Optimizer"]


class Optimizer:
    """Applies gradients to variables by an optax transformation, wherever the variables are.

    **The replicas' gradients are summed, not averaged.** So a replica's loss must be its part of the loss
    of the global batch: divide by the global batch size, which ``sg.nn.compute_average_loss`` does.

    A variable on a parameter server is updated there: the gradient travels, and the optimizer's state
    stays beside the variable, shard by shard. Of an ``IndexedSlices`` gradient, as the rows of a table
    have, only these rows and their state are touched. The state of all other variables is kept in
    variables of their strategy, and the transformation sees them together.

    Args:
        transformation: An optax ``GradientTransformation``, as ``optax.adam(1e-3)``; or with a
            ``learning_rate`` what makes one of it, as ``optax.adam``. What it does for one variable on a
            server must not depend on others.
        name: Name of its state in checkpoints and messages.
        learning_rate: A number, which can be changed later by assigning to ``learning_rate``; or a
            schedule, a function of the number of updates.
        clipnorm: Largest norm of the gradient of each variable.
        clipvalue: Largest absolute value of each element of a gradient.
        global_clipnorm: Largest norm of all gradients together. Gradients are clipped after they have
            been summed over the replicas.
        gradient_accumulation_steps: Number of calls whose gradients are averaged for one update.
        loss_scale: For half precision: a factor, or ``"dynamic"`` for one that is halved, and the step
            left out, when a gradient is not finite, and doubled after 2000 finite steps. Differentiate
            ``optimizer.scale_loss(loss)``; gradients are scaled back before they are used.

    >>> import optax
    >>> import stratagem as sg
    >>> w = sg.Variable(3.0)
    >>> optimizer = sg.train.Optimizer(optax.sgd, learning_rate=0.5)
    >>> optimizer.apply({"w": 2.0}, {"w": w})
    >>> float(w), int(optimizer.iterations)
    (2.0, 1)
    >>> optimizer.learning_rate = 0.25
    >>> optimizer.apply_gradients([(2.0, w)])
    >>> float(w)
    1.5
    """

    def __init__(
        self,
        transformation: Any,
        name: str = "optimizer",
        *,
        learning_rate: float | Callable[[Any], Any] | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_accumulation_steps: int | None = None,
        loss_scale: float | str | None = None,
    ) -> None:
        recipe = OptimizerStep(
            transformation,
            learning_rate,
            Clipping(clipnorm, clipvalue, global_clipnorm),
            1 if gradient_accumulation_steps is None else gradient_accumulation_steps,
            None if loss_scale is None else LossScale.of(loss_scale),
        )
        self._set_up(None, recipe, name)
        self._number = next(_numbers)
        self._original = uuid.uuid4().hex

    def _set_up(self, identity: str | None, recipe: OptimizerStep, name: str) -> None:
        self._identity = identity
        self._recipe = recipe
        self.name: str = name
        self._function: bytes | None = None
        self._sent = False
        self._here = StateVariables(recipe, name)
        self._form: Any = None
        self._step = jax.jit(recipe.update)
        self._clip = jax.jit(recipe.clipping.apply)

    @property
    def _id(self) -> str:
        """What all processes call it, also the coordinator that takes over: known when first used."""
        with _known_lock:
            if self._identity is None:
                self._identity = f"{lineage()}/{self._number}"
                _known[self._original] = self
            return self._identity

    if not TYPE_CHECKING:  # a type checker that sees it believes in every name

        def __getattr__(self, name):
            raise missing_method(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        self._sent = True
        return _receive, (self._id, self._original, self._recipe, self.name)

    @property
    def transformation(self) -> Any:
        """What it was made with."""
        return self._recipe.transformation

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold its state; not what is on parameter servers."""
        return list(self._here.held)

    @property
    def updated_variables(self) -> list[Variable]:
        """The variables that it has state for; not those on parameter servers."""
        return list(self._here.of)

    @property
    def server_function(self) -> bytes:
        """What a parameter server needs to take a step of it."""
        if self._function is None:
            self._function = cloudpickle.dumps(OptimizerFunction(self._id, self._recipe.optax()))
        return self._function

    # --- numbers of its own -------------------------------------------------------------------------

    @property
    def iterations(self) -> Any:
        """Number of updates so far; steps that were accumulated or left out do not count.

        Raises:
            UnsupportedError: If the variables are on parameter servers, which count for each variable.
        """
        if not self._here.built and (self._sent or self._function is not None):
            raise UnsupportedError(
                f"The updates of Optimizer {self.name!r} are counted on parameter servers, for each "
                "variable, and not here. Count steps in a variable of your own, by step.assign_add(1) "
                "beside apply_gradients()."
            )
        return self._here.number("iterations", np.int32(0))

    @property
    def learning_rate(self) -> Any:
        """The learning rate: a variable once there is state, or what the schedule gives.

        Raises:
            AttributeError: If it is inside a transformation that does not show it.
        """
        rate = self._recipe.learning_rate
        if callable(rate):
            return rate(self.iterations)
        return self._here.number("learning_rate", None if rate is None else np.float32(rate))

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(self._recipe.learning_rate) or callable(value):
            raise InvalidArgumentError(
                "A schedule is part of the steps that were compiled: it can neither be assigned nor be "
                "replaced. Make the Optimizer with a schedule that says it all, or with a number."
            )
        current = self.learning_rate
        if isinstance(current, Variable):
            current.assign(jnp.asarray(operand_of(value), current.dtype))
            return
        if self._sent or self._function is not None:
            raise UnsupportedError(
                f"The learning rate of Optimizer {self.name!r} is on its way to parameter servers and "
                "workers and cannot be changed any more. Use a schedule."
            )
        number = float(np.asarray(operand_of(value)))
        self._recipe = dataclasses.replace(self._recipe, learning_rate=number)
        self._here.assign_number("learning_rate", np.float32(number))

    def scale_loss(self, loss: Any) -> Any:
        """Returns the loss times the loss scale: what is to be differentiated. See ``loss_scale``.

        Raises:
            VariableError: If ``build`` has not been called yet.
        """
        if self._recipe.loss_scale is None:
            return loss
        if not self._here.built:
            raise VariableError(
                f"Optimizer {self.name!r} has no loss scale yet. Call optimizer.build(variables) before "
                "the first step."
            )
        scale = self._here.number("loss_scale", None).read_value()
        return jax.tree.map(lambda x: x * scale.astype(jnp.result_type(x)), loss)

    # --- applying gradients ---------------------------------------------------------------------------

    def apply(self, gradients: Any, variables: Any = None) -> None:
        """Updates each variable by its gradient, **summed over the replicas**.

        Args:
            gradients: Any structure of gradients, as ``value_and_grad`` returns it.
            variables: The same structure of variables; default those that ``build`` was given, or that
                were updated before.

        Raises:
            VariableError: As ``apply_gradients`` does, and if the structures differ.
        """
        if variables is None:
            if not self._here.built:
                raise VariableError(
                    "apply() without variables updates those that the Optimizer has state for, and there "
                    "are none yet. Give them, or call optimizer.build(variables) before."
                )
            variables = jax.tree.unflatten(self._form, self._here.of)
        found, form = _flatten_variables(variables)
        leaves, other = structures.flatten(
            gradients,
            is_leaf=lambda x: x is None or isinstance(x, IndexedSlices) or is_value_leaf(x),
        )
        if form != other:
            raise VariableError(
                "apply() takes gradients and variables of the same structure, got "
                f"{other} for gradients and {form} for variables."
            )
        self.apply_gradients(zip(leaves, found, strict=True))
        if len(found) == len(self._here.of):
            self._form = form

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> None:
        """Updates each variable by its gradient, **summed over the replicas**.

        Args:
            grads_and_vars: Pairs of a gradient, an array or ``IndexedSlices``, and a variable. Pairs
                without a gradient (``None``) are left out.

        Raises:
            VariableError: If other variables are given than before, parameter servers' apart, or a
                variable twice.
        """
        pairs = [
            (gradient, variable_of(variable))
            for gradient, variable in grads_and_vars
            if gradient is not None
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
            arrays = [_arrays(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]

            def apply(strategy: StrategyProtocol, values: Sequence[Any]) -> None:
                assert isinstance(strategy, Strategy)
                self._reduce_and_apply(strategy, values, variables)

            # Not merge_call: a gradient that is one object in all replicas counts for each, too.
            replica.merge_per_replica("apply_gradients", apply, arrays)

    def _reduce_and_apply(
        self, strategy: Strategy, gradients: Sequence[Any], variables: Sequence[Variable]
    ) -> None:
        reduced = strategy.extended.batch_reduce_to(
            ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        values = [array_of(value) if isinstance(value, Mirrored) else value for value in reduced]
        self._apply(values, variables)

    def _apply(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        remote = [isinstance(variable, RemoteVariable) for variable in variables]
        if any(remote):
            self._check_remote(all(remote))
            if self._recipe.clipping:
                gradients = self._clip(
                    [_arrays(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
                )
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

    def _check_remote(self, all_remote: bool) -> None:
        recipe = self._recipe
        if recipe.accumulation_steps > 1 or recipe.loss_scale is not None:
            raise UnsupportedError(
                "gradient_accumulation_steps and loss_scale need state beside the replicas, but the "
                "variables are on parameter servers, whose workers do not step together. Leave them out."
            )
        if recipe.clipping and not all_remote:
            raise UnsupportedError(
                "Gradients of variables on parameter servers and of others cannot be clipped together. Use "
                "an Optimizer for each group."
            )

    def _update_for(self, gradient: Any) -> Update:
        rows = isinstance(gradient, IndexedSlices)
        return update_on_server(ROW_FUNCTION if rows else WHOLE_FUNCTION, self.server_function)

    # --- variables of this process ----------------------------------------------------------------

    def _apply_here(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        self.build(list(variables))
        values = [variable.read_value() for variable in variables]
        dense = [_dense(*each) for each in zip(gradients, variables, values, strict=True)]
        new_values, new_state = self._step(dense, self._here.read(), values)
        for variable, value in zip(variables, new_values, strict=True):
            variable.assign(value)
        self._here.write(new_state)

    def build(self, variables: Any) -> None:
        """Makes the state for variables that are not on parameter servers, if there is none yet.

        Without it the first step does.

        Args:
            variables: Any structure of variables.

        Raises:
            VariableError: If there is state for other variables.
        """
        found, form = _flatten_variables(variables)
        _check_distinct(found)
        local = [v for v in found if not isinstance(v, RemoteVariable)]
        if len(local) < len(found):
            self._check_remote(not local)
        if local:
            first = not self._here.built
            self._here.build(local)
            if first:
                whole = len(local) == len(found)
                self._form = form if whole else jax.tree.structure([0] * len(local))

    # --- checkpoints --------------------------------------------------------------------------------

    def state_entries(self) -> list[StateEntry] | None:
        """Returns the state of variables that are not on parameter servers, if there is any yet."""
        return self._here.entries()

    def check_state(
        self, restored: RestoredState, name: str, variables: Sequence[Variable] | None = None
    ) -> None:
        """Checks that ``restore_state`` can be called, as far as it is known by now.

        Args:
            restored: The state.
            name: The optimizer's name in messages.
            variables: The variables that the state is for, if they are known.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        self._here.check(restored, name, variables)

    def restore_state(self, restored: RestoredState | None) -> None:
        """Sets the state of variables that are not on parameter servers, also before there is any.

        Args:
            restored: The state; ``None`` for that from before the first step.
        """
        self._here.restore(restored)


def _flatten_variables(variables: Any) -> tuple[list[Variable], Any]:
    leaves, form = structures.flatten(variables, is_leaf=is_variable)
    found = [variable_of(leaf) for leaf in leaves]
    for leaf in found:
        if not isinstance(leaf, Variable):
            raise VariableError(f"An Optimizer updates variables, got {type(leaf).__name__}.")
    name_by_place(variables, found)
    return found, form


def _check_distinct(variables: Sequence[Variable]) -> None:
    counts = collections.Counter(map(id, variables))
    if len(counts) < len(variables):
        twice = next(variable for variable in variables if counts[id(variable)] > 1)
        raise VariableError(
            "apply_gradients takes one gradient for each variable, got "
            f"{counts[id(twice)]} for {twice.name!r}. Add them first, and pass their sum."
        )


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


_numbers = itertools.count()
_known: weakref.WeakValueDictionary[str, Optimizer] = weakref.WeakValueDictionary()
_known_lock = threading.Lock()


def _receive(identity: str, original: str, recipe: OptimizerStep, name: str) -> Optimizer:
    """Returns this process's object for an optimizer that was sent to it."""
    with _known_lock:
        # Not by its id: a coordinator that takes over has one that continues it, and may differ.
        optimizer = _known.get(original)
        if optimizer is None:
            optimizer = Optimizer.__new__(Optimizer)
            optimizer._set_up(identity, recipe, name)
            optimizer._sent = True
            optimizer._original = original
            _known[original] = optimizer
        return optimizer
