"""Imports Keras for ``stratagem.keras`` on first use, with the JAX backend."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from stratagem._src.core.errors import KerasBackendError, MissingExtraError
from stratagem._src.core.extras import install_hint

__all__ = ["check_backend", "jax_unless_chosen", "load_keras"]

_SETTING = "KERAS_BACKEND"


def load_keras() -> ModuleType:
    """Returns Keras.

    Raises:
        MissingExtraError: If it is not installed.
        KerasBackendError: If its backend, or the configured one, is not JAX.
    """
    chosen = os.environ.get(_SETTING)
    if "keras" not in sys.modules and chosen not in (None, "", "jax"):
        raise _wrong_backend(f"{_SETTING}={chosen} in the environment")
    try:
        with jax_unless_chosen():
            import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise MissingExtraError(
            "stratagem.keras needs Keras 3, which is not installed. " + install_hint("keras")
        ) from error
    check_backend(keras)
    return keras


@contextlib.contextmanager
def jax_unless_chosen() -> Iterator[None]:
    """Makes JAX the default backend of Keras for the block, in which Keras is imported.

    Keras's own default is TensorFlow, whose absence it reports in a long traceback. The setting in
    ``keras.json`` does not count: Keras writes its default there when it is first imported.
    """
    chosen = os.environ.get(_SETTING)
    if not chosen:
        os.environ[_SETTING] = "jax"
    try:
        yield
    finally:
        if not chosen:
            os.environ.pop(_SETTING, None)
        if chosen == "":
            os.environ[_SETTING] = chosen


def check_backend(keras: ModuleType) -> None:
    """Checks that Keras runs on JAX.

    Raises:
        KerasBackendError: If not.
    """
    if keras.config.backend() != "jax":
        raise _wrong_backend(f"Keras loaded with the backend {keras.config.backend()!r}")


def _wrong_backend(received: str) -> KerasBackendError:
    return KerasBackendError(
        f"Keras under strategies needs its JAX backend, got {received}. Set KERAS_BACKEND=jax in the "
        "environment before Keras is first imported, or use stratagem.keras instead of the first "
        "`import keras`; it selects the backend."
    )
