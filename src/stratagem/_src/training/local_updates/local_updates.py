"""``LocalUpdates``: islands that train synchronously within, and average every ``sync_every`` steps."""

from __future__ import annotations

import concurrent.futures
import json
import time
import types
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np

from stratagem._src.control_plane.island_server.island_messages import IslandPlace
from stratagem._src.core.errors import ContextError, InvalidArgumentError
from stratagem._src.current_strategy import context
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.strategies.base import Strategy
from stratagem._src.training.local_updates.island_client import IslandClient, Outcome
from stratagem._src.training.local_updates.island_workers import IslandWorkers
from stratagem._src.training.local_updates.keras_callback import make_callback
from stratagem._src.training.local_updates.outer_state import Array, OuterState
from stratagem._src.training.local_updates.outer_step import OuterStep
from stratagem._src.variables.stand_ins import is_variable, register_holder, variable_of
from stratagem._src.variables.variable import Variable

__all__ = ["LocalUpdates"]


class LocalUpdates:
    """Couples islands loosely: each trains in sync by itself, and all average every ``sync_every`` steps.

    An island is one job of workers in sync, or a single process. ``stratagem run --islands 2 --workers 4``
    starts two; without islands a program is the only one, and does the same outer steps alone. Known as
    local SGD, FedAvg or, with an outer optimizer, DiLoCo.

    >>> import numpy as np, optax
    >>> import stratagem as sg
    >>> strategy = sg.distribute.OneDeviceStrategy("CPU:0")
    >>> with strategy.scope():
    ...     w = sg.Variable(np.zeros(2, np.float32))
    >>> islands = sg.distribute.experimental.LocalUpdates(
    ...     strategy, [w], sync_every=2, outer_optimizer=optax.sgd(0.5)
    ... )
    >>> with islands:
    ...     for _ in range(2):
    ...         _ = w.assign_add([1.0, 2.0])  # an inner step
    ...         islands.step()
    >>> np.asarray(w)  # half of the way that the inner steps went
    array([1., 2.], dtype=float32)

    Args:
        strategy: The strategy of this island.
        variables: The parameters: variables of the strategy, or a structure of them. With Keras they may be
            left out, ``keras_callback`` then takes the model's trainable variables.
        sync_every: After how many inner steps islands average; H in the literature.
        outer_optimizer: An optax gradient transformation, whose gradient is the difference between the last
            global parameters and the mean of the islands; ``None`` averages.
        overlap_steps: How many inner steps go on while an outer step is under way; 0 waits for it. Its
            result is then added to what these steps changed.
        timeout_seconds: How long to wait for an island that is alive but does not contribute, for islands
            at the start, and for a server that cannot be reached.
        island: The number of this island; default ``STRATAGEM_ISLAND``.
        num_islands: How many there are; default ``STRATAGEM_ISLANDS``.
        server: ``host:port`` of the server of the islands; default ``STRATAGEM_ISLANDS_SERVER``.

    Raises:
        InvalidArgumentError: If something in it cannot be.
        EnvironmentVariableError: If a variable of the environment is missing or holds something else.
    """

    def __init__(
        self,
        strategy: Strategy,
        variables: Any = None,
        *,
        sync_every: int,
        outer_optimizer: Any = None,
        overlap_steps: int = 0,
        timeout_seconds: float = 300.0,
        island: int | None = None,
        num_islands: int | None = None,
        server: str | None = None,
    ) -> None:
        _check_whole("sync_every", sync_every, 1, None)
        _check_whole("overlap_steps", overlap_steps, 0, sync_every)
        if timeout_seconds <= 0:
            raise InvalidArgumentError(f"timeout_seconds must be > 0, got {timeout_seconds}.")
        self._strategy = strategy
        self._sync_every = sync_every
        self._overlap_steps = overlap_steps
        self._timeout = float(timeout_seconds)
        self._place = _place(island, num_islands, server)
        self._outer_step = OuterStep(outer_optimizer)
        self._workers = IslandWorkers(strategy)
        self._variables: list[Any] = []
        self._client: IslandClient | None = None
        self._joined = False
        self._flight: _Flight | None = None
        self._num_steps = 0
        self._last_outer = 0
        self._steps_of_fits = 0
        self._seconds_waiting = 0.0
        if variables is not None:
            self._track(variables)

    # --- what users read ------------------------------------------------------------------------------

    @property
    def island(self) -> int:
        """The number of this island, from 0."""
        return self._place.island

    @property
    def num_islands(self) -> int:
        """How many islands there are when none is lost."""
        return self._place.num_islands

    @property
    def num_steps(self) -> int:
        """How many inner steps this island has made; one that returns has as many as the others."""
        return self._num_steps

    @property
    def round(self) -> int:
        """How many outer steps are over."""
        return self._state.round

    @property
    def sync_every(self) -> int:
        """After how many inner steps islands average."""
        return self._sync_every

    @property
    def metrics(self) -> dict[str, float]:
        """What the outer steps cost: ``bytes_sent``, ``bytes_received``, ``seconds_waiting``, ``islands``.

        ``islands`` is how many contributed to the last outer step. Bytes are those of the arrays that this
        process exchanged with other islands; of an island's workers only the leader does that.
        """
        client = self._client
        return {
            "bytes_sent": 0 if client is None else client.bytes_sent,
            "bytes_received": 0 if client is None else client.bytes_received,
            "seconds_waiting": self._seconds_waiting,
            "islands": self._last_outer,
        }

    # --- what users do --------------------------------------------------------------------------------

    def join(self) -> None:
        """Meets the other islands; all begin with the same parameters.

        These are those of the island that is farthest, at the start those of island 0. Restore
        checkpoints before. Every worker of the island calls it.

        Raises:
            ContextError: If it has joined, or there are no variables.
            UnavailableError, DeadlineExceededError: If others do not come; it says for whom it waited.
            InvalidArgumentError: If other islands have other variables or settings.
        """
        if self._joined:
            raise ContextError("join() must be called once before leave(), got a second call.")
        self._check_has_variables()
        context.require_cross_replica(self._strategy, "LocalUpdates.join()")
        self._read_back()
        if self._num_steps == 0:
            # Weights may have been loaded since this was created.
            self._set_state(self._outer_step.begin(self._values()))
        if self._place.server is not None and self._workers.leads:
            self._client = IslandClient(self._place, self._layout(), self._timeout)
        try:
            self._take_in(self._outcome_of(self._begin_join(), "meeting"))
            self._joined = True
            if self._flight is not None:
                self._flight.future = self._begin_round(self._flight.sent)
        except BaseException:
            self._close()
            raise

    def step(self) -> None:
        """Counts an inner step; every ``sync_every`` of them it makes an outer step.

        Every worker of the island calls it after each training step.

        Raises:
            ContextError: If it has not joined, or a checkpoint was restored since.
            UnavailableError, DeadlineExceededError: If the server of the islands is lost for longer than
                ``timeout_seconds``.
            InvalidArgumentError: If parameters are not finite at an outer step, or another process has
                joined with the number of this island.
        """
        self._check_joined()
        self._num_steps += 1
        self._steps_variable.assign(self._num_steps)
        if self._client is not None:
            self._client.hold(self._state, self._num_steps)
        if self._flight is not None and self._num_steps >= self._flight.due:
            self._land()
        if self._num_steps % self._sync_every == 0:
            self._launch(self._overlap_steps)

    def synchronize(self) -> None:
        """Makes an outer step now, and waits for it; every island must do that at the same step."""
        self._check_joined()
        if self._flight is not None:
            self._land()
        if self._num_steps != self._state.num_steps:
            self._launch(0)

    def leave(self) -> None:
        """Ends outer steps: the last one is made with what there is since the one before."""
        self._check_joined()
        try:
            self.synchronize()
            if self._client is not None:
                self._client.leave()
        finally:
            self._close()

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if error is None and self._joined:
            self.leave()
        else:
            self._close()

    def keras_callback(self) -> Any:
        """Returns what does all that in Keras ``fit``: joins, counts batches as steps, and leaves.

        Training ends when ``num_steps`` has reached the number of batches that ``fit`` was asked for, so
        an island that returns ends with the others.
        """
        return make_callback(self)

    def begin_fit(self, variables: Any, num_steps: int | None) -> int | None:
        """Joins, and returns the step at which a Keras ``fit`` of ``num_steps`` ends.

        ``keras_callback`` calls it. It takes the variables if none were given.
        """
        if not self._variables:
            self._track(variables)
        if self._joined:
            # Keras calls no callback when an exception or Ctrl-C ends ``fit``.
            self._close()
        self.join()
        if num_steps is None:
            return None
        # Counts what was asked for, not what was done: an island that returns has the steps of the others.
        self._steps_of_fits += num_steps
        return self._steps_of_fits

    # --- outer steps ----------------------------------------------------------------------------------

    def _launch(self, overlap_steps: int) -> None:
        if self._round_variable.value_on_host() != self._state.round:
            raise ContextError(
                "A checkpoint must be restored before join(), got another outer state than the one that "
                "the other islands know. Call leave(), restore, and join() again."
            )
        sent = self._values()
        self._check_finite(sent)
        self._flight = _Flight(self._num_steps + overlap_steps, self._num_steps, sent)
        if overlap_steps:
            for variable, value in zip(self._sent_variables, sent, strict=True):
                variable.assign(value)
            self._flying_variable.assign(self._num_steps)
        self._flight.future = self._begin_round(sent)
        if not overlap_steps:
            self._land()

    def _check_finite(self, sent: Sequence[Array]) -> None:
        """Refuses parameters that would make those of all islands NaN."""
        for leaf, value in zip(self._variables, sent, strict=True):
            if not np.isfinite(value).all():
                raise InvalidArgumentError(
                    "Parameters must be finite at an outer step, got NaN or infinity in "
                    f"{variable_of(leaf).name!r} of island {self.island} at step {self._num_steps}. The "
                    "other islands did not get them. Restore a checkpoint, and lower the learning rate or "
                    "clip gradients."
                )

    def _begin_round(self, sent: list[Array]) -> concurrent.futures.Future[Outcome]:
        client, state = self._client, self._state
        if client is None:
            return self._workers.begin(lambda: Outcome("mean", 1, arrays=tuple(sent)))

        def run_round() -> Outcome:
            return client.run_round(state.round, sent)

        return self._workers.begin(run_round)

    def _begin_join(self) -> concurrent.futures.Future[Outcome]:
        client = self._client
        if client is None:
            return self._workers.begin(lambda: Outcome("go"))
        client.hold(self._state, self._num_steps)
        return self._workers.begin(client.join)

    def _outcome_of(self, future: concurrent.futures.Future[Outcome], what: str) -> Outcome:
        started = time.monotonic()
        client = self._client
        outcome = self._workers.agree(
            future, what, lambda: "others" if client is None else client.waits_for
        )
        self._seconds_waiting += time.monotonic() - started
        return outcome

    def _land(self) -> None:
        """Takes in the result of the outer step under way."""
        flight = self._flight
        assert flight is not None
        outcome = self._outcome_of(flight.future, f"outer step {self._state.round}")
        self._flight = None
        if outcome.kind == "mean":
            self._last_outer = outcome.num_islands
            state = self._outer_step.take(self._state, outcome.arrays, flight.launched)
            if flight.due > flight.launched:
                now = self._values()
                moved = _plus_difference(list(state.parameters), now, flight.sent)
                self._assign([np.asarray(value) for value in moved])
            else:
                self._assign(state.parameters)
            self._set_state(state)
        else:
            self._take_in(outcome)

    def _take_in(self, outcome: Outcome) -> None:
        """Continues with the state of the other islands, if this one has another."""
        if outcome.kind != "state":
            return
        self._flight = None
        self._num_steps = outcome.num_steps
        self._steps_variable.assign(self._num_steps)
        state = self._state.with_arrays(outcome.round, outcome.num_steps, outcome.arrays)
        self._assign(state.parameters)
        self._set_state(state)

    # --- state ----------------------------------------------------------------------------------------

    def _track(self, variables: Any) -> None:
        leaves = jax.tree.leaves(variables, is_leaf=is_variable)
        _check_variables(leaves, [variable_of(leaf) for leaf in leaves])
        self._variables = leaves
        self._state = self._outer_step.begin(self._values())

        def own(value: Any, name: str) -> Variable:
            return Variable(value, trainable=False, name=f"islands_{name}")

        with self._strategy.scope():
            self._steps_variable = own(np.int32(0), "num_steps")
            self._round_variable = own(np.int32(0), "round")
            self._outer_steps_variable = own(np.int32(0), "outer_num_steps")
            self._flying_variable = own(np.int32(-1), "under_way_since")
            self._global_variables = [own(v, "global") for v in self._state.parameters]
            self._optimizer_variables = [own(v, "outer_optimizer") for v in self._state.optimizer]
            self._sent_variables = [
                own(np.zeros_like(v), "sent") for v in self._state.parameters if self._overlap_steps
            ]

    def _set_state(self, state: OuterState) -> None:
        self._state = state
        if self._client is not None:
            self._client.hold(state, self._num_steps)
        variables = [*self._global_variables, *self._optimizer_variables]
        for variable, value in zip(variables, state.arrays, strict=True):
            variable.assign(value)
        self._round_variable.assign(state.round)
        self._outer_steps_variable.assign(state.num_steps)
        self._flying_variable.assign(-1)

    def _read_back(self) -> None:
        """Takes what a checkpoint may have put into the variables."""
        held = [v.value_on_host() for v in (*self._global_variables, *self._optimizer_variables)]
        self._num_steps = int(self._steps_variable.value_on_host())
        self._state = self._state.with_arrays(
            int(self._round_variable.value_on_host()),
            int(self._outer_steps_variable.value_on_host()),
            tuple(np.array(value) for value in held),
        )
        launched = int(self._flying_variable.value_on_host())
        self._flight = None
        if launched >= 0:
            sent = [np.array(variable.value_on_host()) for variable in self._sent_variables]
            self._flight = _Flight(launched + self._overlap_steps, launched, sent)

    def _values(self) -> list[Array]:
        # Copies: the memory of a variable is given away to the next step.
        # Found each time: while Keras trains, its variables have their values only when they are asked for.
        return [np.array(variable_of(leaf).value_on_host()) for leaf in self._variables]

    def _assign(self, values: Sequence[Array]) -> None:
        for leaf, value in zip(self._variables, values, strict=True):
            variable_of(leaf).assign(value)

    def _held_variables(self) -> Mapping[str, Any]:
        self._check_has_variables()
        return {
            "num_steps": self._steps_variable,
            "round": self._round_variable,
            "outer_num_steps": self._outer_steps_variable,
            "under_way_since": self._flying_variable,
            "global": self._global_variables,
            "outer_optimizer": self._optimizer_variables,
            "sent": self._sent_variables,
        }

    def _layout(self) -> str:
        parameters = [f"{value.dtype.name}{list(value.shape)}" for value in self._state.parameters]
        layout = {
            "variables": len(parameters),
            "shapes": _short(parameters),
            "outer_optimizer": self._outer_step.signature(self._state.parameters),
            "sync_every": self._sync_every,
            "overlap_steps": self._overlap_steps,
        }
        return json.dumps(layout)

    def _check_has_variables(self) -> None:
        if not self._variables:
            raise ContextError(
                "LocalUpdates must know its variables before join() and before a Checkpoint holds it, got "
                "none. Give them to LocalUpdates, or use keras_callback()."
            )

    def _check_joined(self) -> None:
        if not self._joined:
            raise ContextError(
                "Outer steps are made between join() and leave(), got a call outside. Use "
                "'with islands:' around the training loop."
            )

    def _close(self) -> None:
        self._joined = False
        self._flight = None
        if self._client is not None:
            self._client.close()


