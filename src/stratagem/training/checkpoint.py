"""``Checkpoint``: saves variables and optimizers of any kind, and restores them."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stratagem.core.errors import InvalidArgumentError, NotFoundError
from stratagem.parameter_server.remote_variable import RemoteVariable
from stratagem.parameter_server.saving import (
    StateArray,
    read_in_blocks,
    state_arrays,
    write_in_blocks,
)
from stratagem.training.array_file import ArrayFile, write_array
from stratagem.training.optimizer import Optimizer
from stratagem.values.variable import Variable

__all__ = ["Checkpoint", "latest_checkpoint"]

_INDEX = "checkpoint.json"
_VERSION = 1


class Checkpoint:
    """Saves the values of variables and the state of optimizers, and restores them.

    A checkpoint is a directory with a ``.npy`` file for each array, which NumPy reads, and an index. It
    does not say how variables are spread: what was saved from two parameter servers can be restored into
    three, into other shards, or into a mirrored variable. Variables on parameter servers are moved in
    pieces, so no process needs the memory for a whole table; each piece is saved as it is at one moment,
    so let the workers finish first (``coordinator.join()``) for a state that belongs together.

    Args:
        **objects: Variables and ``Optimizer`` objects, or structures of them, by name. The state that an
            optimizer has on parameter servers is saved for the variables given here.

    Raises:
        InvalidArgumentError: If something else is given.

    >>> import tempfile
    >>> import stratagem as sg
    >>> w = sg.Variable([1.0, 2.0])
    >>> checkpoint = sg.train.Checkpoint(model={"w": w})
    >>> path = checkpoint.save(tempfile.mkdtemp() + "/ckpt")
    >>> _ = w.assign([0.0, 0.0])
    >>> checkpoint.restore(path)
    >>> w.numpy()
    array([1., 2.], dtype=float32)
    """

    def __init__(self, **objects: Any) -> None:
        self._variables: dict[str, Variable] = {}
        self._optimizers: dict[str, Optimizer] = {}
        leaves = jax.tree_util.tree_leaves_with_path(
            objects, is_leaf=lambda leaf: isinstance(leaf, (Variable, Optimizer))
        )
        for path, leaf in leaves:
            name = "/".join(_part(key) for key in path)
            if isinstance(leaf, Variable):
                self._variables[name] = leaf
            elif isinstance(leaf, Optimizer):
                self._optimizers[name] = leaf
            else:
                raise InvalidArgumentError(
                    f"A Checkpoint holds variables and Optimizers, got {type(leaf).__name__} for "
                    f"{name!r}."
                )

    def save(self, file_prefix: str | os.PathLike[str]) -> str:
        """Saves everything in a new directory, ``file_prefix`` with a number behind it.

        The directory appears when it is complete.

        Returns:
            The path of the directory.
        """
        prefix = Path(file_prefix)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        temporary = prefix.with_name(f".{prefix.name}-{uuid.uuid4().hex}")
        try:
            arrays: dict[str, Any] = {}
            for name, source in self._sources():
                write_array(_file(temporary, name), source.shape, source.dtype, source.blocks())
                arrays[name] = {"shape": source.shape, "dtype": np.dtype(source.dtype).name}
            index = {"version": _VERSION, "arrays": arrays, "optimizers": list(self._optimizers)}
            temporary.mkdir(exist_ok=True)
            with (temporary / _INDEX).open("w") as file:
                json.dump(index, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            last = max((number for number, _ in _numbered(prefix.parent, prefix.name)), default=0)
            path = prefix.with_name(f"{prefix.name}-{last + 1}")
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return str(path)

    def restore(self, save_path: str | os.PathLike[str]) -> None:
        """Gives every variable and optimizer what it had when the checkpoint was saved.

        Arrays of the checkpoint that nothing here asks for are left out.

        Raises:
            NotFoundError: If there is no checkpoint, or it lacks something.
            InvalidArgumentError: If a shape or element type differs. Nothing is changed then.
        """
        directory = Path(save_path)
        index = _read_index(directory)
        missing = [name for name in self._optimizers if name not in index["optimizers"]]
        if missing:
            raise NotFoundError(
                f"The checkpoint {directory} has no optimizers {missing}; it has {index['optimizers']}."
            )
        saved = index["arrays"]
        self._check_variables(directory, saved)
        to_write = [
            (target, ArrayFile(_file(directory, name), **saved[name]))
            for name, target in self._targets(saved)
        ]
        for target, file in to_write:
            target.write(file)
        for name, optimizer in self._optimizers.items():
            here = [ArrayFile(_file(directory, key), **saved[key]) for key in _here(name, saved)]
            if here:
                optimizer.restore_state([file.whole() for file in here])

    def _check_variables(self, directory: Path, saved: dict[str, Any]) -> None:
        for name, variable in self._variables.items():
            if name not in saved:
                raise NotFoundError(
                    f"The checkpoint {directory} has no {name!r}; it has {sorted(saved)}."
                )
            has, wants = saved[name], (list(_Saved(variable).shape), variable.dtype.name)
            if (has["shape"], has["dtype"]) != wants:
                raise InvalidArgumentError(
                    f"Variable {name!r} is {wants[1]}{wants[0]}, but the checkpoint {directory} has "
                    f"{has['dtype']}{has['shape']}. Create the variable as it was saved."
                )

    # --- what there is to save and restore --------------------------------------------------------

    def _remote(self) -> dict[str, RemoteVariable]:
        return {
            name: variable
            for name, variable in self._variables.items()
            if isinstance(variable, RemoteVariable)
        }

    def _sources(self) -> Iterator[tuple[str, _Saved]]:
        for name, variable in self._variables.items():
            yield name, _Saved(variable)
        for name, optimizer in self._optimizers.items():
            for position, state in enumerate(optimizer.variables):
                yield f"{name}/{_HERE}/{position}", _Saved(state)
            for variable_name, variable in self._remote().items():
                arrays = state_arrays(variable, optimizer.server_function, create=False)
                for position, array in enumerate(arrays):
                    yield f"{name}/{variable_name}/{position}", _Saved(array)

    def _targets(self, saved: dict[str, Any]) -> Iterator[tuple[str, _Saved]]:
        for name, variable in self._variables.items():
            yield name, _Saved(variable)
        for name, optimizer in self._optimizers.items():
            for variable_name, variable in self._remote().items():
                if f"{name}/{variable_name}/0" in saved:
                    arrays = state_arrays(variable, optimizer.server_function, create=True)
                    for position, array in enumerate(arrays):
                        yield f"{name}/{variable_name}/{position}", _Saved(array)


_HERE = "here"


class _Saved(NamedTuple):
    """A variable, or an array of an optimizer's state, as something with blocks of rows."""

    what: Variable | StateArray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(dim or 0) for dim in self.what.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.what.dtype)

    def blocks(self) -> Iterable[np.ndarray[Any, Any]]:
        if isinstance(self.what, StateArray):
            return self.what.read_in_blocks()
        if isinstance(self.what, RemoteVariable):
            return read_in_blocks(self.what)
        return [self.what.numpy()]

    def write(self, file: ArrayFile) -> None:
        if isinstance(self.what, StateArray):
            self.what.write_in_blocks(file.rows)
        elif isinstance(self.what, RemoteVariable):
            write_in_blocks(self.what, file.rows)
        else:
            self.what.assign(file.whole())


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Returns the path of the last checkpoint that was saved in a directory, or ``None``.

    >>> import tempfile
    >>> latest_checkpoint(tempfile.mkdtemp()) is None
    True
    """
    found = [path for _, path in _numbered(Path(checkpoint_dir))]
    complete = [path for path in found if (path / _INDEX).exists()]
    if not complete:
        return None
    return str(max(complete, key=lambda path: ((path / _INDEX).stat().st_mtime_ns, path.name)))


def _numbered(directory: Path, prefix: str | None = None) -> Iterator[tuple[int, Path]]:
    pattern = re.compile(rf"{'.*' if prefix is None else re.escape(prefix)}-(\d+)")
    for path in directory.iterdir() if directory.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and not path.name.startswith("."):
            yield int(match[1]), path


def _read_index(directory: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads((directory / _INDEX).read_text())
    except OSError as error:
        raise NotFoundError(f"There is no checkpoint at {directory}: {error.strerror}.") from error
    if index.get("version") != _VERSION:
        raise InvalidArgumentError(
            f"The checkpoint {directory} has version {index.get('version')}, this library reads "
            f"{_VERSION}."
        )
    return index


def _here(optimizer: str, saved: dict[str, Any]) -> list[str]:
    names: list[str] = []
    while (name := f"{optimizer}/{_HERE}/{len(names)}") in saved:
        names.append(name)
    return names


def _part(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _file(directory: Path, name: str) -> Path:
    parts = [urllib.parse.quote(part, safe="").replace(".", "%2E") for part in name.split("/")]
    return directory.joinpath(*parts[:-1], f"{parts[-1] or '%'}.npy")
