"""``OptimizerStep``: the update rule of an optimizer, as a pure function of its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, PyTree, Tensor
from stratagem._src.training.gradient_clipping import NO_CLIPPING, Clipping
from stratagem._src.training.keyless_transformation import KeylessTransformation
from stratagem._src.training.loss_scaling import LossScale, all_finite
from stratagem._src.training.precision_policy import PrecisionPolicy
from stratagem._src.training.weight_decay_filter import WeightDecayFilter
from stratagem._src.variables.variable import Variable

__all__ = ["OptimizerStep", "scaled"]

State = dict[str, Any]


@dataclass(frozen=True)
class OptimizerStep:
    """The options of an optimizer and its update rule.

    The state is a dictionary with ``iterations``, the number of updates; ``transformation``, the state
    of the optax transformation; and, if the options need them, ``learning_rate``, ``accumulated`` and
    ``accumulated_steps``, ``loss_scale`` and ``finite_steps``.

    Attributes:
        transformation: An optax transformation, or with a learning rate a factory of one.
        learning_rate: A number, or a schedule: a function of the number of updates.
        clipping: Gradient clipping.
        accumulation_steps: Number of calls whose gradients are averaged for one update.
        loss_scale: The loss scaling, if any.
        error_feedback: Whether each replica keeps what rounding for the wire takes from its gradients, and
            adds it to the next ones.
        gradient_reduction: How the gradients of several replicas are combined: ``SUM`` or ``MEAN``.
        precision: The precision policy, if any. With one, gradients are unscaled already.
        decay_filter: Says which variables' weights decay, if the program does.
        decays: Whether the weights of each variable decay, or of the one variable; ``None`` for what the
            transformation does by itself.
    """

    transformation: Any
    learning_rate: float | Callable[[Any], Any] | None = None
    clipping: Clipping = NO_CLIPPING
    accumulation_steps: int = 1
    loss_scale: LossScale | None = None
    error_feedback: bool = False
    gradient_reduction: ReduceOp = ReduceOp.SUM
    precision: PrecisionPolicy | None = None
    decay_filter: WeightDecayFilter | None = None
    decays: tuple[bool, ...] | bool | None = None

    def __post_init__(self) -> None:
        complete = hasattr(self.transformation, "init") and hasattr(self.transformation, "update")
        if self.learning_rate is not None and (complete or not callable(self.transformation)):
            raise InvalidArgumentError(
                "With a learning_rate an Optimizer needs a factory of transformations, as in "
                f"Optimizer(optax.adam, learning_rate=1e-3), got {self.transformation!r}."
            )
        if self.learning_rate is None and not complete:
            raise InvalidArgumentError(
                "Optimizer needs an optax transformation, such as optax.adam(1e-3), or "
                f"Optimizer(optax.adam, learning_rate=1e-3), got {self.transformation!r}."
            )
        if self.accumulation_steps < 1:
            raise InvalidArgumentError(
                "gradient_accumulation_steps must be a number of calls for one update, at least 1, got "
                f"{self.accumulation_steps}."
            )
        if self.error_feedback and self.loss_scale is not None:
            raise InvalidArgumentError(
                "error_feedback must be used without a loss_scale, which may change between the step that "
                "rounds a gradient and the one that adds the rounding error. Use bfloat16, which needs no "
                "loss scale, or leave error_feedback out."
            )
        if self.gradient_reduction not in (ReduceOp.SUM, ReduceOp.MEAN):
            raise InvalidArgumentError(
                'gradient_reduction must be "sum" or "mean", over the replicas, got '
                f"{self.gradient_reduction.name!r}."
            )

        if self.decay_filter is not None:
            self.decay_filter.check(self.transformation, has_factory=self.learning_rate is not None)

    def for_variables(self, variables: Sequence[Variable]) -> OptimizerStep:
        """Returns the step of these variables, whose names say whether their weights decay."""
        if self.decay_filter is None:
            return self
        return replace(self, decays=self.decay_filter.decays(variables))

    def for_one_variable(self, variable: Variable) -> OptimizerStep:
        """Returns the step of one variable, which a parameter server takes."""
        if self.decay_filter is None:
            return self
        return replace(self, decays=self.decay_filter.decays_one(variable))

    @property
    def reduces_late(self) -> bool:
        """Whether each replica may accumulate its gradients locally until they are used.

        Not with a loss scale: every gradient is divided by the current scale, and all replicas must see the
        same overflows.
        """
        return self.has_sums and self.loss_scale is None

    @property
    def has_sums(self) -> bool:
        """Whether the state has sums of gradients. With error feedback, rounding errors remain in them."""
        return self.accumulation_steps > 1 or self.error_feedback

    def optax(self, learning_rate: ArrayLike = None) -> KeylessTransformation:
        """Returns the transformation with a learning rate. Default: the initial one."""
        if self.learning_rate is None:
            return KeylessTransformation(self.transformation)
        rate = self.learning_rate if learning_rate is None else learning_rate
        mask = {}
        if self.decay_filter is not None and self.decays is not None:
            mask = self.decay_filter.mask(self.transformation, self.decays)
        return KeylessTransformation(self.transformation(learning_rate=rate, **mask))

    def init(self, values: Sequence[Any]) -> State:
        """Returns the initial state for variables with these values."""
        rate: Any = self.learning_rate
        if callable(rate):
            rate = rate(jnp.zeros((), jnp.int32))
        if rate is not None:
            rate = jnp.asarray(rate, jnp.float32)
        state: State = {"iterations": jnp.zeros((), jnp.int32)}
        state["transformation"] = self.optax(rate).init(list(values))
        if rate is not None and not callable(self.learning_rate):
            state["learning_rate"] = rate
        if self.has_sums:
            state["accumulated"] = [jnp.zeros(np.shape(v), v.dtype) for v in values]
            state["accumulated_steps"] = jnp.zeros((), jnp.int32)
        if self.loss_scale is not None:
            state["loss_scale"] = jnp.asarray(self.loss_scale.initial, jnp.float32)
            if self.loss_scale.dynamic:
                state["finite_steps"] = jnp.zeros((), jnp.int32)
        return state

    def update(
        self, gradients: list[Any], state: State, values: list[Any]
    ) -> tuple[list[Any], State]:
        """Returns the next values of the variables, and the next state."""
        if self.loss_scale is None:
            return self._accumulate(gradients, state, values)
        if self.precision is None:
            factor = 1 / state["loss_scale"]
            gradients = [scaled(gradient, factor) for gradient in gradients]
        if not self.loss_scale.dynamic:
            return self._accumulate(gradients, state, values)
        scale = self.loss_scale

        def step(gradients: list[Any], state: State, values: list[Any]) -> tuple[list[Any], State]:
            after = scale.after_finite(state["loss_scale"], state["finite_steps"])
            values, state = self._accumulate(gradients, state, values)
            return values, state | dict(zip(("loss_scale", "finite_steps"), after, strict=True))

        def skip(_: list[Any], state: State, values: list[Any]) -> tuple[list[Any], State]:
            after = scale.after_overflow(state["loss_scale"], state["finite_steps"])
            return values, state | dict(zip(("loss_scale", "finite_steps"), after, strict=True))

        return _cond(all_finite(gradients), step, skip, gradients, state, values)

    def update_with_sums(
        self, sums: list[Any], state: State, values: list[Any]
    ) -> tuple[list[Any], State]:
        """Like ``update``, given the summed gradients of ``accumulation_steps`` calls.

        The state has no ``accumulated``.
        """
        means = [scaled(total, 1 / self.accumulation_steps) for total in sums]
        values, state = self._take_step(means, state, values)
        return values, state | {"accumulated_steps": jnp.zeros_like(state["accumulated_steps"])}

    def _accumulate(
        self, gradients: list[Any], state: State, values: list[Any]
    ) -> tuple[list[Any], State]:
        if not self.has_sums:
            return self._take_step(gradients, state, values)
        steps = state["accumulated_steps"] + 1
        sums = [a + g for a, g in zip(state["accumulated"], gradients, strict=True)]

        def step(sums: list[Any], state: State, values: list[Any]) -> tuple[list[Any], State]:
            values, state = self.update_with_sums(sums, state, values)
            return values, state | {"accumulated": jax.tree.map(jnp.zeros_like, sums)}

        def keep(sums: list[Any], state: State, values: list[Any]) -> tuple[list[Any], State]:
            return values, state | {"accumulated": sums, "accumulated_steps": steps}

        return _cond(steps == self.accumulation_steps, step, keep, sums, state, values)

    def _take_step(
        self, gradients: list[Any], state: State, values: list[Any]
    ) -> tuple[list[Any], State]:
        if self.clipping:
            gradients = self.clipping.apply(gradients)
        iterations = state["iterations"]
        rate = state.get("learning_rate")
        if callable(self.learning_rate):
            rate = self.learning_rate(iterations)
        updates, inner = self.optax(rate).update(gradients, state["transformation"], values)
        new = [(value + u).astype(value.dtype) for value, u in zip(values, updates, strict=True)]
        return new, state | {"transformation": inner, "iterations": iterations + 1}


def _cond(
    predicate: Tensor,
    step: Callable[..., tuple[list[Any], State]],
    otherwise: Callable[..., tuple[list[Any], State]],
    gradients: list[Any],
    state: State,
    values: list[Any],
) -> tuple[list[Any], State]:
    # Both branches of lax.cond must return the same dtypes, but transformations may change weak types.
    kinds = jax.tree.map(lambda x: jnp.asarray(x).dtype, state)

    def settled(branch: Callable[..., tuple[list[Any], State]]) -> Callable[..., Any]:
        def call(*args: PyTree) -> tuple[list[Any], State]:
            values, after = branch(*args)
            return values, jax.tree.map(lambda x, kind: jnp.asarray(x).astype(kind), after, kinds)

        return call

    result: tuple[list[Any], State] = jax.lax.cond(
        predicate, settled(step), settled(otherwise), gradients, state, values
    )
    return result


def scaled(gradient: ArrayLike, factor: float | Tensor) -> Any:
    """Returns a gradient times a factor, computed in float32 or wider, in the gradient's dtype."""
    wide = gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32))
    return (wide * factor).astype(gradient.dtype)
