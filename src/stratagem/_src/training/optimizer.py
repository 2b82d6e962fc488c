"""``Optimizer``: applies gradients to variables of any kind with an optax transformation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from stratagem._src.core.errors import InvalidArgumentError, UnsupportedError, VariableError
from stratagem._src.core.missing_names import missing_method, tensorflow_method
from stratagem._src.core.reduce_op import ReduceOp
from stratagem._src.core.types import ArrayLike, GradientTransformation, PyTree
from stratagem._src.current_strategy import context
from stratagem._src.current_strategy.protocols import StrategyProtocol
from stratagem._src.execution.gradients import value_and_grad
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.gradient_clipping import Clipping
from stratagem._src.training.gradient_pairs import (
    check_distinct,
    dense_gradient,
    flatten_variables,
    gradient_arrays,
    gradients_like,
    split_pairs,
)
from stratagem._src.training.local_optimizer_step import LocalOptimizerStep
from stratagem._src.training.loss_scaling import LossScale
from stratagem._src.training.optimizer_state import RestoredState, StateEntry
from stratagem._src.training.optimizer_step import OptimizerStep, scaled
from stratagem._src.training.precision_policy import (
    PrecisionPolicy,
    differentiate_in,
    warn_of_full_precision,
)
from stratagem._src.training.server_updates import ServerUpdates, check_on_servers, received
from stratagem._src.training.state_variables import StateVariables
from stratagem._src.training.summed_means import warn_of_large_sums, warn_of_small_means
from stratagem._src.training.weight_decay_filter import WeightDecayFilter
from stratagem._src.values.array_operators import array_of, operand_of
from stratagem._src.values.mirrored import Mirrored
from stratagem._src.variables.fully_sharded_variable import ShardedOperand
from stratagem._src.variables.variable import Variable, is_own_variable

__all__ = ["Optimizer"]


class Optimizer:
    """Applies gradients to variables with an optax transformation, wherever the variables are.

    **By default the replicas' gradients are summed, not averaged.** So a replica's loss must be its part of
    the loss of the global batch: divide by the global batch size, as ``sg.nn.compute_average_loss`` does.
    If each replica's loss is a mean over its own examples, use ``gradient_reduction="mean"``.

    A variable on a parameter server is updated there: the gradient is sent, and the optimizer state stays
    on the server, shard by shard. For an ``IndexedSlices`` gradient, such as that of an embedding table,
    only the given rows and their state are updated. The state for all other variables is stored in
    variables of their strategy, and the transformation sees them together.

    Args:
        transformation: An optax ``GradientTransformation`` such as ``optax.adam(1e-3)``; or, with a
            ``learning_rate``, a factory such as ``optax.adam``. For variables on parameter servers its
            result for one variable must not depend on others.
        name: Name of its state in checkpoints and messages.
        learning_rate: A number, which can be changed later by assigning to ``learning_rate``; or a
            schedule, a function of the number of updates.
        clipnorm: Maximum norm of each variable's gradient.
        clipvalue: Maximum absolute value of each element of a gradient.
        global_clipnorm: Maximum norm of all gradients together. Gradients are clipped after they are
            summed over the replicas.
        gradient_accumulation_steps: Number of calls whose gradients are averaged for one update.
        loss_scale: Loss scaling for half (mixed) precision: a factor, or ``"dynamic"``. A dynamic factor is
            halved, and the step skipped, when a gradient is not finite; it is doubled after 2000 finite
            steps. Differentiate ``optimizer.scale_loss(loss)``; gradients are unscaled before use.
        shard_state: Whether each replica stores and updates only a shard of the state (ZeRO-1), which
            saves memory. Results do not change, for any transformation. The state of fully sharded
            variables (``FullySharded``) is always sharded.
        error_feedback: Whether each replica adds the rounding errors of its gradients to those of the next
            step, where ``CommunicationOptions(dtype=...)`` rounds gradients for the wire. Over many steps
            nothing is lost then. It takes the memory of one more gradient, is saved as the sum over the
            replicas, and has no effect where gradients are not rounded. Not with ``loss_scale`` or sharded
            state.
        gradient_reduction: How the gradients of the replicas are combined: ``"sum"``, or ``"mean"`` as
            PyTorch DDP and hand-written ``jax.lax.pmean`` do. No effect on gradients that are already
            reduced: in cross-replica context, or with ``experimental_aggregate_gradients=False``.
        precision: Mixed precision for the method ``value_and_grad``: ``"mixed_bfloat16"``,
            ``"mixed_float16"``, which has a dynamic loss scale, or a ``PrecisionPolicy``. Variables,
            their gradients and the optimizer state stay in the dtype of the variables.
        exclude_from_weight_decay: Regular expressions: weights of variables in whose name one has a match
            do not decay. Names are paths, such as ``"encoder/norm/scale"``; that of a Keras variable is its
            ``path``. Needs a factory with a mask, such as ``optax.adamw``, and a ``learning_rate``.

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
        transformation: GradientTransformation,
        name: str = "optimizer",
        *,
        learning_rate: float | Callable[[Any], Any] | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        gradient_accumulation_steps: int | None = None,
        loss_scale: float | str | None = None,
        shard_state: bool = False,
        error_feedback: bool = False,
        gradient_reduction: str | ReduceOp = "sum",
        precision: str | PrecisionPolicy | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
    ) -> None:
        policy = None if precision is None else PrecisionPolicy.of(precision)
        if policy is not None and loss_scale is None:
            loss_scale = policy.loss_scale
        if error_feedback and shard_state:
            raise InvalidArgumentError(
                "error_feedback must be used without shard_state=True: it needs the memory of a full "
                "gradient in each replica. Leave one of them out."
            )
        recipe = OptimizerStep(
            transformation,
            learning_rate,
            Clipping(clipnorm, clipvalue, global_clipnorm),
            1 if gradient_accumulation_steps is None else gradient_accumulation_steps,
            None if loss_scale is None else LossScale.of(loss_scale),
            error_feedback,
            ReduceOp(gradient_reduction),
            precision=policy,
            decay_filter=WeightDecayFilter.of(exclude_from_weight_decay),
        )
        self._set_up(ServerUpdates(self), recipe, name, shard_state)

    if not TYPE_CHECKING:

        def __new__(cls, *args, **kwargs):
            _check_no_habit_of_torch(args, kwargs)
            return super().__new__(cls)

    def _set_up(
        self, on_servers: ServerUpdates, recipe: OptimizerStep, name: str, shard_state: bool
    ) -> None:
        self._on_servers = on_servers
        self._recipe = recipe
        self.name: str = name
        self._shard_state = shard_state
        self._here = StateVariables(recipe, name, shard_state=shard_state)
        self._form: Any = None
        self._is_compared = False
        self._updates_here = LocalOptimizerStep(recipe, self._here)
        self._clip = jax.jit(recipe.clipping.apply)

    if not TYPE_CHECKING:  # a type checker that sees them believes in every name

        def __getattr__(self, name):
            raise missing_method(self, name)

        def __setattr__(self, name, value):
            if tensorflow_method(self, name):  # it would have no effect
                raise missing_method(self, name)
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        servers = self._on_servers
        servers.sent = True
        sent = (servers.identity, servers.original, self._recipe, self.name, self._shard_state)
        return _receive, sent

    @property
    def transformation(self) -> Any:
        """The optax transformation, or the factory, that it was created with."""
        return self._recipe.transformation

    @property
    def precision(self) -> PrecisionPolicy | None:
        """The precision policy, if it was created with one."""
        return self._recipe.precision

    @property
    def variables(self) -> list[Variable]:
        """The variables that hold its state; not what is on parameter servers."""
        return _Variables(self._here.held)

    @property
    def updated_variables(self) -> list[Variable]:
        """The variables that it has state for; not those on parameter servers."""
        return list(self._here.of)

    @property
    def server_function(self) -> bytes:
        """The serialized update rule that parameter servers run."""
        return self._on_servers.function(self._recipe)

    # --- hyperparameters and counters ---------------------------------------------------------------

    @property
    def iterations(self) -> Any:
        """Number of updates so far, without accumulated and skipped steps.

        Raises:
            UnsupportedError: If the variables are on parameter servers, which count for each variable.
        """
        if not self._here.built and self._on_servers.begun:
            raise UnsupportedError(
                f"The updates of Optimizer {self.name!r} are counted on the parameter servers, per "
                "variable, not in this process. Count steps in your own variable: call step.assign_add(1) "
                "next to apply_gradients()."
            )
        return self._here.number("iterations", np.int32(0))

    @iterations.setter
    def iterations(self, value: ArrayLike) -> None:
        current, number = self.iterations, np.asarray(operand_of(value), np.int32)
        if is_own_variable(current):
            current.assign(number)
        else:
            self._here.assign_number("iterations", number)

    @property
    def learning_rate(self) -> Any:
        """The learning rate: a variable once there is state, or the schedule's current value.

        Raises:
            AttributeError: If it is inside a transformation that does not expose it.
        """
        rate = self._recipe.learning_rate
        if callable(rate):
            return rate(self.iterations)
        return self._here.number("learning_rate", None if rate is None else np.float32(rate))

    @learning_rate.setter
    def learning_rate(self, value: ArrayLike) -> None:
        if callable(self._recipe.learning_rate) or callable(value):
            raise InvalidArgumentError(
                "A learning rate schedule is compiled into the step and cannot be assigned or replaced. "
                "Create the Optimizer with the complete schedule, or with a number."
            )
        current = self.learning_rate
        if is_own_variable(current):
            current.assign(jnp.asarray(operand_of(value), current.dtype))
            return
        if self._on_servers.begun:
            raise UnsupportedError(
                f"The learning rate of Optimizer {self.name!r} cannot be changed after it was sent to "
                "parameter servers or workers. Use a schedule."
            )
        number = float(np.asarray(operand_of(value)))
        self._recipe = dataclasses.replace(self._recipe, learning_rate=number)
        self._here.assign_number("learning_rate", np.float32(number))

    def scale_loss(self, loss: PyTree) -> Any:
        """Returns the loss times the loss scale; differentiate the result. See ``loss_scale``.

        Raises:
            VariableError: If ``build`` has not been called yet.
        """
        if self._recipe.loss_scale is None:
            return loss
        if self.precision is not None:
            raise InvalidArgumentError(
                f"Optimizer {self.name!r} has a precision policy, whose value_and_grad scales the loss "
                "itself, got scale_loss(). Pass the loss as it is, or use loss_scale without precision."
            )
        if not self._here.built:
            raise VariableError(
                f"Optimizer {self.name!r} has no loss scale yet. Call optimizer.build(variables) before "
                "the first step."
            )
        scale = self._here.number("loss_scale", None).read_value()
        return jax.tree.map(lambda x: x * scale.astype(jnp.result_type(x)), loss)

    def value_and_grad(
        self,
        fn: Callable[..., Any],
        variables: PyTree,
        has_aux: bool = False,
        cast_argnums: int | Sequence[int] | None = None,
    ) -> Callable[..., Any]:
        """Like ``sg.value_and_grad``, in the precision of this optimizer.

        With a ``precision`` ``fn`` reads ``variables`` in the compute dtype, and gets the floating-point
        arrays of its first argument in it, too. The loss is returned in float32; gradients have the dtype
        of their variables. With a loss scale the loss is multiplied by it before it is differentiated, and
        the gradients are divided by it: what is returned is never scaled.

        Args:
            fn: Returns a scalar, or with ``has_aux`` a pair of a scalar and anything.
            variables: Any structure of variables.
            has_aux: Whether ``fn`` returns a pair.
            cast_argnums: The arguments that are cast, one or several. Default: the first, the inputs.
                Targets keep their dtype.

        Returns:
            A function with the arguments of ``fn`` that returns ``(value, gradients)``.

        >>> import jax.numpy as jnp
        >>> import optax
        >>> import stratagem as sg
        >>> w = sg.Variable(jnp.ones(3))
        >>> optimizer = sg.train.Optimizer(optax.sgd(0.1), precision="mixed_bfloat16")
        >>> seen = []
        >>> def loss(x):
        ...     seen.append((w * x).dtype.name)
        ...     return jnp.sum(w * x)
        >>> value, gradient = optimizer.value_and_grad(loss, w)(jnp.ones(3))
        >>> seen, value.dtype.name, gradient.dtype.name
        (['bfloat16'], 'float32', 'float32')
        """
        policy = self.precision
        if policy is None:
            return value_and_grad(fn, variables, has_aux)
        scales = self._recipe.loss_scale is not None
        scale = self._current_scale if scales else None
        differentiated = differentiate_in(policy, fn, variables, has_aux, cast_argnums, scale)
        if not scales:
            return differentiated

        @functools.wraps(fn)
        def build_and_differentiate(*args: PyTree, **kwargs: PyTree) -> Any:
            self._build_everywhere(variables)
            return differentiated(*args, **kwargs)

        return build_and_differentiate

    def _current_scale(self) -> Any:
        return self._here.number("loss_scale", None).read_value()

    def _build_everywhere(self, variables: PyTree) -> None:
        """Creates the state, which has the loss scale, also from within a replica."""
        if self._here.built:
            return
        replica = context.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            self.build(variables)
        else:
            replica.merge_per_replica("Optimizer.build", lambda *_: self.build(variables), [])

    # --- applying gradients ---------------------------------------------------------------------------

    def apply(self, gradients: PyTree, variables: PyTree = None) -> None:
        """Updates each variable with its gradient, **summed over the replicas** (``gradient_reduction``).

        Args:
            gradients: Any structure of gradients, as ``value_and_grad`` returns it.
            variables: The same structure of variables. Default: those of ``build``, or of the previous
                update.

        Raises:
            VariableError: As for ``apply_gradients``, and if the structures differ.
        """
        if variables is None:
            if not self._here.built:
                raise VariableError(
                    "apply() without variables updates those that the Optimizer has state for, and it has "
                    "none yet. Pass the variables, or call optimizer.build(variables) first."
                )
            count = len(self._here.of)
            form = jax.tree.structure([0] * count) if self._form is None else self._form
            variables = jax.tree.unflatten(form, self._here.of)
        found, form = flatten_variables(variables)
        leaves = gradients_like(variables, gradients)
        self.apply_gradients(zip(leaves, found, strict=True))
        if len(found) == len(self._here.of):
            self._form = form

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        *,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
    ) -> None:
        """Updates each variable with its gradient, **summed over the replicas** (``gradient_reduction``).

        Args:
            grads_and_vars: Pairs of a gradient, an array or ``IndexedSlices``, and a variable. Pairs
                without a gradient (``None``) are skipped.
            name: Ignored; accepted as in TensorFlow.
            experimental_aggregate_gradients: ``False`` if the replicas have already summed the gradients:
                then the first replica's gradients are used unchanged.
            skip_gradients_aggregation: Its newer name, with the opposite meaning.

        Raises:
            VariableError: If the variables differ from those of the previous call (except on parameter
                servers), or a variable occurs twice.
            ShapeMismatchError: If a gradient has another shape than its variable. No variable is changed.
        """
        if skip_gradients_aggregation:
            experimental_aggregate_gradients = False
        gradients, variables = split_pairs(grads_and_vars)
        warn_of_full_precision(self.precision, self.name)
        replica = context.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            self._apply(gradients, variables)
            return
        if not variables:
            return
        late = self._here.reduces_late(variables)
        accumulates = late and experimental_aggregate_gradients
        as_arrays = dense_gradient if accumulates else _arrays
        arrays = [as_arrays(g, v) for g, v in zip(gradients, variables, strict=True)]
        num_replicas = replica.num_replicas_in_sync
        if self._recipe.gradient_reduction is ReduceOp.MEAN:
            if experimental_aggregate_gradients:
                warn_of_small_means(self.name, gradients, num_replicas)
            if accumulates:  # sums of several calls: the mean is taken before
                arrays = [scaled(gradient, 1 / num_replicas) for gradient in arrays]
        elif experimental_aggregate_gradients:
            warn_of_large_sums(self.name, gradients, num_replicas)

        def apply(strategy: StrategyProtocol, values: Sequence[Any]) -> None:
            assert isinstance(strategy, Strategy)
            if not self._is_compared:  # once: then the same sums keep them equal
                what = f"Optimizer {self.name!r}"
                strategy.extended.check_equal_on_workers(variables, what)
                self._is_compared = True
            if not experimental_aggregate_gradients:
                self._apply([strategy.extended.first_replica(v) for v in values], variables)
            elif accumulates:
                self._check_here(variables)
                options = strategy.extended.gradient_options
                self._updates_here.accumulate(values, variables, options)
            else:
                self._reduce_and_apply(strategy, values, variables)

        # Not merge_call, which does not wrap an object that is the same in all replicas: such a gradient
        # counts once per replica too.
        replica.merge_per_replica("apply_gradients", apply, arrays)

    def _reduce_and_apply(
        self, strategy: Strategy, gradients: Sequence[Any], variables: Sequence[Variable]
    ) -> None:
        self._check_here(variables)
        options = strategy.extended.gradient_options
        if not any(isinstance(variable, RemoteVariable) for variable in variables):
            gradients = self._updates_here.reduce_scatter(gradients, variables, options)
        operation = self._recipe.gradient_reduction
        if operation is ReduceOp.MEAN:  # reduce-scatter has summed these
            factor = 1 / strategy.num_replicas_in_sync
            gradients = [
                ShardedOperand(scaled(g.array, factor)) if isinstance(g, ShardedOperand) else g
                for g in gradients
            ]
        pairs = zip(gradients, variables, strict=True)
        unreduced = [pair for pair in pairs if not isinstance(pair[0], ShardedOperand)]
        reduced = iter(strategy.extended.batch_reduce_to(operation, unreduced, options))
        results = [g if isinstance(g, ShardedOperand) else next(reduced) for g in gradients]
        values = [array_of(value) if isinstance(value, Mirrored) else value for value in results]
        self._apply(values, variables)

    def _apply(self, gradients: Sequence[Any], variables: Sequence[Variable]) -> None:
        """Updates variables with gradients that are already reduced over the replicas."""
        self._check_here(variables)
        remote = [isinstance(variable, RemoteVariable) for variable in variables]
        if any(remote) and self._recipe.clipping:
            pairs = zip(gradients, variables, strict=True)
            gradients = self._clip([_arrays(g, v) for g, v in pairs])
        kept: list[tuple[Any, Variable]] = []
        sent: list[tuple[Any, RemoteVariable]] = []
        for gradient, variable in zip(gradients, variables, strict=True):
            if isinstance(variable, RemoteVariable):
                sent.append((gradient, variable))
            else:
                kept.append((gradient, variable))
        if sent:
            self._on_servers.send([g for g, _ in sent], [v for _, v in sent], self._recipe)
        if kept:
            self._updates_here.apply([g for g, _ in kept], [v for _, v in kept])

    def _check_here(self, variables: Sequence[Variable]) -> None:
        remote = [isinstance(variable, RemoteVariable) for variable in variables]
        if any(remote):
            check_on_servers(self._recipe, all_variables=all(remote), shard_state=self._shard_state)

    def build(self, variables: PyTree) -> None:
        """Creates the state for variables that are not on parameter servers, if there is none yet.

        If it is not called, the first step creates the state.

        Args:
            variables: Any structure of variables.

        Raises:
            VariableError: If there is state for other variables.
        """
        found, form = flatten_variables(variables)
        check_distinct(found)
        local = [v for v in found if not isinstance(v, RemoteVariable)]
        self._check_here(found)
        if local:
            first = not self._here.built
            self._here.build(local)
            if first and len(local) == len(found):
                self._form = form

    # --- checkpoints --------------------------------------------------------------------------------

    def state_entries(self) -> list[StateEntry] | None:
        """Returns the state for variables that are not on parameter servers, if there is any yet."""
        return self._here.entries()

    def check_state(
        self, restored: RestoredState, name: str, variables: Sequence[Variable] | None = None
    ) -> None:
        """Checks that ``restore_state`` can be called, as far as is known now.

        Args:
            restored: The state.
            name: The optimizer's name in messages.
            variables: The variables that the state is for, if known.

        Raises:
            InvalidArgumentError: If it is the state of another optimizer, or of other variables.
        """
        self._here.check(restored, name, variables)

    def restore_state(self, restored: RestoredState | None) -> None:
        """Sets the state for variables that are not on parameter servers, even before it is built.

        Args:
            restored: The state; ``None`` for the initial state.
        """
        self._here.restore(restored)


