"""Imports Keras for ``stratagem.keras`` on first use, with the JAX backend."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from stratagem._src.core.errors import KerasBackendError, MissingExtraError
from stratagem._src.core.extras import install_hint

__all__ = ["check_backend", "load_keras"]

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
        if chosen != "jax":
            os.environ[_SETTING] = "jax"
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise MissingExtraError(
            "stratagem.keras needs Keras 3, which is not installed. " + install_hint("keras")
        ) from error
    finally:
        if chosen is None:
            os.environ.pop(_SETTING, None)
        else:
            os.environ[_SETTING] = chosen
    check_backend(keras)
    return keras


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
