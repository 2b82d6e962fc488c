"""Reads the index of a checkpoint; any of its bytes may be corrupt.

Version 1, which is still read, had no checksums and did not name an optimizer's arrays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google_crc32c import value as crc32c

from stratagem._src.checkpoint.format.former.index import (
    CHECKSUM,
    HERE,
    ON_SERVERS,
    VERSION,
    CheckpointIndex,
    SavedArray,
    SavedOptimizer,
    SavedState,
    canonical,
    state_array_name,
)
from stratagem._src.core.errors import DataLossError, InvalidArgumentError

__all__ = ["decode_index"]


def decode_index(data: bytes, path: Path) -> CheckpointIndex:
    """Decodes an index.

    Args:
        data: The content of the file.
        path: The file, for messages.

    Raises:
        DataLossError: If it is corrupt.
        InvalidArgumentError: If it is valid, but of a later version.
    """
    try:
        return _decoded(json.loads(data.decode("ascii")))
    except (ValueError, RecursionError, _Corruption) as error:
        raise DataLossError(f"The checkpoint's index {path} is corrupt: {error}.") from error
    except _Version as version:
        raise InvalidArgumentError(
            f"The checkpoint's index {path} has version {version}, this library reads 1 to {VERSION}."
        ) from None


class _Corruption(Exception):
    """The reason why an index is corrupt."""


class _Version(Exception):
    """An unknown version."""


def _decoded(contents: Any) -> CheckpointIndex:
    if not isinstance(contents, dict):
        raise _Corruption("it is not an object")
    if CHECKSUM in contents:
        noted = contents.pop(CHECKSUM)
        found = int(crc32c(canonical(contents)))
        if noted != found:
            raise _Corruption(f"its CRC-32C is {found}, and was {noted} when it was saved")
        if contents.get("version") != VERSION:
            raise _Version(contents.get("version"))
        return _version_2(contents)
    if contents.get("version") != 1:
        raise _Corruption("it has no checksum")
    return _version_1(contents)


def _version_2(contents: Mapping[str, Any]) -> CheckpointIndex:
    _check_keys(contents, {"version", "arrays", "optimizers", "workers"})
    arrays = _arrays(contents["arrays"], with_checksum=True)
    optimizers = {}
    for name, saved in _object(contents["optimizers"], "optimizers").items():
        _check_keys(_object(saved, name), {HERE, ON_SERVERS})
        here = saved[HERE]
        optimizers[name] = SavedOptimizer(
            None if here is None else _state_here(name, _object(here, name), arrays),
            {
                variable: _state(name, leaves, arrays, variable)
                for variable, leaves in _object(saved[ON_SERVERS], name).items()
            },
        )
    of_workers = {}
    for worker, own in _object(contents["workers"], "workers").items():
        if not re.fullmatch("[0-9]+", worker):
            raise _Corruption(f"it has a worker {worker!r}")
        of_workers[int(worker)] = _arrays(own, with_checksum=True)
    return CheckpointIndex(arrays, optimizers, of_workers)


def _state_here(
    optimizer: str, here: Mapping[str, Any], arrays: Mapping[str, SavedArray]
) -> SavedState:
    _check_keys(here, {"variables", "leaves"})
    variables = here["variables"]
    if variables is not None:
        _check_list(variables, lambda name: name is None or isinstance(name, str), optimizer)
        variables = tuple(variables)
    return _state(optimizer, here["leaves"], arrays, None, variables)


def _state(
    optimizer: str,
    leaves: Any,
    arrays: Mapping[str, SavedArray],
    variable: str | None,
    variables: tuple[str | None, ...] | None = None,
) -> SavedState:
    _check_list(leaves, lambda leaf: leaf is None or isinstance(leaf, str), optimizer)
    names = tuple(state_array_name(optimizer, k, variable) for k in range(len(leaves)))
    for name in names:
        if name not in arrays:
            raise _Corruption(f"the array {name!r} is missing")
    return SavedState(names, None if None in leaves else tuple(leaves), variables)


def _version_1(contents: Mapping[str, Any]) -> CheckpointIndex:
    _check_keys(contents, {"version", "arrays", "optimizers"})
    arrays = _arrays(contents["arrays"], with_checksum=False)
    _check_list(contents["optimizers"], lambda name: isinstance(name, str), "optimizers")
    return CheckpointIndex(
        arrays, {name: _optimizer_of_version_1(name, arrays) for name in contents["optimizers"]}
    )


def _optimizer_of_version_1(optimizer: str, arrays: Mapping[str, SavedArray]) -> SavedOptimizer:
    parts: dict[str, dict[int, str]] = {}
    for name in arrays:
        match = re.fullmatch(rf"{re.escape(optimizer)}/(.*)/([0-9]+)", name, re.DOTALL)
        if match:
            parts.setdefault(match[1], {})[int(match[2])] = name
    states = {part: _numbered_from_0(names) for part, names in parts.items()}
    here = states.pop(HERE, None)
    return SavedOptimizer(here, states)


def _numbered_from_0(names: Mapping[int, str]) -> SavedState:
    if sorted(names) != list(range(len(names))):
        raise _Corruption(f"of the arrays {sorted(names.values())} some are missing")
    return SavedState(tuple(names[position] for position in range(len(names))))


def _arrays(described: Any, *, with_checksum: bool) -> dict[str, SavedArray]:
    return {
        name: _array(name, array, with_checksum=with_checksum)
        for name, array in _object(described, "arrays").items()
    }


def _array(name: str, described: Any, *, with_checksum: bool) -> SavedArray:
    checksum = {CHECKSUM} if with_checksum else set()
    _check_keys(_object(described, name), {"shape", "dtype"} | checksum)
    _check_list(described["shape"], _is_size, name)
    try:
        dtype = np.dtype(described["dtype"]).name
    except Exception:  # NumPy raises many things
        dtype = None
    if dtype is None or dtype != described["dtype"]:
        raise _Corruption(f"{name!r} has the element type {described['dtype']!r}")
    if with_checksum and not _is_size(described[CHECKSUM]):
        raise _Corruption(f"{name!r} has the checksum {described[CHECKSUM]!r}")
    return SavedArray(tuple(described["shape"]), dtype, described.get(CHECKSUM))


def _is_size(number: Any) -> bool:
    return type(number) is int and number >= 0


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Corruption(f"{what!r} is not an object")
    return value


def _check_keys(value: Mapping[str, Any], wanted: set[str]) -> None:
    if set(value) != wanted:
        raise _Corruption(f"it should have {sorted(wanted)}, but has {sorted(value)}")


def _check_list(values: Any, fits: Callable[[Any], bool], what: str) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str) or not all(map(fits, values)):
        raise _Corruption(f"{what!r} has {values!r}")
