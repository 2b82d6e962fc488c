"""``StateVariables``: where the state of an optimizer for variables of this process is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.training.local_state import (
    RestoredState,
    StateEntry,
    StatePlace,
    state_places,
    static_shape,
)
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.training.sharded_update import StepInParts
from stratagem._src.training.state_names import state_variable_names
from stratagem._src.variables import access
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.fully_sharded import MIN_SIZE, FullySharded, placing
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable, counting_once
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["StateVariables"]


class StateVariables:
    """The state of an optimizer, in variables of the strategy whose variables it is for.

    Args:
        recipe: What the optimizer does.
        name: The optimizer's name.
        shard_state: Whether each replica has a part of it, also where it has all of the variables.

    Attributes:
        held: The variables that hold the state.
        of: The variables that it is for.
    """

    def __init__(self, recipe: OptimizerStep, name: str, *, shard_state: bool = False) -> None:
        self._recipe = recipe
        self._shard_state = shard_state
        self._in_parts: StepInParts | None = None
        self._name = name
        self.held: list[Variable] = []
        self.of: list[Variable] = []
        self._structure: Any = None
        self._places: list[StatePlace] = []
        self._reduces_late = False
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
        if self._shard_state:
            _check_divides(variables)
        divided_shapes = {static_shape(v) for v in variables if isinstance(v, FullyShardedVariable)}
        initial = self._initial(variables)
        places = state_places(initial, len(variables))
        leaves, structure = jax.tree.flatten(initial)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._restored is not None:
            leaves = self._restored.fitted(places, leaves, variables, f"Optimizer {self._name!r}")
        shown = state_variable_names(initial, [v.name.removesuffix(":0") for v in variables])
        self._reduces_late = self.reduces_late(variables)
        held = []
        for place, name, leaf in zip(places, shown, leaves, strict=True):
            large = self._shard_state and leaf.size >= MIN_SIZE
            divided = large or leaf.shape in divided_shapes
            with _scope_of(variables), placing(FullySharded(1) if divided else None):
                held.append(self._make_variable(place, leaf, f"{self._name}/{name}"))
        self.held = held
        self.of = list(variables)
        self._structure = structure
        self._places = places
        self._restored = None

    def reduces_late(self, variables: Sequence[Variable]) -> bool:
        """Returns whether gradients are added up apart in each replica, until they are used.

        Not where state lies in parts: each replica would need room for the sums of all gradients.
        """
        divided = any(isinstance(variable, FullyShardedVariable) for variable in variables)
        return self._recipe.reduces_late and not self._shard_state and not divided

    def _make_variable(self, place: StatePlace, value: Any, name: str) -> Variable:
        if not self._is_accumulator(place):
            return Variable(value, trainable=False, name=name)
        with counting_once():
            return Variable(
                value,
                trainable=False,
                name=name,
                synchronization=VariableSynchronization.ON_READ,
                aggregation=VariableAggregation.SUM,
            )

    def _is_accumulator(self, place: StatePlace) -> bool:
        """Returns whether each replica has its own part of what is there."""
        return place.leaf == "accumulated" and self._reduces_late

    @property
    def _accumulators(self) -> list[Variable]:
        pairs = zip(self._places, self.held, strict=True)
        return [variable for place, variable in pairs if self._is_accumulator(place)]

    def accumulate(self, gradients: Sequence[Any]) -> None:
        """Adds a gradient of each variable to the sums, in each replica or once."""
        for variable, gradient in zip(self._accumulators, gradients, strict=True):
            variable.assign_add(gradient)

    def take_sums(self, options: CommunicationOptions | None = None) -> list[Any]:
        """Returns the sums over the replicas, which begin again with zero.

        Args:
            options: How each replica's sums travel.
        """
        held = self._accumulators
        if options is not None and options.dtype is not None:
            replicas = [v for v in held if isinstance(v, SyncOnReadVariable)]
            assert len(replicas) == len(held), "only replicas whose sums are apart exchange them"
            values = [variable.per_replica() for variable in replicas]
            runtime = replicas[0].strategy.extended
            sums = runtime.reduce_values(ReduceOp.SUM, values, options)
        else:
            sums = [variable.read_value() for variable in held]
        for variable, total in zip(self._accumulators, sums, strict=True):
            variable.assign(jnp.zeros_like(total))
        return sums

    def _initial(self, variables: Sequence[Variable]) -> Any:
        with _on_host():
            state = evaluate_now(
                lambda: self._recipe.init([_value_to_begin_with(v) for v in variables])
            )
        return state | {name: np.asarray(value) for name, value in self._assigned.items()}

    def step_in_parts(self) -> StepInParts | None:
        """Returns what takes steps if variables or state lie in parts."""
        frame = access.current_frame()
        held = (*self.held, *self.of)
        divided = next((v for v in held if isinstance(v, FullyShardedVariable)), None)
        if divided is None or (frame is not None and not frame.in_parts):
            return None
        # Workers that form anew have other devices.
        if self._in_parts is None or self._in_parts.group is not divided.group:

            def step(gradients: list[Any], held: list[Any], values: list[Any]) -> Any:
                state = jax.tree.unflatten(self._structure, held)
                new_values, new_state = self._recipe.update(gradients, state, values)
                return new_values, jax.tree.leaves(new_state)

            name = f"step of Optimizer {self._name!r}"
            self._in_parts = StepInParts(step, self.of, self.held, name)
        return self._in_parts

    def read_only(self) -> list[bool]:
        """Returns of each array of the state whether steps only read it."""
        return [place.leaf == "learning_rate" for place in self._places]

    def read(self) -> Any:
        """Returns the state, apart from sums of which each replica has a part."""
        values = [
            None if self._is_accumulator(place) else variable.read_value()
            for place, variable in zip(self._places, self.held, strict=True)
        ]
        return jax.tree.unflatten(self._structure, values)

    def write(self, state: Any) -> None:
        """Sets what ``read`` returns, apart from what steps only read."""
        held = [
            (keep, variable)
            for place, keep, variable in zip(self._places, self.read_only(), self.held, strict=True)
            if not self._is_accumulator(place)
        ]
        for (keep, variable), value in zip(held, jax.tree.leaves(state), strict=True):
            if not keep:
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


def _value_to_begin_with(variable: Variable) -> np.ndarray[Any, Any]:
    """Returns the value of a variable; of state that other workers have and give, only the shape counts."""
    if isinstance(variable, FullyShardedVariable):
        extended = variable.strategy.extended
        assert isinstance(extended, StrategyExtended)
        if extended.expects_values:
            # To read it would take all workers, and the others have done that already.
            return np.zeros(static_shape(variable), variable.dtype)
    return variable.value_on_host()


def _check_divides(variables: Sequence[Variable]) -> None:
    for variable in variables:
        if isinstance(variable, DistributedVariable):
            extended = variable.strategy.extended
            assert isinstance(extended, StrategyExtended)
            extended.check_divides_variables("Optimizer(shard_state=True)")


def _on_host() -> contextlib.AbstractContextManager[Any]:
    """Keeps what is computed in the block off accelerators, none of which might have room for all of it."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX was told to do without
        return contextlib.nullcontext()


@contextlib.contextmanager
def _scope_of(variables: Sequence[Variable]) -> Iterator[None]:
    """Creates variables like these in the block."""
    first = variables[0] if variables else None
    if not isinstance(first, DistributedVariable) or context.get_strategy() is first.strategy:
        yield
    else:
        with first.strategy.scope():
            yield
