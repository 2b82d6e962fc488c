"""``PlacedVariable``: a Keras variable whose value is that of a variable of ours."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Protocol, Self

import keras
import numpy as np

from stratagem._src.core.errors import ContextError, UnsupportedError, VariableError
from stratagem._src.current_strategy import context
from stratagem._src.integrations.keras.keras_internals import COMMON_VARIABLE, in_stateless_scope
from stratagem._src.integrations.keras.replicas import eager_replica, one_of_several
from stratagem._src.strategies.base import Strategy
from stratagem._src.strategies.mirrored import MirroredExtended
from stratagem._src.variables import access as state
from stratagem._src.variables.atomicity import STORAGE_LOCK
from stratagem._src.variables.distributed_variable import AggregatingVariable
from stratagem._src.variables.fully_sharded_variable import FullyShardedVariable
from stratagem._src.variables.mirrored_variable import MirroredVariable
from stratagem._src.variables.sync_on_read_variable import SyncOnReadVariable, counting_once
from stratagem._src.variables.variable import Variable
from stratagem._src.variables.variable_options import VariableAggregation, VariableSynchronization

__all__ = ["PlacedVariable", "Taken", "check_strategy", "strategy_of"]

_read = COMMON_VARIABLE.value.fget
_AGGREGATIONS = {
    "sum": VariableAggregation.SUM,
    "mean": VariableAggregation.MEAN,
    "only_first_replica": VariableAggregation.ONLY_FIRST_REPLICA,
}


class Taken(Protocol):
    """Where the value of a variable is while it is not in the variable."""

    def value(self) -> Any | None:
        """Returns it, or ``None`` if it is not there."""

    def give_back(self) -> None:
        """Puts it into the variable."""


class PlacedVariable(keras.Variable):  # type: ignore[misc]
    """A Keras variable that was created in the scope of a strategy.

    Its value is that of ``twin``, a variable of the strategy, and of nothing else: Keras and this
    library see the same state, in replicas, in compiled functions and outside. Weights are mirrored;
    the state of metrics, which Keras synchronizes on read, has a value in each replica.

    Attributes:
        strategy: The strategy.
        twin: Our variable; ``None`` until Keras gives the first value.
        taken: Who has the value while Keras takes a model from step to step.
    """

    strategy: Strategy
    twin: Variable | None = None
    taken: Taken | None = None
    _known: tuple[Any, Any] | None = None

    # --- the first value --------------------------------------------------------------------------

    def _initialize(self, value: Any) -> None:
        self._shape = self._validate_shape(value.shape)
        self._create_twin(value)

    def _initialize_with_initializer(self, initializer: Callable[..., Any]) -> None:
        self._create_twin(
            lambda: self._convert_to_tensor(initializer(self._shape, dtype=self._dtype))
        )

    def _create_twin(self, value: Any) -> None:
        if self.twin is not None:  # it was there first: see variable_views.py
            return
        if eager_replica() is not None:
            raise ContextError(
                f"Keras variable {self._path!r} is created by one of several replicas that run "
                "eagerly, each of which would make its own. Build layers, optimizers and metrics "
                "before strategy.run(), for example by model.build(input_shape) or keras.Input(...) "
                "and optimizer.build(model.trainable_variables) in the strategy's scope."
            )
        on_read = self._synchronization == "on_read"
        # Keras gives the state of a metric as one value, whatever the number of replicas.
        with context.enter(context.Frame(self.strategy, None)), counting_once():
            self.twin = self.strategy.extended.create_variable(
                value,
                trainable=self._trainable,
                name=self._path,
                synchronization=VariableSynchronization.ON_READ
                if on_read
                else VariableSynchronization.AUTO,
                aggregation=self._twin_aggregation(),
            )

    def _twin_aggregation(self) -> VariableAggregation:
        if self._aggregation in _AGGREGATIONS:
            return _AGGREGATIONS[self._aggregation]
        # Running statistics, such as those of BatchNormalization, which says nothing about it.
        statistic = not self._trainable and keras.backend.is_float_dtype(self._dtype)
        return VariableAggregation.MEAN if statistic else VariableAggregation.NONE

    # --- reading and updating ---------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The current value: the replica's own in a replica, traced where a function is traced."""
        if self.twin is None or in_stateless_scope():
            return _read(self)
        return self._maybe_autocast(self._value)

    @property
    def _value(self) -> Any:
        twin = self.twin
        if twin is None:
            return None
        if state.current_frame() is not None:
            self.release()
            return twin._value()
        return state.noted_read(twin, self._eager_value(twin))

    @_value.setter
    def _value(self, value: Any) -> None:
        if self.twin is not None:
            # Keras forgets values (None) that it is about to replace; the twin keeps them.
            if value is not None:
                self._direct_assign(value)
        elif value is not None:
            self._create_twin(value)

    def _eager_value(self, twin: Variable) -> Any:
        taken = self.taken
        if taken is not None and (value := taken.value()) is not None:
            return value
        if (known := self.known_value()) is not None:
            return known
        # Not refused inside jax.jit and the like, as for variables of ours: Keras reads weights in
        # lax.scan (recurrent layers) and while it infers shapes.
        if not isinstance(twin, MirroredVariable):
            return twin._eager_value()
        # Another thread may take the array just now, and then its first step would donate what is read
        # here. Under the lock it is either still the variable's, which notes that it is shared, or taken.
        with STORAGE_LOCK:
            if self.taken is None or self.taken is taken:
                return twin._eager_value()
        return self._eager_value(twin)

    def _direct_assign(self, value: Any) -> None:
        self._check_aggregated("assign")
        self.own_twin().assign(value)

    def assign_add(self, value: Any) -> Any:
        """Adds ``value``; in replicas, what they add becomes one as the aggregation says."""
        return self._increase("assign_add", value)

    def assign_sub(self, value: Any) -> Any:
        """Subtracts ``value``; likewise."""
        return self._increase("assign_sub", value)

    def _increase(self, method: str, value: Any) -> Any:
        if in_stateless_scope() or not isinstance(self.twin, AggregatingVariable):
            return getattr(super(), method)(value)
        self.release()
        self._check_aggregated(method)
        getattr(self.twin, method)(self._convert_to_tensor(value, dtype=self._dtype))
        return self.value

    def assign_equal(self, value: Any) -> None:
        """Sets a value that every replica has computed from what is the same in all of them."""
        twin, frame = self.own_twin(), state.current_frame()
        if frame is None:
            twin.commit(value)
        else:
            frame.check_writable(twin)
            if isinstance(twin, FullyShardedVariable):
                frame.write_whole(twin, value)
            else:
                frame.write(twin, value)

    def _check_aggregated(self, method: str) -> None:
        twin = self.own_twin()
        if one_of_several() is None or twin.aggregation is not VariableAggregation.NONE:
            return
        if isinstance(twin, AggregatingVariable):
            raise VariableError(
                f"{method}() of Keras variable {self._path!r} in replica context needs an aggregation, "
                "because the replicas' values may differ. Create it with add_weight(..., "
                "aggregation='mean') (or 'sum', or 'only_first_replica'), update it by an optimizer, or "
                "in cross-replica context."
            )

    def note_value(self, value: Any) -> None:
        """Notes what the replicas' values that have just been stored are together.

        With several workers they would have to meet to find out. But a callback on one of them alone, as
        ``ModelCheckpoint`` on the leader, may have a model's values stored between two steps.
        """
        if isinstance(self.twin, SyncOnReadVariable):
            self._known = (self.twin.stored_now(), value)

    def known_value(self) -> Any | None:
        """Returns what was noted, if nothing has been stored since then, and not one replica asks."""
        if self._known is None or not isinstance(self.twin, SyncOnReadVariable):
            return None
        stored, value = self._known
        unchanged = stored is not None and self.twin.stored_now() is stored
        return value if unchanged and one_of_several() is None else None

    def release(self) -> None:
        """Has the variable hold its value itself, if Keras has taken it from there for steps."""
        if self.taken is not None:
            self.taken.give_back()

    def own_twin(self) -> Variable:
        """Returns the twin, which then holds the value.

        Raises:
            VariableError: If Keras has not given it a first value yet.
        """
        if self.twin is None:
            raise VariableError(
                f"Keras variable {self._path!r} has no value yet. Build the layer that it belongs to."
            )
        self.release()
        return self.twin

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        # Keras' own lacks `copy`, of which NumPy warns.
        return np.array(self.value, dtype, copy=copy)

    # --- copies -----------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        self.release()
        memo[id(self)] = made = object.__new__(type(self))
        for name, content in self.__dict__.items():
            made.__dict__[name] = content if name == "strategy" else copy.deepcopy(content, memo)
        return made

    def __setstate__(self, content: dict[str, Any]) -> None:
        """Takes what an ordinary variable is made of, when one is copied in a scope."""
        value = content.pop("_value", None)
        self.__dict__.update(content)
        self._value = value