def _check_no_habit_of_torch(args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Checks that an Optimizer is not created as those of PyTorch are, from parameters.

    Raises:
        InvalidArgumentError: If it is.
    """
    first = args[0] if args else None
    # A transformation of optax is a named tuple.
    is_list = isinstance(first, (list, dict, Iterator)) or is_own_variable(first)
    if is_list or "lr" in kwargs or "params" in kwargs:
        raise InvalidArgumentError(
            "An Optimizer takes a transformation of optax, got "
            f"{'variables' if is_list else 'the argument lr or params'}. Write "
            "Optimizer(optax.adamw, learning_rate=1e-3), and pass the variables to "
            "optimizer.apply(gradients, variables)."
        )


class _Variables(list[Variable]):
    """A callable list, because older TensorFlow optimizers have a method ``variables()``."""

    def __call__(self) -> list[Variable]:
        return self


def _arrays(gradient: ArrayLike, variable: Variable) -> Any:
    return gradient_arrays(gradient, variable.dtype)


def _receive(
    identity: str, original: str, recipe: OptimizerStep, name: str, shard_state: bool
) -> Optimizer:
    """Returns this process's instance of an optimizer that another process sent."""

    def make() -> Optimizer:
        optimizer = Optimizer.__new__(Optimizer)
        servers = ServerUpdates(optimizer, original, identity)
        optimizer._set_up(servers, recipe, name, shard_state)
        return optimizer

    return received(original, make)
