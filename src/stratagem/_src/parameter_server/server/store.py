"""``Store``: everything that one parameter server holds."""

from __future__ import annotations

import collections
import pickle
import threading
from collections.abc import Iterable

import numpy as np

from stratagem._src.core.errors import PSUnavailableError, VariableError
from stratagem._src.parameter_server.server.server_function import ServerFunction
from stratagem._src.parameter_server.server.stored_array import StoredArray, aligned_zeros

__all__ = ["Store"]

_MOST_FUNCTIONS = 256


class Store:
    """The variables of one coordinator, and the functions that it and its workers have sent.

    A coordinator *attaches* before it creates variables. The newest one wins: what belonged to an
    earlier coordinator, which must have died or given up, is dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = ""
        self._arrays: dict[str, StoredArray] = {}
        self._functions: collections.OrderedDict[str, ServerFunction] = collections.OrderedDict()

    @property
    def num_bytes(self) -> int:
        """Size of all variables together."""
        with self._lock:
            return sum(stored.nbytes for stored in self._arrays.values())

    def attach(self, owner: str) -> None:
        """Makes ``owner`` the coordinator whose variables this server holds."""
        with self._lock:
            if owner != self._owner:
                self._owner = owner
                self._arrays.clear()
                self._functions.clear()

    def create(
        self, owner: str, variable: str, name: str, shape: tuple[int, ...], dtype: str
    ) -> None:
        """Makes a variable or shard, filled with zeros.

        Raises:
            VariableError: If ``owner`` is not the coordinator that attached last.
        """
        with self._lock:
            if owner != self._owner:
                raise VariableError(
                    f"Variable {name!r} cannot be created on this parameter server: variables are "
                    "created by the coordinator, and another process has taken that role. Create it "
                    "in the coordinator's strategy.scope()."
                )
            self._arrays[variable] = StoredArray(name, aligned_zeros(shape, np.dtype(dtype)))

    def delete(self, variables: list[str]) -> None:
        """Forgets variables; those that are not there are no error."""
        with self._lock:
            for variable in variables:
                self._arrays.pop(variable, None)

    def find(self, variable: str) -> StoredArray:
        """Returns the variable or shard with this id.

        Raises:
            PSUnavailableError: If it is not here (any more).
        """
        try:
            return self._arrays[variable]
        except KeyError:
            raise PSUnavailableError(
                "This parameter server does not hold the variable: the server was restarted, another "
                "coordinator has taken it over, or the coordinator has dropped the variable. Create the "
                "variables again and restore them from a checkpoint."
            ) from None

    def add_function(self, digest: str, pickled: bytes) -> None:
        """Keeps a function that updates will refer to, until many others have come."""
        function = pickle.loads(pickled)
        with self._lock:
            # One object, so that what it has compiled is compiled once.
            self._functions.setdefault(digest, function)
            while len(self._functions) > _MOST_FUNCTIONS:
                self._functions.popitem(last=False)

    def functions(self, digests: Iterable[str]) -> dict[str, ServerFunction | None]:
        """Returns the functions with these digests; ``None`` for one that has to be sent first."""
        with self._lock:
            found = {digest: self._functions.get(digest) for digest in digests}
            for digest, function in found.items():
                if function is not None:
                    self._functions.move_to_end(digest)
            return found
