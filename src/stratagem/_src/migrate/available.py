"""Which of TensorFlow's names are here, and what takes the place of the others."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

from stratagem._src.core.tensorflow_names import TRANSLATIONS

__all__ = ["exists", "translation"]


_OF_KERAS = ("keras", "optimizers", "losses", "initializers")


@functools.cache
def exists(name: str) -> bool:
    """Returns whether ``sg`` has what TensorFlow has at ``tf.<name>``.

    Keras is not asked: it need not be installed where programs are migrated.

    >>> exists("distribute.MirroredStrategy"), exists("keras.layers.Dense"), exists("Session")
    (True, True, False)
    """
    # The package around this one, which loads its names when they are asked for.
    found: object = sys.modules[__name__.partition(".")[0]]
    for part in name.split("."):
        if not isinstance(found, ModuleType) or part in _OF_KERAS:
            return True  # an attribute of a class, of which only running it says more
        try:
            found = getattr(found, part)
        except AttributeError:
            return False
        except ImportError:
            return True  # its extra is not installed
    return True


def translation(name: str) -> str | None:
    """Returns what to write for a name that is not here, from the table that errors use, too.

    >>> translation("Session.run")
    'nothing: there are no graphs and sessions; sg.function compiles what it calls'
    """
    for key in (name, name.removeprefix("compat.v1.")):
        parts = key.split(".")
        for end in range(len(parts), 0, -1):
            if (found := TRANSLATIONS.get(".".join(parts[:end]))) is not None:
                return found
    return None