class _Flight:
    """An outer step under way: when its result is due, when it was launched, and what was sent."""

    def __init__(self, due: int, launched: int, sent: list[Array]) -> None:
        self.due = due
        self.launched = launched
        self.sent = sent
        self.future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()


@jax.jit
def _plus_difference(base: list[Any], now: list[Any], before: list[Any]) -> list[Any]:
    return [b + (n - s) for b, n, s in zip(base, now, before, strict=True)]


def _place(island: int | None, num_islands: int | None, server: str | None) -> IslandPlace:
    given = (island, num_islands, server)
    if all(value is None for value in given):
        return IslandPlace.from_environment()
    if island is None or num_islands is None or server is None:
        raise InvalidArgumentError(
            "island, num_islands and server are given together, or taken from the environment, got "
            f"island={island}, num_islands={num_islands}, server={server!r}."
        )
    _check_whole("num_islands", num_islands, 1, None)
    _check_whole("island", island, 0, num_islands - 1)
    return IslandPlace(island, num_islands, server)


def _check_whole(name: str, value: int, least: int, most: int | None) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidArgumentError(f"{name} must be a whole number, {limits}, got {value!r}.")


def _check_variables(leaves: Sequence[Any], variables: Sequence[Any]) -> None:
    for leaf, variable in zip(leaves, variables, strict=True):
        if not isinstance(variable, Variable) or isinstance(variable, RemoteVariable):
            raise InvalidArgumentError(
                "LocalUpdates averages variables of this island's own strategy, got "
                f"{type(leaf).__name__}. Parameter servers are asynchronous already."
            )
        if not jax.numpy.issubdtype(variable.dtype, np.floating):
            raise InvalidArgumentError(
                f"LocalUpdates averages variables of floating types, got {variable.name!r} of "
                f"{np.dtype(variable.dtype).name}. Leave it out."
            )
    if not variables:
        raise InvalidArgumentError("LocalUpdates needs at least one variable, got none.")


def _short(texts: list[str]) -> str:
    shown = ", ".join(texts[:4])
    rest = f", ... (checksum {zlib.crc32(','.join(texts).encode()):08x})" if len(texts) > 4 else ""
    return shown + rest


register_holder(LocalUpdates, LocalUpdates._held_variables)
