"""``Checkpoint``: saves variables and optimizers of any kind, and restores them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stratagem._src.core.errors import ContextError, InvalidArgumentError, NotFoundError
from stratagem._src.core.tracing import under_jit
from stratagem._src.parameter_server.client.remote_variable import RemoteVariable
from stratagem._src.parameter_server.client.saving import check_held
from stratagem._src.runtime import context
from stratagem._src.training.checkpoint_directory import latest_checkpoint
from stratagem._src.training.checkpoint_format import CheckpointReader
from stratagem._src.training.checkpoint_objects import CheckpointObjects, named_objects
from stratagem._src.training.joint_saving import Contents, save_together
from stratagem._src.training.optimizer_saving import optimizer_values, stage_optimizer
from stratagem._src.training.restore_status import RestoreStatus
from stratagem._src.training.saved_values import SavedValue
from stratagem._src.training.worker_agreement import WorkerAgreement
from stratagem._src.variables import access as state
from stratagem._src.variables.variable import Variable

__all__ = ["Checkpoint", "latest_checkpoint"]

_HINTS = {
    "write": "save(prefix) writes a checkpoint and returns its path, the prefix with a number behind it.",
    "read": "restore(path) reads what save(prefix) has written, whose path it returns.",
    "save_counter": "The number is at the end of the path that save() returns.",
}


class Checkpoint:
    """Saves the values of variables and the state of optimizers, and restores them.

    A checkpoint is a directory with a ``.npy`` file for each array, which NumPy reads, and an index with
    checksums. It does not say how variables are spread: what was saved from two parameter servers can be
    restored into three, into other shards, or into a mirrored variable. Variables on parameter servers
    are moved in pieces, so no process needs the memory for a whole table; each piece is saved as it is at
    one moment, so let the workers finish first (``coordinator.join()``) for a state that belongs together.

    Where several workers train in step all of them call ``save`` and ``restore``, with a path that all of
    them see. The leader writes what they have in common, each worker the variables that are its own.

    Args:
        **objects: Variables, ``Optimizer`` objects, and Keras layers, models, optimizers and metrics that
            are built, or structures of them, by name. The state that an optimizer has on parameter
            servers is saved for the variables given here. They are attributes of the Checkpoint, too, and
            more can be assigned: ``checkpoint.step``.

    Raises:
        InvalidArgumentError: If something else is given, or two have the same name.

    >>> import tempfile
    >>> import stratagem as sg
    >>> w = sg.Variable([1.0, 2.0])
    >>> checkpoint = sg.train.Checkpoint(model={"w": w})
    >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    >>> _ = w.assign([0.0, 0.0])
    >>> status = checkpoint.restore(path).assert_consumed()
    >>> w.numpy()
    array([1., 2.], dtype=float32)
    """

    _given: dict[str, Any]
    _objects: CheckpointObjects

    def __init__(self, **objects: Any) -> None:
        self._take(objects)

    def _take(self, given: Mapping[str, Any]) -> None:
        found = named_objects(given)
        self._given = dict(given)
        self._objects = found
        for name, variable in found.variables.items():
            variable.take_name(name)

    def __getattr__(self, name: str) -> Any:
        given = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        hint = _HINTS.get(name, f"It holds {sorted(given)}.")
        raise AttributeError(f"Checkpoint has no attribute {name!r}. {hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        if hasattr(type(self), name):
            raise AttributeError(f"{name!r} of a Checkpoint cannot be replaced. Rename the object.")
        self._take({**self._given, name: value})

    def save(self, file_prefix: str | os.PathLike[str]) -> str:
        """Saves everything in a new directory, ``file_prefix`` with a number behind it.

        The directory appears when it is complete. What saves that were killed have left behind under
        this prefix is removed.

        Returns:
            The path of the directory; the same on all workers that give the same prefix.

        Raises:
            ContextError: In a replica or a compiled function.
        """
        _check_context("save")
        prefix = Path(file_prefix)
        agreement = self._agreement("saving a checkpoint")
        return str(prefix.with_name(save_together(prefix, self._contents, agreement)))

    def restore(self, save_path: str | os.PathLike[str] | None) -> RestoreStatus:
        """Gives every variable and optimizer what it had when the checkpoint was saved.

        With ``None``, as ``latest_checkpoint`` returns at the first start, everything stays as it is.

        Arrays of the checkpoint that nothing here asks for are left out. Everything is checked first, on
        all workers and servers: if this raises one of the following, nothing has changed anywhere. The
        state of an optimizer that has not taken a step yet is checked as far as its variables are known,
        and otherwise at its first step.

        Returns:
            What ``assert_consumed()`` can be asked of.

        Raises:
            NotFoundError: If there is no checkpoint, or it lacks something.
            InvalidArgumentError: If a shape or element type differs, or an optimizer's state is that of
                another optimizer.
            DataLossError: If a file is damaged.
            PSUnavailableError: If a parameter server is gone. If it is lost while values are on their way,
                some have changed.
            ContextError: In a replica or a compiled function.
        """
        _check_context("restore")
        agreement = self._agreement("restoring a checkpoint")
        steps: list[Callable[[], None]] = []
        left: list[str] = []

        def check() -> int | None:
            if save_path is None:
                return None
            reader = CheckpointReader(Path(save_path), agreement.worker)
            steps.extend(self._stage(reader, Path(save_path)))
            left.extend(self._not_asked_for(reader))
            return reader.index.fingerprint

        fingerprints = agreement.settle(check)
        if len(set(fingerprints)) > 1:
            raise InvalidArgumentError(
                f"All workers must restore the same checkpoint, but what they find at {save_path} differs. "
                "Give them the path of a directory that all of them see."
            )
        steps.reverse()
        while steps:
            steps.pop()()  # and with it goes the memory for what it has read
        return RestoreStatus(None if save_path is None else left)

    # --- what there is to save ----------------------------------------------------------------------

    def _agreement(self, what: str) -> WorkerAgreement:
        return WorkerAgreement(self._local_variables(), what)

    def _local_variables(self) -> Iterator[Variable]:
        yield from self._objects.variables.values()
        for optimizer in self._objects.optimizers.values():
            yield from optimizer.variables

    def _contents(self) -> Contents:
        values = {name: SavedValue(v) for name, v in self._objects.variables.items()}
        optimizers = {}
        for name in self._objects.optimizers:
            optimizers[name], of_optimizer = optimizer_values(name, self._objects)
            values.update(of_optimizer)
        return Contents(values, optimizers)

    # --- restoring ------------------------------------------------------------------------------------

    def _not_asked_for(self, reader: CheckpointReader) -> list[str]:
        variables, optimizers = self._objects
        saved = [*reader.index.arrays, *reader.index.optimizers]
        states = tuple(f"{name}/" for name in optimizers)
        return sorted(
            name
            for name in saved
            if name not in variables and name not in optimizers and not name.startswith(states)
        )

    def _stage(self, reader: CheckpointReader, path: Path) -> list[Callable[[], None]]:
        """Checks everything and returns what is left to do, which changes something."""
        index = reader.index
        missing = [name for name in self._objects.optimizers if name not in index.optimizers]
        if missing:
            raise NotFoundError(
                f"The checkpoint {path} has no optimizers {missing}; it has {list(index.optimizers)}."
            )
        for name, variable in self._objects.variables.items():
            if name not in index.arrays:
                raise NotFoundError(
                    f"The checkpoint {path} has no {name!r}; it has {sorted(index.arrays)}."
                )
            value, saved = SavedValue(variable), index.arrays[name]
            if (saved.shape, saved.dtype) != (value.shape, value.dtype.name):
                raise InvalidArgumentError(
                    f"Variable {name!r} is {value.dtype.name}{list(value.shape)}, but the checkpoint "
                    f"{path} has {saved}. Create the variable as it was saved."
                )
        of_optimizers = [
            stage_optimizer(name, self._objects, reader) for name in self._objects.optimizers
        ]
        check_held(v for v in self._objects.variables.values() if isinstance(v, RemoteVariable))
        steps = [
            SavedValue(variable).stage(reader.file(name))
            for name, variable in self._objects.variables.items()
        ]
        # After the variables: the state to begin with may depend on their values.
        return steps + [step for stage in of_optimizers for step in stage()]


def _check_context(what: str) -> None:
    replica = context.get_replica_context() if context.has_strategy() else None
    in_replica = replica is not None and replica.num_replicas_in_sync > 1
    if in_replica or state.current_frame() is not None or under_jit():
        raise ContextError(
            f"Checkpoint.{what}() is called in a replica or a compiled function. Call it outside of "
            "strategy.run(), sg.function and JAX transformations."
        )
