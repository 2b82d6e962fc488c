"""Every variable that is alive, so that a compiled function can find those it uses."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratagem.values.variable import Variable

__all__ = ["live_variables", "register_variable"]

_numbers = itertools.count()
_variables: weakref.WeakValueDictionary[int, Variable] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def register_variable(variable: Variable) -> None:
    """Remembers ``variable`` for as long as it lives."""
    with _lock:
        _variables[next(_numbers)] = variable


def live_variables() -> list[Variable]:
    """Returns every variable that is alive, oldest first."""
    with _lock:
        return [variable for _, variable in sorted(_variables.items())]