# Keras names variables that have no name after their class.
PlacedVariable.__name__ = keras.Variable.__name__


def check_strategy(strategy: Strategy) -> None:
    """Checks that Keras can be used under a strategy.

    Raises:
        UnsupportedError: If not.
    """
    if context.has_strategy() and not isinstance(strategy.extended, MirroredExtended):
        raise UnsupportedError(
            f"Keras needs variables that every replica has a copy of, and {type(strategy).__name__} "
            "places them elsewhere. Create Keras objects in the scope of a MirroredStrategy, "
            "MultiWorkerMirroredStrategy, TPUStrategy or OneDeviceStrategy, or write the model with "
            "stratagem.Variable."
        )


def strategy_of(variables: Iterable[Any]) -> Strategy | None:
    """Returns the strategy in whose scope Keras variables were created; ``None`` if in no scope.

    Raises:
        ContextError: If they do not all belong together.
    """
    owners: dict[int, tuple[Any, Any]] = {}
    for variable in variables:
        owner = getattr(variable, "strategy", None)
        if owner is context.default_frame().strategy:
            owner = None
        owners.setdefault(id(owner), (owner, variable))
    if len(owners) > 1:
        (one, first), (other, second) = list(owners.values())[:2]
        raise ContextError(
            "Keras variables that are used together must be created in one scope, got "
            f"{first.path!r} {_created(one)} and {second.path!r} {_created(other)}. Create the model, "
            "its optimizer and its metrics inside the same `with strategy.scope():`."
        )
    return next(iter(owners.values()))[0] if owners else None


def _created(strategy: Strategy | None) -> str:
    return "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
