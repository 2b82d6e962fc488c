"""``StateVariables``: the variables that hold the state of an optimizer in this process."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.collectives.wire_dtype import split_rounding_errors
from stratagem._src.core.communication_options import CommunicationOptions
from stratagem._src.core.errors import ContextError, VariableError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.jax_compat.compile_time_eval import evaluate_now
from stratagem._src.jax_compat.host_device import on_host
from stratagem._src.strategies.extended import StrategyExtended
from stratagem._src.training.optimizer_state import (
    RestoredState,
    StateEntry,
    StatePlace,
    state_places,
    static_shape,
)
from stratagem._src.training.optimizer_step import OptimizerStep
from stratagem._src.training.sharded_update import ShardedUpdate
from stratagem._src.variables import frames
from stratagem._src.variables.distributed_variable import DistributedVariable
from stratagem._src.variables.fully_sharded import MIN_SIZE, FullySharded, placing
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.laid_out_variable import laid_out_like
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable, counting_once
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["StateVariables", "state_variable_names"]


class StateVariables:
    """The state of an optimizer, in variables of the same strategy as the variables that it updates.

    Args:
        recipe: The optimizer's update rule.
        name: The optimizer's name.
        shard_state: Whether to shard the state over the replicas even if the variables are replicated.

    Attributes:
        recipe: The update rule; once the state exists, that of its variables.
        held: The variables that hold the state.
        of: The variables that the state is for.
    """

    def __init__(self, recipe: OptimizerStep, name: str, *, shard_state: bool = False) -> None:
        self.recipe = recipe
        self._shard_state = shard_state
        self._sharded_update: ShardedUpdate | None = None
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
        """Whether the state exists."""
        return self._structure is not None

    def build(self, variables: Sequence[Variable]) -> None:
        """Creates the state for ``variables``, if there is none yet.

        Raises:
            VariableError: If there is state for other variables.
        """
        if self.built:
            if [id(v) for v in variables] != [id(v) for v in self.of]:
                given, known = [v.name for v in variables], [v.name for v in self.of]
                other = " (other variables of the same names)" if given == known else ""
                raise VariableError(
                    "An Optimizer must always get the same variables in the same order, got "
                    f"{given}{other} after {known}. Use one Optimizer for each group of variables."
                )
            return
        if self._shard_state:
            _check_can_shard(variables)
        self.recipe = self.recipe.for_variables(variables)
        sharded_shapes = {static_shape(v) for v in variables if isinstance(v, FullyShardedVariable)}
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
            sharded = large or leaf.shape in sharded_shapes
            like = variables[place.number or 0] if variables else None
            with (
                _scope_of(variables),
                placing(FullySharded(1) if sharded else None),
                laid_out_like(like),
            ):
                held.append(self._make_variable(place, leaf, f"{self._name}/{name}"))
        self.held = held
        self.of = list(variables)
        self._structure = structure
        self._places = places
        self._restored = None

    def reduces_late(self, variables: Sequence[Variable]) -> bool:
        """Returns whether each replica accumulates its gradients locally until they are used.

        Not with sharded state: each replica would need memory for full, unsharded sums.
        """
        sharded = any(isinstance(variable, FullyShardedVariable) for variable in variables)
        return self.recipe.reduces_late and not self._shard_state and not sharded

    def _make_variable(self, place: StatePlace, value: ArrayLike, name: str) -> Variable:
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
        """Returns whether the entry is a sum that each replica accumulates locally."""
        return place.leaf == "accumulated" and self._reduces_late

    @property
    def _accumulators(self) -> list[Variable]:
        pairs = zip(self._places, self.held, strict=True)
        return [variable for place, variable in pairs if self._is_accumulator(place)]

    def accumulate(self, gradients: Sequence[Any]) -> None:
        """Adds each variable's gradient to the sums, per replica or once."""
        for variable, gradient in zip(self._accumulators, gradients, strict=True):
            variable.assign_add(gradient)

    def take_sums(self, options: CommunicationOptions | None = None) -> list[Any]:
        """Returns the accumulated sums over all replicas, and resets them to zero.

        With error feedback each replica's sum is reset to its rounding error.

        Args:
            options: Communication options for the replicas' sums.
        """
        held = self._accumulators
        rest: list[Any] | None = None
        if options is not None and options.dtype is not None:
            replicas = [v for v in held if isinstance(v, SyncOnReadVariable)]
            assert len(replicas) == len(held), "only per-replica sums are reduced with options"
            values = [variable.per_replica() for variable in replicas]
            runtime = replicas[0].strategy.extended
            if self.recipe.error_feedback:
                values, rest = split_rounding_errors(values, replicas[0].group, options)
            sums = runtime.reduce_values(ReduceOp.SUM, values, options)
        else:
            sums = [variable.read_value() for variable in held]
        for variable, value in zip(held, rest or map(jnp.zeros_like, sums), strict=True):
            variable.assign(value)
        return sums

    def _initial(self, variables: Sequence[Variable]) -> Any:
        with on_host():  # the full state may not fit into the memory of one accelerator
            state = evaluate_now(
                lambda: self.recipe.init([_value_to_begin_with(v) for v in variables])
            )
        return state | {name: np.asarray(value) for name, value in self._assigned.items()}

    def sharded_update(self) -> ShardedUpdate | None:
        """Returns the ``ShardedUpdate`` if variables or state are sharded, else ``None``."""
        frame = frames.current_frame()
        held = (*self.held, *self.of)
        sharded = next((v for v in held if isinstance(v, FullyShardedVariable)), None)
        if sharded is None or (frame is not None and not frame.holds_shards):
            return None
        # After an elastic re-rendezvous the group has other devices, and the program is made again.
        if self._sharded_update is None or self._sharded_update.group is not sharded.group:

            def step(gradients: list[Any], held: list[Any], values: list[Any]) -> Any:
                state = jax.tree.unflatten(self._structure, held)
                new_values, new_state = self.recipe.update(gradients, state, values)
                return new_values, jax.tree.leaves(new_state)

            name = f"step of Optimizer {self._name!r}"
            self._sharded_update = ShardedUpdate(step, self.of, self.held, name)
        return self._sharded_update

    def read_only(self) -> list[bool]:
        """Returns for each array of the state whether steps only read it."""
        return [place.leaf == "learning_rate" for place in self._places]

    def read(self) -> Any:
        """Returns the state, without sums that the replicas accumulate locally."""
        values = [
            None if self._is_accumulator(place) else variable.read_value()
            for place, variable in zip(self._places, self.held, strict=True)
        ]
        return jax.tree.unflatten(self._structure, values)

    def write(self, state: PyTree) -> None:
        """Assigns the state that ``read`` returns, except arrays that steps only read."""
        held = [
            (keep, variable)
            for place, keep, variable in zip(self._places, self.read_only(), self.held, strict=True)
            if not self._is_accumulator(place)
        ]
        for (keep, variable), value in zip(held, jax.tree.leaves(state), strict=True):
            if not keep:
                variable.assign(value)

    # --- hyperparameters and counters ---------------------------------------------------------------

    def number(self, name: str, initial: ArrayLike) -> Any:
        """Returns a scalar of the state: the variable that holds it, or before ``build`` its future value.

        Args:
            name: A key of the state, or a hyperparameter in the state of ``optax.inject_hyperparams``.
            initial: Its initial value; ``None`` if the state may not have this scalar.

        Raises:
            ContextError: If there is no variable yet, so that the value would be compiled in.
            AttributeError: If the state has no such scalar.
        """
        hyperparameter = f".hyperparams[{name!r}]"
        for place, variable in zip(self._places, self.held, strict=True):
            if place.leaf == name or place.leaf.endswith(hyperparameter):
                return variable
        if initial is None:
            raise AttributeError(
                f"Optimizer {self._name!r} does not expose its {name}, which is inside the transformation. "
                f"Create it as Optimizer(optax.adam, {name}=1e-3), or with optax.inject_hyperparams, and "
                "call optimizer.build(variables)."
            )
        if frames.current_frame() is not None:
            raise ContextError(
                f"The {name} of Optimizer {self._name!r} is read in a compiled function before the "
                "optimizer has state, so its value would be compiled in. Call optimizer.build(variables) "
                "first."
            )
        restored = self._restored
        if restored is not None and name in restored.shared:
            return np.asarray(restored.shared[name])
        return self._assigned.get(name, initial)

    def assign_number(self, name: str, value: ArrayLike) -> None:
        """Sets a scalar of the state before ``build``."""
        self._assigned[name] = value
        if self._restored is not None:
            self._restored = self._restored.replace(name, value)

    # --- checkpoints --------------------------------------------------------------------------------

    def entries(self) -> list[StateEntry] | None:
        """Returns all entries of the state, if there is any yet."""
        if not self.built:
            return None if self._restored is None else list(self._restored.entries())
        return [
            StateEntry(place.leaf, None if place.number is None else self.of[place.number], held)
            for place, held in zip(self._places, self.held, strict=True)
        ]

    def check(
        self, restored: RestoredState, name: str, variables: Sequence[Variable] | None
    ) -> None:
        """Checks that ``restore`` can be called, as far as is known now.

        Args:
            restored: The state.
            name: The optimizer's name in messages.
            variables: The variables that the state is for, if known.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        if self.built:
            restored.fitted(self._places, self.held, self.of, name)
        elif variables is not None:
            shapes = [jax.ShapeDtypeStruct(static_shape(v), v.dtype) for v in variables]
            state = jax.eval_shape(self.recipe.for_variables(variables).init, shapes)
            places = state_places(state, len(variables))
            leaves = jax.tree.leaves(state)
            restored.fitted(places, leaves, variables, name)

    def restore(self, restored: RestoredState | None) -> None:
        """Sets the state, even before ``build``; ``None`` resets it to the initial state."""
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
    """Returns a variable's value for ``optax.init``; zeros if other workers provide the state anyway."""
    if isinstance(variable, FullyShardedVariable):
        extended = variable.strategy.extended
        assert isinstance(extended, StrategyExtended)
        if extended.expects_values:
            # A read is a collective of all workers. The others have done it before this worker joined, so
            # it would hang here. Only the shape matters.
            return np.zeros(static_shape(variable), variable.dtype)
    return variable.value_on_host()


