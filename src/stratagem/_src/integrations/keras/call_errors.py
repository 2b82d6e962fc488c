"""Keeps errors of JAX that a Keras layer raises as they are.

Keras makes a new error of the same class, with the layer's arguments in its text. The errors of JAX about
traced values are made from a tracer, not from a text: making one fails, with an ``AttributeError`` that
hides what was wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from stratagem._src.integrations.keras.keras_internals import (
    Argument,
    call_info_injector,
    mark_as_injected,
    replace_call_info_injector,
)

__all__ = ["install_call_errors"]

_MADE_FROM_TRACERS = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


def install_call_errors() -> None:
    """Patches the function that wraps ``call`` of layers to add their arguments to errors."""
    original = call_info_injector()

    @functools.wraps(original)
    def inject(call: Callable[..., Any], *args: Argument, **kwargs: Argument) -> Any:
        @functools.wraps(call)
        def call_and_mark(*inputs: Argument, **options: Argument) -> Any:
            try:
                return call(*inputs, **options)
            except _MADE_FROM_TRACERS as error:
                mark_as_injected(error)
                raise

        return original(call_and_mark, *args, **kwargs)

    replace_call_info_injector(inject)
