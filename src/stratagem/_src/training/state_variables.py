"""``StateVariables``: where the state of an optimizer for variables of this process is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import ContextError, VariableError
from stratagem._src.runtime import context
from stratagem._src.training.local_state import (
    RestoredState,
    StateEntry,
    StatePlace,
    state_places,
    static_shape,
)
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.training.state_names import state_variable_names
from stratagem._src.variables import access
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["StateVariables"]


class StateVariables:
    """The state of an optimizer, in variables of the strategy whose variables it is for.

    Args:
        recipe: What the optimizer does.
        name: The optimizer's name.

    Attributes:
        held: The variables that hold the state.
        of: The variables that it is for.
    """

    def __init__(self, recipe: OptimizerStep, name: str) -> None:
        self._recipe = recipe
        self._name = name
        self.held: list[Variable] = []
        self.of: list[Variable] = []
        self._structure: Any = None
        self._places: list[StatePlace] = []
        self._restored: RestoredState | None = None
        self._assigned: dict[str, Any] = {}

    @property
    def built(self) -> bool:
        """Whether there is any."""
        return self._structure is not None

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes the state for ``variables``, if there is none yet.

        Raises:
            VariableError: If there is state for other variables.
        """
        if self.built:
            if [id(v) for v in variables] != [id(v) for v in self.of]:
                raise VariableError(
                    "An Optimizer is always given the same variables in the same order, got "
                    f"{[v.name for v in variables]} after {[v.name for v in self.of]}. Use one "
                    "Optimizer for each group of variables."
                )
            return
        with jax.ensure_compile_time_eval():
            initial = self._initial(variables)
        places = state_places(initial, len(variables))
        leaves, structure = jax.tree.flatten(initial)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._restored is not None:
            leaves = self._restored.fitted(places, leaves, variables, f"Optimizer {self._name!r}")
        shown = state_variable_names(initial, [v.name.removesuffix(":0") for v in variables])
        with _scope_of(variables):
            self.held = [
                self._make_variable(place, leaf, f"{self._name}/{name}")
                for place, name, leaf in zip(places, shown, leaves, strict=True)
            ]
        self.of = list(variables)
        self._structure = structure
        self._places = places
        self._restored = None

    def _make_variable(self, place: StatePlace, value: Any, name: str) -> Variable:
        if not self._is_accumulator(place):
            return Variable(value, trainable=False, name=name)
        made = Variable(
            value,
            trainable=False,
            name=name,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )
        if isinstance(made, SyncOnReadVariable):
            made.add_once_across_replicas()
            made.restore_total(np.asarray(value))  # not assigned: a step may be traced now
        return made

    def _is_accumulator(self, place: StatePlace) -> bool:
        """Returns whether each replica has its own part of what is there."""
        return place.leaf == "accumulated" and self._recipe.reduces_late

    @property
    def _accumulators(self) -> list[Variable]:
        pairs = zip(self._places, self.held, strict=True)
        return [variable for place, variable in pairs if self._is_accumulator(place)]

    def accumulate(self, gradients: Sequence[Any]) -> None:
        """Adds a gradient of each variable to the sums, in each replica or once."""
        for variable, gradient in zip(self._accumulators, gradients, strict=True):
            variable.assign_add(gradient)

    def take_sums(self) -> list[Any]:
        """Returns the sums over the replicas, which begin again with zero."""
        sums = [variable.read_value() for variable in self._accumulators]
        for variable, total in zip(self._accumulators, sums, strict=True):
            variable.assign(jnp.zeros_like(total))
        return sums

    def _initial(self, variables: Sequence[Variable]) -> Any:
        state = self._recipe.init([np.asarray(v._eager_value()) for v in variables])
        return state | {name: np.asarray(value) for name, value in self._assigned.items()}

    def read(self) -> Any:
        """Returns the state, apart from sums of which each replica has a part."""
        values = [
            None if self._is_accumulator(place) else variable.read_value()
            for place, variable in zip(self._places, self.held, strict=True)
        ]
        return jax.tree.unflatten(self._structure, values)

    def write(self, state: Any) -> None:
        """Sets what ``read`` returns, apart from the learning rate, which steps only read."""
        held = [
            (place, variable)
            for place, variable in zip(self._places, self.held, strict=True)
            if not self._is_accumulator(place)
        ]
        for (place, variable), value in zip(held, jax.tree.leaves(state), strict=True):
            if place.leaf != "learning_rate":
                variable.assign(value)

    # --- numbers ------------------------------------------------------------------------------------

    def number(self, name: str, initial: Any) -> Any:
        """Returns a number of the state: the variable that holds it, or its value before there is any.

        Args:
            name: Its name: a key of the state, or a hyperparameter that optax keeps in its own.
            initial: What it will be; ``None`` if the state may have no such number.

        Raises:
            ContextError: If there is no variable yet, and the value would be compiled in.
            AttributeError: If there is no such number.
        """
        hyperparameter = f".hyperparams[{name!r}]"
        for place, variable in zip(self._places, self.held, strict=True):
            if place.leaf == name or place.leaf.endswith(hyperparameter):
                return variable
        if initial is None:
            raise AttributeError(
                f"Optimizer {self._name!r} does not show its {name}, which is inside the transformation. "
                f"Make it by Optimizer(optax.adam, {name}=1e-3), or with optax.inject_hyperparams, and "
                "call optimizer.build(variables)."
            )
        if access.current_frame() is not None:
            raise ContextError(
                f"The {name} of Optimizer {self._name!r} is asked for in a compiled function before the "
                "optimizer has state, so that it would be compiled in. Call optimizer.build(variables) "
                "first."
            )
        restored = self._restored
        if restored is not None and name in restored.shared:
            return np.asarray(restored.shared[name])
        return self._assigned.get(name, initial)

    def assign_number(self, name: str, value: Any) -> None:
        """Says what a number of the state will be, before there is any."""
        self._assigned[name] = value
        if self._restored is not None:
            self._restored = self._restored.replace(name, value)

    # --- checkpoints --------------------------------------------------------------------------------

    def entries(self) -> list[StateEntry] | None:
        """Returns everything that there is of the state, if there is any yet."""
        if not self.built:
            return None if self._restored is None else list(self._restored.entries())
        return [
            StateEntry(place.leaf, None if place.number is None else self.of[place.number], held)
            for place, held in zip(self._places, self.held, strict=True)
        ]

    def check(
        self, restored: RestoredState, name: str, variables: Sequence[Variable] | None
    ) -> None:
        """Checks that ``restore`` can be called, as far as it is known by now.

        Args:
            restored: The state.
            name: The optimizer's name in messages.
            variables: The variables that the state is for, if they are known.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        if self.built:
            restored.fitted(self._places, self.held, self.of, name)
        elif variables is not None:
            shapes = [jax.ShapeDtypeStruct(static_shape(v), v.dtype) for v in variables]
            state = jax.eval_shape(self._recipe.init, shapes)
            places = state_places(state, len(variables))
            leaves = jax.tree.leaves(state)
            restored.fitted(places, leaves, variables, name)

    def restore(self, restored: RestoredState | None) -> None:
        """Sets the state, also before there is any; to that from before the first step if ``None``."""
        if not self.built:
            self._restored = restored
            return
        initial = jax.tree.leaves(self._initial(self.of)) if restored is None else self.held
        values: Sequence[Any] = initial
        if restored is not None:
            values = restored.fitted(self._places, self.held, self.of, f"Optimizer {self._name!r}")
        for variable, value in zip(self.held, values, strict=True):
            variable.assign(np.asarray(value))


@contextlib.contextmanager
def _scope_of(variables: Sequence[Variable]) -> Iterator[None]:
    """Creates variables like these in the block."""
    first = variables[0] if variables else None
    if not isinstance(first, DistributedVariable) or context.get_strategy() is first.strategy:
        yield
    else:
        with first.strategy.scope():
            yield