def _check_can_shard(variables: Sequence[Variable]) -> None:
    for variable in variables:
        if isinstance(variable, DistributedVariable):
            extended = variable.strategy.extended
            assert isinstance(extended, StrategyExtended)
            extended.check_can_shard_variables("Optimizer(shard_state=True)")


@contextlib.contextmanager
def _scope_of(variables: Sequence[Variable]) -> Iterator[None]:
    """Enters the scope of the strategy of these variables, unless it is current."""
    first = variables[0] if variables else None
    if not isinstance(first, DistributedVariable) or context.get_strategy() is first.strategy:
        yield
    else:
        with first.strategy.scope():
            yield


def state_variable_names(state: PyTree, names: Sequence[str]) -> list[str]:
    """Returns a name for each leaf of an optimizer's state.

    Args:
        state: The state, initialized for a list of values.
        names: The names of the variables of these values.

    >>> import optax
    >>> state = {"iterations": 0, "transformation": optax.adam(0.1).init([0.0])}
    >>> state_variable_names(state, ["kernel"])
    ['iterations', 'count', 'mu/kernel', 'nu/kernel']
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    found = [_name(path, names) for path in paths]
    counts = collections.Counter(found)
    seen: collections.Counter[str] = collections.Counter()
    unique = []
    for name in found:
        seen[name] += 1
        unique.append(f"{name}_{seen[name]}" if counts[name] > 1 and seen[name] > 1 else name)
    return unique


def _name(path: Sequence[Any], names: Sequence[str]) -> str:
    words = [_word(key) for key in path if not isinstance(key, jax.tree_util.SequenceKey)]
    if words[:1] == ["transformation"] and len(words) > 1:
        words = words[1:]
    last = path[-1]
    # The values are a list, so an index at the end of a path is that of a variable.
    if isinstance(last, jax.tree_util.SequenceKey) and last.idx < len(names):
        words.append(names[last.idx])
    return "/".join(words)


def _word(key: ArrayLike) -> str:
    for attribute in ("name", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)
